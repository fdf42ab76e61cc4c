package schedule_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/schedule"
)

// A process that runs for long records each day what it declares.
func TestProcessRecordsDeclarations(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	testkit.OK(t, schedule.InTx(w.Scheduler, "books", effect).Add("close", args{}, hourly))
	w.Times().Declare = 10 * time.Millisecond
	w.run().has("close")
	l := newLedger(db, "close")
	noted := func() time.Time {
		s := testkit.Must(w.Get(t.Context(), "close"))(t)
		return s.DeclaredAt.UTC()
	}
	db.setClock(midnight.Add(23 * time.Hour))
	l.settled(w.Scheduler)
	db.polled()
	expect(t, noted(), midnight, "when it was noted, within a day")
	now := midnight
	for range 3 {
		now = now.Add(25 * time.Hour)
		db.setClock(now)
		testkit.Until(t, "it is noted", func() bool { return noted().Equal(now) })
	}
}

// A restored backup, or a server that lost commits in a failover, may lack what was declared since. A
// process that runs stores it again, and jobs find their group. It edits no schedule that is there,
// because a process with newer code may have declared it otherwise.
func TestDeclarationsReturnAfterFailover(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newFreshDatabase(t)
	w := newBriefWorker(db)
	k := schedule.InTx(w.Scheduler, "books", effect)
	for _, name := range []string{"kept", "lost"} { // restored in one transaction
		testkit.OK(t, k.Add(name, args{}, hourly))
	}
	w.run().has("lost")
	newer := one[string](db, `UPDATE pgleases.schedules SET rule = '@every 2h0m0s' WHERE name = 'kept' RETURNING rule`)
	db.exec(`DELETE FROM pgleases.schedules WHERE name = 'lost';
		DELETE FROM pgleases.schedule_groups;
		SELECT pgleases.new_server_generation()`)
	w.has("lost")
	kept := one[string](db, "SELECT rule FROM pgleases.schedules WHERE name = 'kept'")
	expect(t, kept, newer, "the rule of what was there")
	counts(db, "its group is there", 1, "pgleases.schedule_groups")
	w.end()
}

// A tracer that panics while the declarations are stored on another server ends no process.
func TestPanicDuringRestoreIsLogged(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newFreshDatabase(t)
	tracer, log := new(panicking), new(lines)
	db.tracer = tracer
	w := newBriefWorker(db, log.option())
	testkit.OK(t, schedule.InTx(w.Scheduler, "books", effect).Add("close", args{}, hourly))
	w.run().has("close")
	testkit.Until(t, "it has partitions", func() bool { return w.Stats().Partitions == 4 })
	tracer.armed.Store(true)
	db.exec("SELECT pgleases.new_server_generation()")
	const line = "schedule: declarations not stored on another server"
	testkit.Until(t, "it is logged", func() bool { return log.count(line) > 0 })
	w.end()
}

// panicking is a tracer that panics when the number of partitions is stored.
type panicking struct{ armed atomic.Bool }

func (p *panicking) TraceQueryStart(
	ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData,
) context.Context {
	if p.armed.Load() && strings.Contains(data.SQL, "schedule_join") {
		panic("a tracer panics")
	}
	return ctx
}

func (p *panicking) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// A change of clocks on 10 March is canceled, or added. A process that starts with new zone data
// computes again when its declared schedules are due. Other schedules follow after their next tick
// by the old data. No tick is lost, and no local time runs twice.
func TestDueTimesFollowNewZoneData(t *testing.T) {
	t.Parallel()
	forward := time.Date(2026, 3, 10, 0, 0, 0, 0, time.UTC)
	at := func(day, hour int) time.Time { return time.Date(2026, 3, day, hour, 0, 0, 0, time.UTC) }
	summer := schedule.MakeZone("Test/Summer", []time.Time{forward}, 0, time.Hour)
	winter := schedule.MakeZone("Test/Winter", nil, 0)
	for _, c := range testkit.Some([]struct {
		name          string
		before, after *time.Location
		last          time.Time // the tick before the new data
		due, next     time.Time // by the old, and by the new
		then          time.Time // the one after
	}{
		{"is abolished", summer, winter, at(9, 12), at(10, 11), at(10, 12), at(11, 12)},
		{"is decreed", winter, summer, at(9, 12), at(10, 12), at(10, 11), at(11, 11)},
		{"is abolished when it has begun", summer, winter, at(10, 11), at(11, 11), at(11, 12), at(12, 12)},
		{"is decreed when it should have begun", winter, summer, at(10, 12), at(11, 12), at(11, 11), at(12, 11)},
	}...) {
		t.Run("summer time "+c.name, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			zone := "Test/" + strings.ReplaceAll(c.name, " ", "_")
			noon := func() schedule.Rule { return schedule.Cron("0 12 * * *", zone) }
			schedule.SetZone(zone, c.before)
			db.setClock(c.last.Add(-time.Hour))
			start := func() *worker {
				w := newWorker(db)
				testkit.OK(t, schedule.InTx(w.Scheduler, "books", effect).Add("declared", args{}, noon()))
				return w.run().has("declared")
			}
			w := start()
			books := schedule.InTx(newWorker(db).Scheduler, "books", effect)
			testkit.OK(t, books.Put(t.Context(), "put", args{}, noon()))
			runs := func(tick time.Time, names ...string) {
				t.Helper()
				for _, name := range names {
					what := fmt.Sprintf("%s runs for %v", name, tick)
					counts(db, what, 1, "public.effects WHERE name = $1 AND at = $2", name, tick)
				}
			}
			due := func(want time.Time, names ...string) {
				t.Helper()
				for _, name := range names {
					testkit.Until(t, fmt.Sprintf("%s is due at %v", name, want), func() bool {
						s := testkit.Must(w.Get(t.Context(), name))(t)
						return s.Due.Equal(want)
					})
				}
			}
			db.setClock(c.last)
			runs(c.last, "declared", "put")
			due(c.due, "declared", "put")
			w.close()
			schedule.SetZone(zone, c.after)
			w = start()
			due(c.next, "declared")
			due(c.due, "put")
			db.setClock(c.next)
			runs(c.next, "declared")
			if c.due.After(c.next) {
				db.setClock(c.due)
			}
			runs(c.next, "put")
			due(c.then, "declared", "put")
			db.setClock(c.then)
			runs(c.then, "declared", "put")
			expect(t, db.count("public.effects"), 6, "runs")
			expect(t, db.count("pgleases.history WHERE outcome <> 'succeeded'"), 0, "ticks that were not run")
		})
	}
}

// A process joins after it has written what it declares, because its partitions would wait. It
// writes only what differs.
func TestStartWritesDeclarationsBeforeJoin(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	type order struct {
		Number int64
		Goods  []string
		Rates  []float64
	}
	declare := func(edited int64, rule schedule.Rule, more ...string) *worker {
		w := newWorker(db)
		books := schedule.InTx(w.Scheduler, "books", nothing[order])
		same := order{1 << 60, []string{"é"}, []float64{1e-7, 1e21, 0.5, -2}}
		testkit.OK(t, books.Add("same", same, hourly, schedule.WithPauseAfter(3)))
		testkit.OK(t, books.Add("edited", order{Number: edited}, hourly))
		testkit.OK(t, books.Add("moved", order{}, rule))
		for _, name := range more {
			testkit.OK(t, books.Add(name, order{}, hourly))
		}
		return w
	}
	versions := func() string {
		return one[string](db, `SELECT string_agg(name || ' ' || revision || ' ' || xmin, ', ' ORDER BY name)
			FROM pgleases.schedules`)
	}
	const joined = "SELECT count(*) FROM pgleases.members WHERE lease = 'schedule/tests'"
	declare(1<<60+1, hourly).run().has("moved").close()
	before := versions()
	w := declare(1<<60+1, hourly).run()
	becomes(db, "it joins", 1, joined)
	expect(t, versions(), before, "schedules after a start that changes nothing")
	w.close()

	edit := db.begin(
		"SELECT FROM pgleases.schedules WHERE name = 'same' FOR UPDATE",
		"SELECT FROM pgleases.schedules WHERE name = 'edited' FOR UPDATE",
	)
	w = declare(1<<60, schedule.Every(time.Minute), "new").run()
	db.blocked("it waits for an edit", "schedule_get")
	expect(t, one[int64](db, joined), 0, "members before all is put")
	testkit.OK(t, edit.Rollback(t.Context()))
	w.has("new")
	expect(t, one[string](db, "SELECT string_agg(name || ' ' || revision, ', ' ORDER BY name) FROM pgleases.schedules"),
		"edited 2, moved 2, new 1, same 1", "schedules and their revisions")
}
