package schedule_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"pgregory.net/rapid"

	"github.com/pgleases/pgleases/schedule"
	"github.com/pgleases/pgleases/schedule/scheduletest"
)

// This file has package scheduletest do what a scheduler on PostgreSQL does, and compares what became of it. The clock of both goes from one instant at
// which something is due to the next: whole minutes, so that the time that a run takes on the server can be taken off again.

// task is what a handler is to do: done; fail, always; twice, fail two times; discard; snooze, once; panic. Before, it takes so many minutes.
type task struct {
	Does    string
	Minutes int
}

// A side is a scheduler, with what its handlers did.
type side struct {
	*schedule.Scheduler
	kinds map[string]*schedule.Kind[task]
	jobs  []int64 // in the order in which they were put

	mu    sync.Mutex // guards what follows
	calls map[string][]string

	sleep func(ctx context.Context, kind, name string, d time.Duration) error
}

// A bed is where handlers on PostgreSQL sleep, by the clock of the database.
type bed struct {
	db *database

	mu       sync.Mutex // guards what follows
	sleepers map[string]sleeper
}

type sleeper struct {
	kind  string
	until time.Time
	wake  chan struct{}
}

// asleep is how many of a kind sleep.
func (b *bed) asleep(kind string) (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.sleepers {
		if s.kind == kind {
			n++
		}
	}
	return n
}

func (b *bed) sleep(ctx context.Context, kind, name string, d time.Duration) error {
	s := sleeper{kind, one[time.Time](b.db, "SELECT now FROM public.test_clock").Add(d), make(chan struct{})}
	b.mu.Lock()
	b.sleepers[name] = s
	b.mu.Unlock()
	select {
	case <-s.wake:
		return nil
	case <-ctx.Done():
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.sleepers[name] == s {
			delete(b.sleepers, name)
		}
		return context.Cause(ctx)
	}
}

// next is when the first wakes; zero: nobody sleeps.
func (b *bed) next() (next time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.sleepers {
		if next.IsZero() || s.until.Before(next) {
			next = s.until
		}
	}
	return next
}

// A dueKey is that of what is due.
type dueKey struct {
	Key       string
	Suspected bool // of having killed a process: it runs alone
	Full      bool // it waits, as its kind has a limit
}

// settled reports whether all that is due sleeps, or what sleeps leaves no room for it.
func (b *bed) settled(due []dueKey) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	sleeps := func(d dueKey) bool { _, sleeps := b.sleepers[d.Key]; return sleeps }
	alone := func(d dueKey) bool { return d.Suspected && sleeps(d) }
	return len(b.sleepers) == atOnce || slices.ContainsFunc(due, alone) || !slices.ContainsFunc(due, func(d dueKey) bool { return !sleeps(d) && !d.Full })
}

// wake wakes those who slept until now, once their process knows the time.
func (b *bed) wake(now time.Time) {
	if next := b.next(); next.IsZero() || next.After(now) {
		return
	}
	b.db.looked()
	b.wakeUntil(now)
}

// wakeUntil wakes those who slept until an instant.
func (b *bed) wakeUntil(last time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for name, s := range b.sleepers {
		if !s.until.After(last) {
			close(s.wake)
			delete(b.sleepers, name)
		}
	}
}

func newSide(s *schedule.Scheduler) *side {
	d := &side{Scheduler: s, calls: make(map[string][]string)}
	retry, long := schedule.Retry(3, schedule.Backoff(2*time.Minute, 30*time.Minute)), schedule.Timeout(24*time.Hour)
	out := func(kind string) func(context.Context, schedule.Run[task]) error {
		return func(ctx context.Context, r schedule.Run[task]) error { return d.do(ctx, kind, r) }
	}
	d.kinds = map[string]*schedule.Kind[task]{
		"in":    schedule.InTx(s, "in", d.doIn, retry, long, schedule.Idle(24*time.Hour)),
		"least": schedule.AtLeastOnce(s, "least", out("least"), retry, long),
		"most":  schedule.AtMostOnce(s, "most", out("most"), long),
		"two":   schedule.AtLeastOnce(s, "two", out("two"), retry, long, schedule.Limit(2)),
		"one":   schedule.InTx(s, "one", func(ctx context.Context, _ pgx.Tx, r schedule.Run[task]) error { return d.do(ctx, "one", r) }, retry, long, schedule.Idle(24*time.Hour), schedule.Limit(1)),
	}
	return d
}

// doIn is what a handler does that has a transaction. It may put jobs there: one that the database refuses, and take no notice, in the transaction or in a savepoint; or two that are one.
func (d *side) doIn(ctx context.Context, tx pgx.Tx, r schedule.Run[task]) error {
	puts := func(tx pgx.Tx, does string, opts ...schedule.JobOption) error {
		_, err := d.kinds["least"].EnqueueTx(ctx, tx, task{Does: does}, opts...)
		return err
	}
	one := schedule.Unique(r.Key+" one", schedule.Raise)
	switch r.Args.Does {
	case "spoils":
		_ = puts(tx, "\x00")
		_, began := tx.Begin(ctx)
		_, selected := tx.Exec(ctx, "SELECT 1")
		return refused(puts(tx, "done"), began, selected)
	case "spoils a savepoint":
		_ = pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error { return puts(tx, "\x00") })
		return puts(tx, "done")
	case "keeps a savepoint that it spoils":
		return refused(pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error { _ = puts(tx, "\x00"); return nil }), puts(tx, "done"))
	case "puts":
		return errors.Join(puts(tx, "done", schedule.In(time.Minute), one), errors.Unwrap(puts(tx, "done", one)))
	case "puts, and takes it":
		if err := puts(tx, "twice", one); err != nil {
			return err
		}
		_ = puts(tx, "done", one)
	}
	return d.do(ctx, "in", r)
}

// refused is an error where one of some is not that a statement of the transaction had failed.
func refused(errs ...error) error {
	for i, err := range errs {
		if told := (*pgconn.PgError)(nil); !errors.As(err, &told) || told.Code != "25P02" {
			return fmt.Errorf("%d of what followed a statement that failed: %w", i, err)
		}
	}
	return nil
}

func (d *side) do(ctx context.Context, kind string, r schedule.Run[task]) error {
	if r.Args.Minutes > 0 {
		if err := d.sleep(ctx, kind, r.Key, time.Duration(r.Args.Minutes)*time.Minute); err != nil {
			return err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	call := fmt.Sprintf("%s at %s from %s missed %d attempt %d key %s partition %d", r.Trigger, stamp(r.At), stamp(r.From), r.Missed, r.Attempt, r.Key, r.Partition)
	again := slices.Contains(d.calls[r.Name], call)
	d.calls[r.Name] = append(d.calls[r.Name], call)
	switch {
	case r.Args.Does == "fail", r.Args.Does == "twice" && r.Attempt < 3:
		return errors.New("it fails")
	case r.Args.Does == "discard":
		return schedule.Discard(errors.New("it is of no use"))
	case r.Args.Does == "snooze" && !again:
		return schedule.Snooze(3 * time.Minute)
	case r.Args.Does == "panic":
		panic(nil)
	}
	return nil
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return t.UTC().Format("02 15:04:05.999999")
}

// seen is what can be seen of one side, of the schedules whose names begin so.
func (d *side) seen(t testing.TB, prefix string) string {
	t.Helper()
	var b strings.Builder
	for s, err := range d.List(context.Background(), prefix) {
		ok(t, err)
		fmt.Fprintf(&b, "%s: kind %s, rule %s, key %s, cursor %s, due %s, done %s, paused %s, failures %d, attempts %d, error %q, waits %q\n",
			s.Name, s.Kind, s.Rule, s.Key, stamp(s.Cursor), stamp(s.Due), stamp(s.Done), stamp(s.PausedAt.Truncate(time.Minute)), s.Failures, s.Attempts, firstLine(s.Error), s.Waits)
	}
	for _, name := range names {
		var entries []string // in no order: ticks that overlap may end at one instant
		for e, err := range d.History(context.Background(), prefix+name) {
			ok(t, err)
			entries = append(entries, fmt.Sprintf("%s%s: %d after %s up to %s %s, attempts %d, error %q, started %s, ended %s\n",
				prefix, name, e.Ticks, stamp(e.Since), stamp(e.Until), e.Fate, e.Attempts, firstLine(e.Error), stamp(e.StartedAt), stamp(e.EndedAt)))
		}
		slices.Sort(entries)
		b.WriteString(strings.Join(entries, ""))
	}
	for j, err := range d.Jobs(context.Background(), schedule.JobFilter{}) {
		ok(t, err)
		fmt.Fprintf(&b, "living job %d %q: %s, %s of kind %s for %s, due %s, attempts %d, waits %q\n",
			slices.Index(d.jobs, j.ID), j.Name, j.State, j.Trigger, j.Kind, stamp(j.At), stamp(j.Due), j.Attempts, j.Waits)
	}
	for i, id := range d.jobs {
		j, err := d.Job(context.Background(), id)
		ok(t, err)
		fmt.Fprintf(&b, "job %d %q: %s for %s, key %t, kind %s, due %s, attempts %d, error %q, waits %q, started %s, ended %s\n",
			i, j.Name, j.Fate, stamp(j.At), j.Key != "", j.Kind, stamp(j.Due), j.Attempts, firstLine(j.Error), j.Waits, stamp(j.StartedAt), stamp(j.EndedAt))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(d.calls)) {
		for _, call := range slices.Sorted(slices.Values(d.calls[name])) { // of jobs of one instant the order is told above
			if strings.HasPrefix(name, prefix) {
				fmt.Fprintf(&b, "%s called: %s\n", name, call)
			}
		}
	}
	return b.String()
}

func firstLine(text string) string { line, _, _ := strings.Cut(text, "\n"); return line }

// names are those of the schedules.
var names = []string{"a", "b", "c"}

// atOnce is how many run at once.
const atOnce = 3

// both are a scheduler on PostgreSQL and one in memory, whose clocks show the same.
type both struct {
	t      testing.TB
	db     *database
	real   *side
	test   *side
	fake   *scheduletest.Scheduler
	bed    *bed
	prefix string // of the names of this sequence
	told   []string
}

// newReal returns a side on PostgreSQL that runs.
func newReal(db *database) (*side, *bed) {
	b := &bed{db: db, sleepers: make(map[string]sleeper)}
	d, _ := b.process(time.Minute) // which loses nothing, however slow the machine is
	return d, b
}

// process returns a side that runs, and its process.
func (b *bed) process(ttl time.Duration) (*side, *worker) {
	w := newWorkerFor(b.db, ttl, silent(), schedule.WithMaxRunning(atOnce))
	d := newSide(w.Scheduler)
	d.sleep = b.sleep
	w.ExactPauses()
	w.run()
	until(b.db.t, "it runs", func() bool {
		return one[int](b.db, "SELECT count(*) FROM pgleases.partitions WHERE owner IS NOT NULL AND owner_id = $1", w.client.ID()) == 4
	})
	return d, w
}

func newBoth(db *database, real *side, bed *bed, prefix string) *both {
	b := &both{t: db.t, db: db, real: real, bed: bed, prefix: prefix}
	real.jobs = nil
	b.fake = scheduletest.New(db.t, one[time.Time](db, "SELECT now FROM public.test_clock"), schedule.WithPartitions(4), silent(), schedule.WithMaxRunning(atOnce))
	b.test = newSide(b.fake.Scheduler)
	b.test.sleep = func(ctx context.Context, _, _ string, d time.Duration) error { return b.fake.Sleep(ctx, d) }
	b.fake.Advance(0)
	return b
}

// does has both do something, and compares what came of it.
func (b *both) does(what string, f func(d *side) error) {
	b.t.Helper()
	b.told = append(b.told, stamp(b.fake.Now())+" "+what)
	want, got := f(b.real), f(b.test)
	if (want == nil) != (got == nil) || want != nil && !alike(want, got) {
		b.fail("the error of PostgreSQL is %v, that of scheduletest %v", want, got)
	}
	b.settle()
}

// alike reports whether two errors are the same to an application.
func alike(a, b error) bool {
	for _, sentinel := range []error{schedule.ErrExists, schedule.ErrNotFound} {
		if errors.Is(a, sentinel) != errors.Is(b, sentinel) {
			return false
		}
	}
	plain := func(err error) string { // ids are used up by what is refused, too
		return numbered.ReplaceAllString(strings.ReplaceAll(err.Error(), scheduletest.Group, group), "job")
	}
	return plain(a) == plain(b)
}

var numbered = regexp.MustCompile(`job \d+`)

// silent says nothing: in these tests runs fail on purpose.
func silent() schedule.Option {
	return schedule.WithLogger(slog.New(slog.DiscardHandler))
}

// settle has both do what is due, and compares.
func (b *both) settle() {
	b.t.Helper()
	for late := time.After(patience); ; { // an end of a run may be under way still, where nothing is due
		rows, _ := b.db.Query(context.Background(), `WITH d AS (SELECT key, due, kind, trying FROM pgleases.schedules UNION ALL SELECT key, due, kind, trying FROM pgleases.jobs)
			SELECT key, coalesce((trying ->> 'crashes')::int, 0) > 0, kind = 'one' AND $1 > 0 OR kind = 'two' AND $2 > 1 FROM d, public.test_clock WHERE due <= now`, b.bed.asleep("one"), b.bed.asleep("two"))
		due, err := pgx.CollectRows(rows, pgx.RowToStructByPos[dueKey])
		ok(b.t, err)
		settled := b.bed.settled(due)
		settled = !b.takeOff() && settled // in this order: an end that comes in between is seen the next time
		b.fake.Advance(0)
		want, got := b.real.seen(b.t, b.prefix), b.test.seen(b.t, b.prefix)
		if want == got && settled {
			return
		}
		select {
		case <-late:
			b.fail("what is due is done, or sleeps: %t\nPostgreSQL has, and scheduletest has not:\n%s\nscheduletest has, and PostgreSQL has not:\n%s", settled, without(want, got), without(got, want))
		default:
		}
	}
}

// takeOff takes off again what runs and the order of jobs add on the server, and reports whether there was any.
func (b *both) takeOff() (some bool) {
	for _, statement := range []string{
		// A job is due a few microseconds after it was put, so that those of one statement keep their order. In memory it is due at once.
		"UPDATE pgleases.jobs SET due = now FROM public.test_clock WHERE due > now AND due < now + interval '1 ms'",
		again("schedules"), again("jobs"),
	} {
		done, err := b.db.Exec(context.Background(), statement)
		ok(b.t, err)
		some = some || done.RowsAffected() > 0
	}
	return some
}

// again takes off what a run took that is tried again.
func again(table string) string {
	return "UPDATE pgleases." + table + ` SET due = date_trunc('minute', due), trying = jsonb_set(trying, '{again}', to_jsonb(date_trunc('minute', due)))
		WHERE due = (trying ->> 'again')::timestamptz AND due <> date_trunc('minute', due)`
}

// without are the lines of a text that another has not.
func without(text, other string) string {
	lines := strings.Split(other, "\n")
	return strings.Join(slices.DeleteFunc(strings.Split(text, "\n"), func(l string) bool { return slices.Contains(lines, l) }), "\n")
}

func (b *both) fail(format string, args ...any) {
	b.t.Helper()
	b.t.Fatalf("after\n  %s\n%s", strings.Join(b.told, "\n  "), fmt.Sprintf(format, args...))
}

// advance moves both clocks on, from one instant at which something is due to the next.
func (b *both) advance(d time.Duration) {
	b.t.Helper()
	b.told = append(b.told, fmt.Sprintf("%s advance %v", stamp(b.fake.Now()), d))
	for end := b.fake.Now().Add(d); b.fake.Now().Before(end); {
		next := end
		if due := one[*time.Time](b.db, "SELECT min(due) FROM (SELECT due FROM pgleases.schedules UNION ALL SELECT due FROM pgleases.jobs) AS d WHERE due < 'infinity' AND due > (SELECT now FROM public.test_clock)"); due != nil && due.Before(end) {
			next = *due
		}
		if wakes := b.bed.next(); !wakes.IsZero() && wakes.Before(next) {
			next = wakes
		}
		b.db.setClock(next)
		b.bed.wake(next)
		b.fake.AdvanceTo(next)
		b.settle()
	}
}

// outage has nothing run for a while.
func (b *both) outage(d time.Duration) {
	b.t.Helper()
	b.told = append(b.told, fmt.Sprintf("%s outage %v", stamp(b.fake.Now()), d))
	b.db.setClock(b.fake.Now().Add(d))
	b.fake.Outage(d)
	b.settle()
}

// A putting is what a schedule is put with.
type putting struct {
	kind, name, does string
	minutes          int
	rule             schedule.Rule
	opts             []schedule.ScheduleOption
}

func (b *both) put(p putting) {
	b.t.Helper()
	b.does(fmt.Sprintf("put %s of %s that does %s, %s, %v", p.name, p.kind, p.does, p.rule, p.opts), func(d *side) error {
		return d.kinds[p.kind].Put(context.Background(), b.prefix+p.name, task{p.does, p.minutes}, p.rule, p.opts...)
	})
}

func (b *both) enqueue(kind, does string, minutes int, opts ...schedule.JobOption) {
	b.t.Helper()
	b.does(fmt.Sprintf("enqueue %s that does %s", kind, does), func(d *side) error {
		id, err := d.kinds[kind].Enqueue(context.Background(), task{does, minutes}, opts...)
		return d.puts(err, id)
	})
}

func (d *side) puts(err error, ids ...int64) error {
	for _, id := range ids {
		if err == nil && !slices.Contains(d.jobs, id) {
			d.jobs = append(d.jobs, id)
		}
	}
	return err
}

// end has nothing of a sequence be left.
func (b *both) end() {
	for _, name := range names {
		_ = b.real.Delete(context.Background(), b.prefix+name)
	}
	b.db.exec("DELETE FROM pgleases.jobs")
	until(b.t, "no run of it is under way", func() bool {
		b.bed.wakeUntil(b.fake.Now().Add(24 * time.Hour)) // longer than any takes
		return b.real.Stats().Running == 0
	})
}

// Both do the same with what a table says.
// Whatever other code is on the search_path too: so much of the package runs here.
func TestScheduletestDoesWhatPostgreSQLDoes(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.makeStrange()
	real, bed := newReal(db)
	hourly, quarters := schedule.Cron("0 * * * *", "UTC"), schedule.Every(15*time.Minute)
	ctx := context.Background()
	for i, test := range []struct {
		what string
		do   func(*both)
	}{
		{"ticks", func(b *both) {
			b.put(putting{"in", "a", "done", 0, quarters, nil})
			b.put(putting{"least", "b", "done", 0, hourly, nil})
			b.put(putting{"most", "c", "done", 0, schedule.Cron("30 2 * * *", "Europe/Berlin"), nil})
			b.advance(3 * time.Hour)
		}},
		{"retries, and what is dead", func(b *both) {
			b.put(putting{"in", "a", "twice", 0, quarters, nil})
			b.put(putting{"least", "b", "fail", 0, hourly, []schedule.ScheduleOption{schedule.PauseAfter(2)}})
			b.put(putting{"most", "c", "fail", 0, hourly, nil})
			b.advance(3 * time.Hour)
			b.does("resume b", func(d *side) error { return d.Resume(ctx, b.prefix+"b", schedule.CatchUp) })
			b.advance(time.Hour)
		}},
		{"what handlers return", func(b *both) {
			b.put(putting{"in", "a", "discard", 0, quarters, nil})
			b.put(putting{"least", "b", "snooze", 0, hourly, nil})
			b.put(putting{"most", "c", "panic", 0, hourly, nil})
			b.advance(2 * time.Hour)
		}},
		{"what handlers put", func(b *both) {
			b.put(putting{"in", "a", "spoils", 0, hourly, nil})
			b.put(putting{"in", "b", "puts", 0, quarters, nil})
			b.put(putting{"in", "c", "puts, and takes it", 3, quarters, nil})
			b.advance(2 * time.Hour)
			b.put(putting{"in", "a", "spoils a savepoint", 0, quarters, nil})
			b.put(putting{"in", "b", "keeps a savepoint that it spoils", 0, quarters, nil})
			b.advance(time.Hour)
		}},
		{"outages, by policy", func(b *both) {
			b.put(putting{"in", "a", "done", 0, hourly, []schedule.ScheduleOption{schedule.MissedAll, schedule.Grace(5 * time.Hour)}})
			b.put(putting{"in", "b", "done", 0, hourly, []schedule.ScheduleOption{schedule.MissedNone}})
			b.put(putting{"least", "c", "done", 0, hourly, []schedule.ScheduleOption{schedule.Grace(20 * time.Minute), schedule.OverlapBuffer}})
			b.advance(90 * time.Minute)
			b.outage(72*time.Hour + time.Minute)
			b.outage(72*time.Hour + 30*time.Minute)
			b.advance(time.Hour)
		}},
		{"pauses and edits", func(b *both) {
			b.put(putting{"in", "a", "done", 0, quarters, nil})
			b.put(putting{"in", "b", "fail", 0, quarters, nil})
			b.advance(20 * time.Minute)
			for _, name := range []string{"a", "b"} {
				b.does("pause "+name, func(d *side) error { return d.Pause(ctx, b.prefix+name) })
			}
			b.advance(time.Hour)
			b.does("resume a", func(d *side) error { return d.Resume(ctx, b.prefix+"a", schedule.FromNow) })
			b.does("resume b", func(d *side) error { return d.Resume(ctx, b.prefix+"b", schedule.CatchUp) })
			b.advance(16 * time.Minute)
			b.put(putting{"least", "b", "done", 0, hourly, nil})
			b.outage(2 * time.Hour)
			b.put(putting{"in", "a", "done", 0, schedule.Every(7 * time.Minute), nil})
			b.advance(time.Hour)
			b.does("delete a", func(d *side) error { return d.Delete(ctx, b.prefix+"a") })
			b.does("delete a again", func(d *side) error { return d.Delete(ctx, b.prefix+"a") })
			b.does("pause a", func(d *side) error { return d.Pause(ctx, b.prefix+"a") })
			b.put(putting{"in", "a", "done", 0, quarters, nil})
			b.advance(time.Hour)
		}},
		{"jobs", func(b *both) {
			b.enqueue("in", "done", 0)
			b.enqueue("least", "fail", 0, schedule.In(5*time.Minute))
			b.enqueue("in", "done", 0, schedule.Unique("u", schedule.Raise), schedule.In(time.Hour))
			b.enqueue("in", "fail", 0, schedule.Unique("u", schedule.Raise))
			b.enqueue("in", "fail", 0, schedule.Unique("u", schedule.Ignore))
			b.enqueue("least", "snooze", 0, schedule.Unique("u", schedule.Raise), schedule.Priority(3))
			b.enqueue("in", "twice", 0, schedule.Unique("u", schedule.Replace), schedule.In(2*time.Minute))
			b.advance(30 * time.Minute)
			b.enqueue("most", "done", 0, schedule.In(10*time.Minute))
			b.does("cancel it", func(d *side) error { return d.Cancel(ctx, d.jobs[len(d.jobs)-1]) })
			b.does("cancel it again", func(d *side) error { return d.Cancel(ctx, d.jobs[len(d.jobs)-1]) })
			b.does("put many", func(d *side) error {
				ids, err := d.kinds["in"].EnqueueMany(ctx, []task{{Does: "done"}, {Does: "discard"}, {Does: "\x00"}}, schedule.Key("one"))
				return d.puts(err, ids...)
			})
			b.advance(2 * time.Hour)
		}},
		{"runs besides the ticks", func(b *both) {
			b.put(putting{"in", "a", "done", 0, quarters, nil})
			b.advance(time.Hour)
			b.does("trigger a", func(d *side) error {
				id, err := d.Trigger(ctx, b.prefix+"a")
				return d.puts(err, id)
			})
			now := b.fake.Now()
			for range 2 {
				b.does("backfill a", func(d *side) error {
					ids, err := d.Backfill(ctx, b.prefix+"a", now.Add(-time.Hour), now)
					return d.puts(err, ids...)
				})
			}
			b.does("backfill what is not past", func(d *side) error {
				_, err := d.Backfill(ctx, b.prefix+"a", now, now.Add(time.Hour))
				return err
			})
			b.does("trigger b, which is not there", func(d *side) error {
				_, err := d.Trigger(ctx, b.prefix+"b")
				return err
			})
		}},
		{"ticks while a run is under way", func(b *both) {
			b.put(putting{"in", "a", "done", 32, quarters, nil})
			b.put(putting{"least", "b", "done", 17, quarters, []schedule.ScheduleOption{schedule.OverlapBuffer}})
			b.put(putting{"most", "c", "done", 52, quarters, []schedule.ScheduleOption{schedule.OverlapBuffer, schedule.MissedAll}})
			b.advance(3 * time.Hour)
		}},
		{"ticks that are retried", func(b *both) {
			b.put(putting{"most", "a", "done", 40, quarters, nil}) // this one ends last
			b.advance(16 * time.Minute)
			b.put(putting{"most", "a", "done", 0, quarters, nil})
			b.advance(15 * time.Minute)
			b.put(putting{"most", "a", "fail", 0, quarters, nil})
			b.advance(30 * time.Minute)
			ticks := b.fake.Entries(b.prefix + "a")
			b.put(putting{"least", "a", "done", 3, quarters, nil})
			for _, e := range ticks {
				for range 2 {
					b.does("retry "+stamp(e.Until), func(d *side) error {
						id, err := d.RetryTick(ctx, b.prefix+"a", e.Until)
						return d.puts(err, id)
					})
				}
			}
			b.does("retry what was not", func(d *side) error {
				_, err := d.RetryTick(ctx, b.prefix+"a", ticks[0].Until.Add(time.Minute))
				return err
			})
			b.advance(time.Hour)
		}},
		{"jobs that are retried", func(b *both) {
			retry := func(i int) {
				b.does(fmt.Sprintf("retry job %d", i), func(d *side) error {
					id, err := d.Retry(ctx, d.jobs[i])
					return d.puts(err, id)
				})
			}
			b.enqueue("most", "fail", 0, schedule.Unique(b.prefix+"u", schedule.Raise), schedule.Priority(2))
			b.enqueue("least", "done", 0, schedule.In(20*time.Minute))
			b.enqueue("in", "done", 0)
			b.enqueue("in", "discard", 4)
			b.does("cancel", func(d *side) error { return d.Cancel(ctx, d.jobs[1]) })
			for i := range 4 {
				retry(i)
			}
			b.enqueue("most", "fail", 30, schedule.Unique(b.prefix+"u", schedule.Raise))
			b.advance(5 * time.Minute)
			for i := range 6 {
				retry(i)
			}
			b.advance(time.Hour)
			retry(0)
			b.advance(time.Hour)
		}},
		{"kinds with a limit", func(b *both) { // no two end at once: which is first is not said
			for i, n := range []schedule.Priority{1, 0, 2} {
				b.enqueue("one", "done", 10+i, schedule.Priority(n))
				b.enqueue("two", "done", 17+3*i, schedule.Priority(n))
			}
			b.put(putting{"one", "a", "done", 4, schedule.Every(7 * time.Minute), nil})
			b.put(putting{"two", "b", "done", 5, schedule.Every(19 * time.Minute), []schedule.ScheduleOption{schedule.MissedAll}})
			b.advance(90 * time.Minute)
		}},
		{"jobs by their priority", func(b *both) { // no two end at once: which is first is not said
			for _, minutes := range []int{10, 13, 17} {
				b.enqueue("least", "done", minutes)
			}
			for i, n := range []schedule.Priority{0, 2, 1, 3, 2} {
				b.enqueue("in", "done", 30+i, schedule.Priority(n))
				b.advance(time.Minute)
			}
			b.put(putting{"in", "a", "done", 1, schedule.Every(30 * time.Minute), nil})
			b.advance(90 * time.Minute)
		}},
		{"jitter", func(b *both) {
			b.put(putting{"in", "a", "done", 0, quarters, []schedule.ScheduleOption{schedule.Jitter(10 * time.Minute)}})
			b.put(putting{"least", "b", "done", 0, quarters, []schedule.ScheduleOption{schedule.Jitter(14 * time.Minute), schedule.MissedAll}})
			b.put(putting{"most", "c", "done", 0, schedule.Every(7 * time.Minute), []schedule.ScheduleOption{schedule.Jitter(24 * time.Hour), schedule.Grace(time.Minute)}})
			b.advance(2 * time.Hour)
			b.outage(5 * time.Hour)
			b.advance(2 * time.Hour)
		}},
		{"a rule that is edited while it runs", func(b *both) {
			b.put(putting{"in", "a", "done", 32, quarters, nil})
			b.advance(46 * time.Minute)
			b.put(putting{"in", "a", "done", 0, hourly, nil})
			b.advance(3 * time.Hour)
		}},
		{"arguments that are edited, and a pause, while they run", func(b *both) {
			b.put(putting{"in", "a", "fail", 7, quarters, nil})
			b.put(putting{"least", "b", "done", 8, quarters, nil})
			b.advance(16 * time.Minute)
			b.put(putting{"in", "a", "done", 0, quarters, nil})
			b.does("pause b", func(d *side) error { return d.Pause(ctx, b.prefix+"b") })
			b.advance(time.Hour)
			b.does("resume b", func(d *side) error { return d.Resume(ctx, b.prefix+"b", schedule.CatchUp) })
			b.advance(time.Hour)
		}},
		{"what is deleted, cancelled or replaced while it runs", func(b *both) {
			b.put(putting{"in", "a", "done", 7, quarters, nil})
			b.enqueue("in", "done", 20, schedule.Unique(b.prefix+"u", schedule.Raise))
			b.enqueue("least", "done", 21, schedule.Unique(b.prefix+"v", schedule.Raise))
			b.advance(16 * time.Minute)
			b.does("delete a", func(d *side) error { return d.Delete(ctx, b.prefix+"a") })
			b.does("cancel", func(d *side) error { return d.Cancel(ctx, d.jobs[1]) })
			b.enqueue("in", "twice", 0, schedule.Unique(b.prefix+"u", schedule.Replace))
			b.advance(time.Hour)
		}},
	} {
		b := newBoth(db, real, bed, fmt.Sprintf("table %d/", i))
		b.told = []string{test.what}
		test.do(b)
		b.end()
	}
}

// Both do the same where processes die.
func TestScheduletestDoesWhatPostgreSQLDoesAfterCrashes(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	bed := &bed{db: db, sleepers: make(map[string]sleeper)}
	const ttl = 3 * time.Second
	real, w := bed.process(ttl)
	b := newBoth(db, real, bed, "crashes/")
	crash := func() {
		b.told = append(b.told, stamp(b.fake.Now())+" crash")
		w.die()
		until(t, "its handlers end", func() bool { return bed.next().IsZero() })
		next, follows := bed.process(ttl)
		next.jobs, next.calls = b.real.jobs, b.real.calls
		dead := w
		t.Cleanup(func() { dead.wire.setCut(false) }) // or its end takes long
		b.real, w = next, follows
		b.fake.Crash(0)
		b.settle()
	}
	hourly := schedule.Every(time.Hour)
	// All in one partition: else what a process begins first depends on which it gains first.
	b.put(putting{"in", "b", "done", 5, hourly, nil})
	b.put(putting{"least", "d", "twice", 7, hourly, nil})
	b.put(putting{"most", "g", "done", 9, hourly, nil})
	b.enqueue("two", "done", 3, schedule.In(90*time.Minute))
	b.advance(62 * time.Minute)
	crash() // while all run
	b.advance(2 * time.Minute)
	crash() // while one that is suspected does
	b.advance(65 * time.Minute)
}

// sequences is how many random ones are tried.
func sequences() int {
	if os.Getenv("PGLEASES_SCHEDULE_TEST_SEQUENCES") != "" {
		var n int
		fmt.Sscan(os.Getenv("PGLEASES_SCHEDULE_TEST_SEQUENCES"), &n)
		return n
	}
	return 6
}

// Both do the same in random sequences of what an application may do.
func TestScheduletestDoesWhatPostgreSQLDoesInAnyOrder(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	real, bed := newReal(db)
	ctx := context.Background()
	n := 0
	rapid.Check(t, func(rt *rapid.T) {
		if n++; n > sequences() {
			return
		}
		b := newBoth(db, real, bed, fmt.Sprintf("random %d/", n))
		defer b.end()
		draw := func(of ...string) string { return rapid.SampledFrom(of).Draw(rt, "word") }
		minutes := func(most int) time.Duration {
			return time.Duration(rapid.IntRange(0, most).Draw(rt, "minutes")) * time.Minute
		}
		does := func() string { return draw("done", "done", "done", "fail", "twice", "discard", "snooze") }
		kind := func() string { return draw("in", "in", "least", "most", "one", "two") }
		for range rapid.IntRange(3, 14).Draw(rt, "steps") {
			name := draw(names...)
			switch draw("put", "put", "put", "advance", "advance", "advance", "outage", "pause", "resume", "delete", "trigger", "backfill", "enqueue", "enqueue", "cancel", "retry", "retry tick") {
			case "put":
				rule := rapid.SampledFrom([]schedule.Rule{schedule.Every(7 * time.Minute), schedule.Every(time.Hour), schedule.Cron("*/20 * * * *", "UTC"), schedule.Cron("30 2 * * *", "Europe/Berlin"),
					schedule.Cron("0 */3 * * MON-WED", "America/New_York")}).Draw(rt, "rule")
				opts := []schedule.ScheduleOption{
					rapid.SampledFrom([]schedule.Missed{schedule.MissedLatest, schedule.MissedNone, schedule.MissedAll}).Draw(rt, "missed"),
					rapid.SampledFrom([]schedule.ScheduleOption{schedule.OverlapSkip, schedule.OverlapBuffer}).Draw(rt, "overlap"),
					schedule.Grace(minutes(3) * 40), schedule.PauseAfter(rapid.IntRange(0, 2).Draw(rt, "pauses after")),
				}
				if rapid.Bool().Draw(rt, "shares its key") {
					opts = append(opts, schedule.Key("shared"))
				}
				b.put(putting{kind(), name, does(), 0, rule, opts})
			case "advance":
				b.advance(minutes(45))
			case "outage":
				b.outage(minutes(20) * 30)
			case "pause":
				b.does("pause "+name, func(d *side) error { return d.Pause(ctx, b.prefix+name) })
			case "resume":
				from := rapid.SampledFrom([]schedule.From{schedule.FromNow, schedule.CatchUp}).Draw(rt, "from")
				b.does(fmt.Sprintf("resume %s from %d", name, from), func(d *side) error { return d.Resume(ctx, b.prefix+name, from) })
			case "delete":
				b.does("delete "+name, func(d *side) error { return d.Delete(ctx, b.prefix+name) })
			case "trigger":
				b.does("trigger "+name, func(d *side) error {
					id, err := d.Trigger(ctx, b.prefix+name)
					return d.puts(err, id)
				})
			case "backfill":
				to := b.fake.Now()
				from := to.Add(-minutes(60) - time.Minute)
				b.does("backfill "+name+" from "+stamp(from), func(d *side) error {
					ids, err := d.Backfill(ctx, b.prefix+name, from, to)
					return d.puts(err, ids...)
				})
			case "enqueue":
				opts := []schedule.JobOption{schedule.In(minutes(10)), schedule.Priority(rapid.IntRange(0, 3).Draw(rt, "priority"))}
				if rapid.Bool().Draw(rt, "unique") {
					taken := rapid.SampledFrom([]schedule.Taken{schedule.Raise, schedule.Ignore, schedule.Replace}).Draw(rt, "taken")
					opts = append(opts, schedule.Unique(b.prefix+"unique", taken))
					b.told = append(b.told, "with a unique key, to "+taken.String())
				}
				b.enqueue(kind(), does(), 0, opts...)
			case "retry":
				if len(b.real.jobs) > 0 {
					i := rapid.IntRange(0, len(b.real.jobs)-1).Draw(rt, "job")
					b.does(fmt.Sprintf("retry job %d", i), func(d *side) error {
						id, err := d.Retry(ctx, d.jobs[i])
						return d.puts(err, id)
					})
				}
			case "retry tick":
				if ticks := b.fake.Entries(b.prefix + name); len(ticks) > 0 {
					tick := rapid.SampledFrom(ticks).Draw(rt, "tick").Until
					b.does("retry "+name+" of "+stamp(tick), func(d *side) error {
						id, err := d.RetryTick(ctx, b.prefix+name, tick)
						return d.puts(err, id)
					})
				}
			case "cancel":
				if len(b.real.jobs) > 0 {
					i := rapid.IntRange(0, len(b.real.jobs)-1).Draw(rt, "job")
					b.does(fmt.Sprintf("cancel job %d", i), func(d *side) error { return d.Cancel(ctx, d.jobs[i]) })
				}
			}
		}
	})
}
