package schedule_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/schedule"
)

// The server's clock is wrong by hours for some statements, and then right again. No run begins
// meanwhile, so no tick is lost or runs twice.

// wrongAt makes the server's clock wrong for statements with one of these texts only.
func (db *database) wrongAt(by string, texts ...string) {
	db.t.Helper()
	wrong := "false"
	for _, text := range texts {
		wrong += fmt.Sprintf(" OR current_query() LIKE '%%%s%%'", text)
	}
	db.exec(fmt.Sprintf(`CREATE OR REPLACE FUNCTION pgleases.schedule_clock()
		RETURNS timestamptz LANGUAGE sql STABLE AS $$
		SELECT now + CASE WHEN %s THEN interval '%s' ELSE interval '0' END FROM public.test_clock $$`, wrong, by))
}

func (db *database) rightAgain() { db.t.Helper(); db.wrongAt("0") }

func (db *database) doneTicks(name string) int64 {
	return one[int64](db, `SELECT coalesce(sum(ticks), 0)::bigint FROM pgleases.history
		WHERE name = $1 AND outcome = 'succeeded'`, name)
}

// A time is trusted after 1 min without another reading.
func TestTwoWrongTimesAreNotBelieved(t *testing.T) {
	t.Parallel()
	trusts := func(offset time.Duration) bool {
		return schedule.TrustsLast([][2]time.Duration{
			{0, 0},
			{time.Second, 8 * time.Hour},
			{62 * time.Second, offset},
		}...)
	}
	expect(t, trusts(8*time.Hour), true, "the reading that lasts for a minute is trusted")
	expect(t, trusts(-8*time.Hour), false, "that another is believed at once")
}

// The clock is wrong at each statement of a run, with handlers of each kind: no tick runs twice or
// early, or is lost.
func TestClockWrongAtEachStatementOfRun(t *testing.T) {
	t.Parallel()
	for _, by := range testkit.Some("8 h", "-8 h") {
		t.Run(by, func(t *testing.T) { // not in parallel: such subtests run last, and these wait for seconds
			db := newFreshDatabase(t)
			w := newWorker(db)
			w.Times().Sweep = 100 * time.Millisecond
			w.Times().ClockDoubt = 50 * time.Millisecond
			out := func(ctx context.Context, r schedule.Run[args]) error {
				return r.Guarded(ctx, func(tx pgx.Tx) error { return effect(ctx, tx, r) })
			}
			fails := func(ctx context.Context, tx pgx.Tx, r schedule.Run[args]) error {
				if r.Attempt == 1 {
					return errors.New("no")
				}
				return effect(ctx, tx, r)
			}
			in := schedule.InTx(w.Scheduler, "in", effect)
			limited := schedule.InTx(w.Scheduler, "limited", effect, schedule.WithMaxConcurrent(1))
			least := schedule.AtLeastOnce(w.Scheduler, "least", out)
			most := schedule.AtMostOnce(w.Scheduler, "most", out)
			again := schedule.InTx(w.Scheduler, "again", fails, tries(3, time.Millisecond))
			opts := []schedule.ScheduleOption{missedAll, buffered}
			testkit.OK(t, in.Put(t.Context(), "in", args{}, hourly, opts...))
			testkit.OK(t, limited.Put(t.Context(), "limited", args{}, hourly, opts...))
			testkit.OK(t, limited.Put(t.Context(), "limited too", args{}, hourly, opts...))
			testkit.OK(t, least.Put(t.Context(), "least", args{}, hourly, opts...))
			testkit.OK(t, most.Put(t.Context(), "most", args{}, hourly, opts...))
			testkit.OK(t, again.Put(t.Context(), "again", args{}, hourly, opts...))
			names := []string{"in", "limited", "limited too", "least", "most", "again"}
			w.run()
			db.polled()
			now := midnight
			statements := testkit.Some("schedule_open(", "schedule_close(", "schedule_end_tick(",
				"schedule_end_job(", "schedule_postpone_job(", "schedule_take_slot(", "schedule_begin(")
			for _, text := range statements {
				now = now.Add(time.Hour)
				db.wrongAt(by, text)
				db.setClock(now)
				for range 3 {
					db.polled()
				}
				db.rightAgain()
				db.setClock(now.Add(5 * time.Second)) // pauses of a millisecond are over
				right := time.Now()
				for _, name := range names {
					testkit.Until(t, text+" was at a wrong time, and "+name+" is done", func() bool {
						db.setClock(now.Add(5*time.Second + time.Since(right)))
						return db.doneTicks(name) == int64(now.Sub(midnight)/time.Hour)
					})
				}
			}
			if n := db.count(ranTwice); n > 0 {
				t.Errorf("%d ticks have their effects twice", n)
			}
			if n := db.count("public.effects WHERE at > $1", now); n > 0 {
				t.Errorf("%d ticks ran early", n)
			}
		})
	}
}
