package schedule_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/schedule"
)

// holding is a handler whose runs of a schedule go on until the test ends them.
type holding struct {
	t     testing.TB
	began chan schedule.Run[args]

	mu   sync.Mutex // guards what follows
	ends map[int]chan error
}

func newHolding(t testing.TB) *holding {
	return &holding{t: t, began: make(chan schedule.Run[args], 100), ends: make(map[int]chan error)}
}

// of is what ends the run for the tick of an hour.
func (h *holding) of(hour int) chan error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ends[hour] == nil {
		h.ends[hour] = make(chan error, 10)
	}
	return h.ends[hour]
}

func (h *holding) run(ctx context.Context, tx pgx.Tx, r schedule.Run[args]) error {
	if err := effect(ctx, tx, r); err != nil {
		return err
	}
	h.began <- r
	select {
	case err := <-h.of(r.At.Hour()):
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// begins expects the runs that begin next, in any order, by the hours of their ticks.
func (h *holding) begins(hours ...int) (runs []schedule.Run[args]) {
	h.t.Helper()
	for range hours {
		runs = append(runs, receive(h.t, fmt.Sprint("one of the ticks of ", hours, " begins"), h.began))
	}
	slices.SortFunc(runs, func(a, b schedule.Run[args]) int { return a.At.Compare(b.At) })
	var got []int
	for _, r := range runs {
		got = append(got, r.At.Hour())
	}
	expect(h.t, fmt.Sprint(got), fmt.Sprint(hours), "ticks that began")
	return runs
}

// quiet expects that nothing begins.
func (h *holding) quiet(db *database) {
	h.t.Helper()
	db.looked()
	if len(h.began) > 0 {
		h.t.Fatalf("the tick of %v began", (<-h.began).At)
	}
}

// What is put for a tick, and the tick that waited for its end, are put off by neither clock: the server's may be wrong for a moment, and be set right
// before anybody looks.
func TestAClockThatIsWrongWhileARunEndsPutsNothingOff(t *testing.T) {
	t.Parallel()
	for _, wrong := range []string{"8 h", "-8 h"} {
		t.Run(wrong, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			db.exec(fmt.Sprintf(`CREATE OR REPLACE FUNCTION pgleases.schedule_clock() RETURNS timestamptz LANGUAGE sql STABLE AS $$
				SELECT now + (statement_timestamp() - '%s') + CASE WHEN current_query() LIKE '%%schedule_close%%' THEN interval '%s' ELSE interval '0' END
				FROM public.test_clock $$`, time.Now().Format(time.RFC3339Nano), wrong)) // it goes on, as that of the process does
			h := newHolding(t)
			w := newSteadyWorker(db)
			w.Scheduler.SweepEvery(100 * time.Millisecond) // which finds what is due long before now
			ok(t, schedule.InTx(w.Scheduler, "books", h.run).Add("close", args{}, hourly, schedule.OverlapAllow(1), schedule.MissedAll))
			w.run().has("close")
			for hour := range 3 {
				db.setClock(midnight.Add(time.Duration(hour+1) * time.Hour))
				if hour > 0 {
					h.quiet(db)
					h.of(hour) <- nil
				}
				h.begins(hour + 1)
			}
		})
	}
}

// Up to n ticks of a schedule run at once, in all processes; then the next waits, and is late.
func TestTicksOverlap(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	h := newHolding(t)
	start := func() *worker {
		w := newSteadyWorker(db)
		ok(t, schedule.InTx(w.Scheduler, "books", h.run).Add("close", args{}, hourly, schedule.OverlapAllow(2)))
		return w.run().has("close")
	}
	w := start()
	start()
	l := newLedger(db, "close")
	at := func(hour int) time.Time { return midnight.Add(time.Duration(hour) * time.Hour) }
	db.setClock(at(1))
	first := h.begins(1)[0]
	db.setClock(at(2))
	second := h.begins(2)[0]
	db.setClock(at(4))
	h.quiet(db)
	h.of(2) <- nil
	fourth := h.begins(4)[0]
	h.quiet(db)
	h.of(4) <- nil
	h.of(1) <- nil
	l.settled(w.Scheduler).expectFates(fates{schedule.FateDone: 3, schedule.FateMissed: 1})
	if !first.From.IsZero() || !second.From.Equal(at(1)) || !fourth.From.Equal(at(2)) || first.Missed+second.Missed != 0 || fourth.Missed != 1 {
		t.Errorf("the runs were told from %v, %v, %v, and that %d, %d, %d were missed", first.From, second.From, fourth.From, first.Missed, second.Missed, fourth.Missed)
	}
	if first.Key == second.Key || first.Job != 0 || first.Trigger != schedule.TriggerTick || first.Name != "close" {
		t.Errorf("the first run was told %+v, the second the key %q", first, second.Key)
	}
	db.setClock(at(5))
	h.begins(5)
	h.of(5) <- nil
	s, err := w.Get(t.Context(), "close")
	ok(t, err)
	l.settled(w.Scheduler)
	if s, err = w.Get(t.Context(), "close"); err != nil || !s.Done.Equal(at(5)) || !s.Due.Equal(at(6)) {
		t.Errorf("the schedule is %+v, %v", s, err)
	}
}

// Whatever statement is lost, and where its owner dies, a tick that may overlap with others has its effect once, and one fate.
func TestTicksThatOverlapHaveOneFateWhateverIsLost(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	start := func() *worker {
		w := newWorker(db)
		ok(t, schedule.InTx(w.Scheduler, "books", effect, schedule.Idle(time.Second)).Add("close", args{}, hourly, schedule.OverlapAllow(2), schedule.MissedAll))
		return w.run().has("close")
	}
	l := newLedger(db, "close")
	w := start()
	now := midnight
	for _, text := range []string{"begin", "schedule_open", "public.effects", "schedule_close(", "schedule_close_job", "commit", "schedule_look"} {
		for _, after := range []bool{false, true} {
			w.wire.lose(text, after)
			now = now.Add(5 * time.Hour)
			db.setClock(now)
			l.settled(w.Scheduler)
			until(t, "the message was lost: "+text, func() bool { return !w.wire.armed() })
		}
	}
	for range 2 {
		now = now.Add(5 * time.Hour)
		db.setClock(now)
		w.die()
		w = start()
		l.settled(w.Scheduler)
	}
	l.expectFates(fates{schedule.FateDone: int64(now.Sub(midnight) / time.Hour)})
}

// What people do to a schedule while its ticks overlap, and runs that fail.
func TestEditsWhileTicksOverlap(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newSteadyWorker(db, schedule.WithMaxRunning(5))
	h := newHolding(t)
	books := schedule.InTx(w.Scheduler, "books", h.run, schedule.Retry(2, schedule.Backoff(time.Minute, time.Minute)))
	put := func(opts ...schedule.ScheduleOption) {
		t.Helper()
		ok(t, books.Put(t.Context(), "close", args{}, hourly, opts...))
	}
	put(schedule.OverlapAllow(3), schedule.MissedAll, schedule.PauseAfter(2))
	l := newLedger(db, "close")
	w.run()
	now := midnight
	pass := func(d time.Duration) { t.Helper(); now = now.Add(d); db.setClock(now) }

	// A tick that is tried again counts among those that are under way, and Pause is not for it.
	pass(2 * time.Hour)
	h.begins(1, 2)
	h.of(1) <- errors.New("no paper")
	until(t, "it is to be tried again", func() bool {
		return one[int64](db, "SELECT count(*) FROM pgleases.jobs WHERE (trying ->> 'attempts')::int = 1") == 1
	})
	ok(t, w.Pause(t.Context(), "close"))
	pass(2 * time.Minute)
	expect(t, h.begins(1)[0].Attempt, 2, "attempt")
	pass(2 * time.Hour)
	h.quiet(db)
	ok(t, w.Resume(t.Context(), "close", schedule.CatchUp))
	h.begins(3)
	h.quiet(db)
	h.of(2) <- nil
	h.begins(4)

	// Another overlap: the next tick waits for all.
	put(schedule.OverlapBuffer, schedule.MissedAll, schedule.PauseAfter(2))
	pass(time.Hour)
	h.of(1) <- nil
	h.of(3) <- nil
	h.quiet(db)
	h.of(4) <- nil
	expect(t, h.begins(5)[0].Key, "close", "key")
	h.of(5) <- nil
	l.settled(w.Scheduler).expectFates(fates{schedule.FateDone: 5})

	// Dead ticks in a row pause it.
	put(schedule.OverlapAllow(3), schedule.MissedAll, schedule.PauseAfter(2))
	pass(2 * time.Hour)
	h.begins(6, 7)
	h.of(6) <- schedule.Discard(errors.New("broken"))
	h.of(7) <- schedule.Discard(errors.New("broken"))
	l.settled(w.Scheduler).expectFates(fates{schedule.FateDone: 5, schedule.FateDead: 2})
	until(t, "it is paused", func() bool {
		s, err := w.Get(t.Context(), "close")
		ok(t, err)
		return !s.PausedAt.IsZero() && s.Failures == 2
	})
	ok(t, w.Resume(t.Context(), "close", schedule.FromNow))

	// One is cancelled, and then the schedule is deleted: nothing of a run that is under way is committed.
	pass(3 * time.Hour)
	h.begins(8, 9, 10)
	ok(t, w.Cancel(t.Context(), one[int64](db, "SELECT min(id) FROM pgleases.jobs")))
	for hour := range 3 {
		defer close(h.of(8 + hour))
	}
	pass(time.Hour)
	h.begins(11)
	defer close(h.of(11))
	ok(t, w.Delete(t.Context(), "close"))
	expect(t, one[int64](db, "SELECT count(*) FROM pgleases.jobs"), 0, "jobs")
	for hour := range 4 {
		h.of(8 + hour) <- nil
	}
	l.settled(w.Scheduler).expectFates(fates{schedule.FateDone: 5, schedule.FateDead: 2, schedule.FateCancelled: 4})
	w.close()
	l.settled(w.Scheduler)
}

// Calls outside overlap too, each with an idempotency key of its tick; what was called at most once is lost with its process.
func TestCallsOutsideOverlap(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	calls := make(chan string, 100)
	start := func(hold bool) *worker {
		w := newWorker(db, schedule.WithMaxRunning(5))
		call := func(ctx context.Context, r schedule.Run[args]) error {
			if err := db.sent(r); err != nil {
				return err
			}
			calls <- r.IdempotencyKey()
			if hold {
				<-ctx.Done()
				return context.Cause(ctx)
			}
			return nil
		}
		opts := []schedule.ScheduleOption{schedule.OverlapAllow(2), schedule.MissedAll}
		ok(t, schedule.AtLeastOnce(w.Scheduler, "mail", call).Add("mail", args{}, hourly, opts...))
		ok(t, schedule.AtMostOnce(w.Scheduler, "pay", call).Add("pay", args{}, hourly, opts...))
		return w.run().has("pay")
	}
	least, most := newLedger(db, "mail"), newLedger(db, "pay")
	least.calls, most.calls = "at least once", "at most once"
	w := start(true)
	db.setClock(midnight.Add(2 * time.Hour))
	keys := make(map[string]int)
	called := func(n int) {
		t.Helper()
		for range n {
			keys[receive(t, "a call", calls)]++
		}
	}
	called(4)
	expect(t, len(keys), 4, "keys")
	w.die()
	next := start(false)
	called(2)
	expect(t, len(keys), 4, "keys, also of those that are called again")
	least.settled(next.Scheduler).expectFates(fates{schedule.FateDone: 2})
	most.settled(next.Scheduler).expectFates(fates{schedule.FateLost: 2})
	for key := range keys {
		if !strings.HasPrefix(key, group+"/schedule/") {
			t.Errorf("a tick has the key %s", key)
		}
	}
}

// A process whose code does not declare a schedule runs none of its ticks, although it knows the kind: they wait for one that does.
func TestTicksBesideEachOtherRunOnlyWhereTheyAreDeclared(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	start := func(declares bool, handler func(context.Context, pgx.Tx, schedule.Run[args]) error) *worker {
		w := newWorker(db)
		k := schedule.InTx(w.Scheduler, "books", handler, schedule.Retry(2, schedule.Backoff(time.Hour, time.Hour)))
		if declares {
			ok(t, k.Add("close", args{}, hourly, schedule.MissedAll, schedule.OverlapAllow(3)))
		}
		return w.run()
	}
	w := start(true, func(context.Context, pgx.Tx, schedule.Run[args]) error { return errors.New("no ink") }).has("close")
	l := newLedger(db, "close")
	db.setClock(midnight.Add(3 * time.Hour))
	jobs := func(where string) int64 {
		return one[int64](db, "SELECT count(*) FROM pgleases.jobs WHERE trigger = 'tick' AND "+where)
	}
	until(t, "three ticks are to be tried again", func() bool { return jobs("trying ->> 'attempts' = '1'") == 3 })
	w.close()
	older := start(false, effect)
	db.setClock(midnight.Add(4*time.Hour + 30*time.Minute))
	until(t, "all wait, or one has run", func() bool {
		return jobs("waits LIKE '%another version%'") == 3 || one[int64](db, "SELECT count(*) FROM public.effects") > 0
	})
	expect(t, one[int64](db, "SELECT count(*) FROM public.effects"), 0, "runs where it is not declared")
	older.close()
	w = start(true, effect)
	l.settled(w.Scheduler).expectFates(fates{schedule.FateDone: 4})
}
