package schedule_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/schedule"
)

type outcomes = map[schedule.Outcome]int64

// No process runs for three days.
func TestWhatBecomesOfTicksInAnOutage(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	type policy struct {
		opts []schedule.ScheduleOption
		want outcomes
	}
	policyOf := func(missed, done int64, opts ...schedule.ScheduleOption) policy {
		want := outcomes{schedule.OutcomeMissed: missed, schedule.OutcomeSucceeded: done}
		maps.DeleteFunc(want, func(_ schedule.Outcome, n int64) bool { return n == 0 })
		return policy{opts, want}
	}
	noneMissed := schedule.WithMissed(schedule.MissedNone)
	policies := map[string]policy{
		"latest":                             policyOf(71, 1),
		"latest, of the last minute":         policyOf(72, 0, schedule.WithGrace(time.Minute)),
		"latest, of the last hour":           policyOf(71, 1, schedule.WithGrace(time.Hour)),
		"none":                               policyOf(72, 0, noneMissed),
		"none, but of the last hour":         policyOf(71, 1, noneMissed, schedule.WithGrace(time.Hour)),
		"all":                                policyOf(0, 72, missedAll),
		"all, side by side with runs before": policyOf(0, 72, missedAll, buffered),
		"all of a day":                       policyOf(48, 24, missedAll, schedule.WithGrace(24*time.Hour)),
	}
	add := func(w *worker) {
		k := schedule.InTx(w.Scheduler, "books", func(ctx context.Context, tx pgx.Tx, r schedule.Run[args]) error {
			if r.At.Equal(midnight.Add(72*time.Hour)) && r.Name == "latest" && r.Missed != 71 {
				t.Errorf("%s: the run of %v stands for %d missed ticks, not 71", r.Name, r.At, r.Missed)
			}
			return effect(ctx, tx, r)
		})
		for name, policy := range policies {
			testkit.OK(t, k.Add(name, args{}, hourly, policy.opts...))
		}
	}
	ledgers := make(map[string]*ledger)
	for name := range policies {
		ledgers[name] = newLedger(db, name)
	}
	w := newWorker(db)
	add(w)
	w.run().has("none")
	w.close()
	const outage = 72*time.Hour + 30*time.Minute
	db.setClock(midnight.Add(outage))
	w = newWorker(db)
	add(w)
	w.run()
	for name, l := range ledgers {
		l.settled(w.Scheduler).expectOutcomes(policies[name].want)
	}
	db.setClock(midnight.Add(outage + 30*time.Minute + 59*time.Second)) // a tick in time
	for name, l := range ledgers {
		policies[name].want[schedule.OutcomeSucceeded]++
		l.settled(w.Scheduler).expectOutcomes(policies[name].want)
	}
}

// A run takes as long as three ticks.
func TestTicksWhileTheRunBeforeIsUnderWay(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	atOne := func(r schedule.Run[args]) bool { return r.At.Equal(midnight.Add(time.Hour)) }
	began, end, handler := halting(atOne, effect)
	k := schedule.InTx(w.Scheduler, "books", handler)
	want := map[string]outcomes{
		"skip":       {schedule.OutcomeSucceeded: 2, schedule.OutcomeSkipped: 3},
		"buffer":     {schedule.OutcomeSucceeded: 3, schedule.OutcomeMissed: 2},
		"buffer all": {schedule.OutcomeSucceeded: 5},
	}
	skip, buffer, all := newLedger(db, "skip"), newLedger(db, "buffer"), newLedger(db, "buffer all")
	testkit.OK(t, k.Add("skip", args{}, hourly))
	testkit.OK(t, k.Add("buffer", args{}, hourly, buffered))
	testkit.OK(t, k.Add("buffer all", args{}, hourly, buffered, missedAll))
	w.run().has("skip")
	db.setClock(midnight.Add(time.Hour))
	for range 3 {
		testkit.Receive(t, "it runs", began)
	}
	db.setClock(midnight.Add(4 * time.Hour))
	db.polled() // until the process knows when its runs end
	close(end)
	for _, l := range []*ledger{skip, buffer, all} {
		l.settled(w.Scheduler)
	}
	db.setClock(midnight.Add(5 * time.Hour))
	for _, l := range []*ledger{skip, buffer, all} {
		l.settled(w.Scheduler).expectOutcomes(want[l.name])
	}
}

// lines is a log.
type lines struct {
	mu  sync.Mutex // guards buf
	buf bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

// count returns how many lines have a text.
func (l *lines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.buf.String(), text)
}

// matches returns how many lines match a pattern.
func (l *lines) matches(pattern *regexp.Regexp) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(pattern.FindAll(l.buf.Bytes(), -1))
}

// option makes a scheduler log to l.
func (l *lines) option() schedule.Option {
	return schedule.WithLogger(slog.New(slog.NewTextHandler(l, nil)))
}

// newLogged returns a worker and what its scheduler logs.
func newLogged(db *database, opts ...schedule.Option) (*worker, *lines) {
	db.t.Helper()
	log := new(lines)
	db.t.Cleanup(func() {
		if db.t.Failed() {
			db.t.Log(log.buf.String())
		}
	})
	return newWorker(db, append(opts, log.option())...), log
}

func TestHandlerAfterItsContextIsLogged(t *testing.T) {
	t.Parallel()
	w, log := newLogged(newDatabase(t))
	w.Times().Overrun = 0
	end := make(chan struct{})
	let := sync.OnceFunc(func() { close(end) })
	t.Cleanup(let)
	hang := func(context.Context, schedule.Run[args]) error {
		<-end
		return nil
	}
	stuck := schedule.AtLeastOnce(w.Scheduler, "stuck", hang, schedule.WithTimeout(time.Millisecond))
	testkit.Must(stuck.Enqueue(t.Context(), args{}))(t)
	w.run()
	// On a slow machine, a line about the arguments comes before it.
	handler := regexp.MustCompile(`handler still running after its context ended.* kind=stuck `)
	testkit.Until(t, "it is named", func() bool { return log.matches(handler) == 1 })
	expect(t, log.count("handler returned"), 0, "lines that say that it has returned")
	let()
	const line = `level=INFO msg="schedule: handler returned after its context ended" .* kind=stuck .*for=`
	returned := regexp.MustCompile(line)
	testkit.Until(t, "its end is named", func() bool { return log.matches(returned) > 0 })
	expect(t, log.count("name="), 0, "lines with a name, of a job without one")
}

// What could not be written because tables were locked is logged once, and once that it was written.
func TestEndsOfWhatCouldNotBeWrittenAreLogged(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newFreshDatabase(t)
	w, log := newLogged(db)
	w.Times().Trim, w.Times().Declare = 20*time.Millisecond, 20*time.Millisecond
	w.Times().LockWait = 100 * time.Millisecond
	began, end := make(chan struct{}), make(chan struct{})
	slot := schedule.AtLeastOnce(w.Scheduler, "mail", func(context.Context, schedule.Run[args]) error {
		began <- struct{}{}
		<-end
		return nil
	}, schedule.WithMaxConcurrent(1))
	testkit.OK(t, slot.Add("close", args{}, hourly))
	w.run()
	testkit.Must(slot.Enqueue(t.Context(), args{}))(t)
	testkit.Receive(t, "it runs", began)
	for _, c := range []struct{ table, begin, end string }{
		{"schedule_slots", "slot not freed, retried", "slot freed"},
		{"history", "history not trimmed, retried each minute", "history trimmed again"},
		{"schedules", "declarations not noted, retried each hour", "declarations noted again"},
	} {
		other := db.begin("LOCK TABLE pgleases." + c.table + " IN EXCLUSIVE MODE")
		if c.table == "schedule_slots" {
			close(end)
		}
		begun := func() int { return log.count(`level=WARN msg="schedule: ` + c.begin) }
		ended := func() int { return log.count(`level=INFO msg="schedule: ` + c.end + `" `) }
		testkit.Until(t, c.begin, func() bool { return begun() == ended()+1 })
		testkit.OK(t, other.Rollback(t.Context()))
		testkit.Until(t, c.end, func() bool { return begun() == ended() })
	}
	w.end()
}

// The database's clock is wrong by 8 h for a moment, while time passes here as usual: no run begins
// because of it.
func TestAClockThatIsWrongForAMomentIsDoubted(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w, log := newLogged(db)
	w.Times().ClockDoubt = time.Minute
	db.setClock(midnight.Add(59*time.Minute + 30*time.Second))
	l := w.runs(schedule.InTx(w.Scheduler, "books", effect).Add("close", args{}, hourly, missedAll))
	db.polled()
	for i, wrong := range []time.Duration{8 * time.Hour, -8 * time.Hour} {
		db.setClock(midnight.Add(wrong))
		testkit.Until(t, "it is doubted", func() bool {
			return log.count("clock unstable") == i+1 && w.Stats().ClockUnstable
		})
		db.polled()
		expect(t, db.count("pgleases.history"), 0, "outcomes by a clock that is wrong")
		db.setClock(midnight.Add(59*time.Minute + 40*time.Second))
		testkit.Until(t, "it is believed", func() bool {
			return log.count("clock trusted again") == i+1 && !w.Stats().ClockUnstable
		})
	}
	db.setClock(midnight.Add(60*time.Minute + 1*time.Second))
	l.settled(w.Scheduler).expectOutcomes(outcomes{schedule.OutcomeSucceeded: 1})
}

// The database's clock steps permanently. Forward: the ticks that it passes are late. Back: no tick
// runs twice, and the schedule continues when the clock is back where it was.
func TestAClockThatStepsForGood(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	w, log := newLogged(db)
	w.Times().ClockDoubt = 50 * time.Millisecond
	l := w.runs(schedule.InTx(w.Scheduler, "books", effect).Add("close", args{}, hourly, missedAll))
	db.polled()
	db.setClock(midnight.Add(8 * time.Hour))
	l.settled(w.Scheduler).expectOutcomes(outcomes{schedule.OutcomeSucceeded: 8})
	for hour := range 9 {
		db.setClock(midnight.Add(time.Duration(hour) * time.Hour))
		testkit.Until(t, "the step is believed", func() bool { return log.count("clock trusted again") == hour+2 })
		db.polled()
		expect(t, db.count("public.effects"), 8, "effects")
	}
	testkit.OK(t, w.Pause(t.Context(), "close"))
	db.setClock(midnight)
	testkit.Until(t, "the step is believed", func() bool { return log.count("clock trusted again") == 11 })
	testkit.OK(t, w.Resume(t.Context(), "close", schedule.ResumeFromNow)) // neither runs, nor cancels, what has run
	db.polled()
	db.setClock(midnight.Add(9 * time.Hour))
	l.settled(w.Scheduler).expectOutcomes(outcomes{schedule.OutcomeSucceeded: 9})
}

// A schedule is committed long after it was written, so its due time is far in the past.
func TestAScheduleThatIsCommittedLateIsFound(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	w.Times().Sweep = 50 * time.Millisecond
	k := schedule.InTx(w.Scheduler, "books", effect)
	w.run()
	l := newLedger(db, "late")
	testkit.OK(t, pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
		err := k.PutTx(t.Context(), tx, "late", args{}, hourly)
		db.setClock(midnight.Add(3 * time.Hour))
		db.polled()
		return err
	}))
	l.settled(w.Scheduler).expectOutcomes(outcomes{schedule.OutcomeMissed: 2, schedule.OutcomeSucceeded: 1})
}

// While the clock is behind, the zone of a rule changes from Tokyo to UTC: the local time of the
// last tick must not count for the new rule.
func TestAnotherZoneWhileTheClockIsBehind(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	k := schedule.InTx(w.Scheduler, "books", effect)
	l := w.runs(k.Put(t.Context(), "close", args{}, schedule.Cron("0 0-22 * * *", "Asia/Tokyo")))
	db.setClock(midnight.Add(time.Hour)) // 10:00 in Tokyo
	l.settled(w.Scheduler)
	db.setClock(midnight.Add(30 * time.Minute))
	testkit.OK(t, k.Put(t.Context(), "close", args{}, schedule.Cron("0 0-22 * * *", "UTC")))
	db.setClock(midnight.Add(2 * time.Hour))
	l.settled(w.Scheduler).expectOutcomes(outcomes{schedule.OutcomeSucceeded: 2})
}

// The clock is wrong by 8 h when a run ends: the ticks of those hours are not skipped for that.
func TestAClockThatIsWrongWhenARunEnds(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w, log := newLogged(db)
	w.Times().ClockDoubt = time.Minute
	began, end, handler := halting(nil, effect)
	k := schedule.InTx(w.Scheduler, "books", handler)
	l := newLedger(db, "close")
	l.should = func(after, until time.Time) (ticks []time.Time) {
		for t := after.Truncate(40 * time.Second).Add(40 * time.Second); !t.After(until); t = t.Add(40 * time.Second) {
			ticks = append(ticks, t)
		}
		return ticks
	}
	testkit.OK(t, k.Put(t.Context(), "close", args{}, schedule.Every(40*time.Second)))
	w.run()
	db.polled()
	db.setClock(midnight.Add(40 * time.Second))
	testkit.Receive(t, "it runs", began)
	db.setClock(midnight.Add(8 * time.Hour))
	testkit.Until(t, "it is doubted", func() bool { return log.count("clock unstable") == 1 })
	close(end)
	counts(db, "the run has ended", 1, "pgleases.history")
	db.setClock(midnight.Add(40 * time.Second))
	testkit.Until(t, "it is believed", func() bool { return log.count("clock trusted again") == 1 })
	db.setClock(midnight.Add(80 * time.Second))
	l.settled(w.Scheduler).expectOutcomes(outcomes{schedule.OutcomeSucceeded: 2})
}

// The host's clock is set forward while the process runs, without an effect.
func TestTheDateOfTheHostDoesNotMatter(t *testing.T) {
	then := time.Now()
	set := then
	*(*uint64)(unsafe.Pointer(&set)) += 3600 << 30 // the seconds of its date, beside which it has the time that passed
	expect(t, set.Round(0).Sub(then.Round(0)), time.Hour, "how far the clock was set forward")
	expect(t, set.Sub(then), 0, "what has passed")
	expect(t, schedule.ServerTime(midnight, then, set).Sub(midnight), 0, "what has passed for the database")
}

// The next tick has passed, but jitter delays it. The tick before is too late by now, even though
// the next one has not run.
func TestJitteredTickAndEarlierLateTick(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	k := schedule.InTx(w.Scheduler, "books", effect)
	name, due := "", time.Time{}
	// Until the tick of 2:00 is held back for more than ten minutes.
	for i := 0; due.Before(midnight.Add(130 * time.Minute)); i++ {
		name = fmt.Sprint("close ", i)
		db.setClock(midnight.Add(90 * time.Minute))
		testkit.OK(t, k.Put(t.Context(), name, args{}, hourly, schedule.WithJitter(50*time.Minute)))
		s := testkit.Must(w.Get(t.Context(), name))(t)
		due = s.Due
		testkit.OK(t, w.Delete(t.Context(), name))
	}
	db.setClock(midnight)
	l := newLedger(db, name)
	jitter, grace := schedule.WithJitter(50*time.Minute), schedule.WithGrace(15*time.Minute)
	testkit.OK(t, k.Put(t.Context(), name, args{}, hourly, jitter, grace))
	db.setClock(midnight.Add(130 * time.Minute)) // 70 minutes after the tick of 1:00, which is run for 65
	w.run()
	counts(db, "the tick of 1:00 has its outcome", 1, "pgleases.history")
	counts(db, "it is missed", 1, "pgleases.history WHERE outcome = 'missed'")
	db.setClock(due.Add(-3 * time.Second))
	db.polled()
	expect(t, db.count("pgleases.history"), 1, "outcomes while the tick of 2:00 is held back")
	db.setClock(due)
	l.settled(w.Scheduler).expectOutcomes(outcomes{schedule.OutcomeMissed: 1, schedule.OutcomeSucceeded: 1})
}

// A poll for everything, or for a fresh partition, takes too long, as with many dead entries in an
// index. Other polls still find what is due.
func TestSlowPollStopsNoOther(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	for name, long := range map[string]string{
		"everything":      "since_us < 0 AND coalesce(cardinality(fresh), 0) = 0",
		"a new partition": "1 = ANY (fresh)",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newFreshDatabase(t)
			db.beforePolls("IF " + long + " THEN PERFORM pg_sleep(10); END IF")
			w, log := newLogged(db)
			w.Times().PollLimit = 500 * time.Millisecond
			w.Times().Sweep = time.Second
			k := schedule.InTx(w.Scheduler, "books", effect)
			l := newLedger(db, "close")
			testkit.OK(t, k.Put(t.Context(), "close", args{}, hourly, schedule.WithKey(db.keyIn(2))))
			w.run()
			testkit.Until(t, "a poll took too long", func() bool { return log.count("poll failed") > 0 })
			db.setClock(midnight.Add(time.Hour))
			l.settled(w.Scheduler).expectOutcomes(outcomes{schedule.OutcomeSucceeded: 1})
		})
	}
}

// A job is committed 9 s after it was enqueued, while polls continue: the next poll that reads far
// behind finds it.
func TestAJobThatIsCommittedLateIsFoundSoon(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	w.Times().Sweep = time.Hour
	mail := schedule.InTx(w.Scheduler, "mail", note)
	w.run()
	db.polled()
	var id int64
	testkit.OK(t, pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) (err error) {
		id, err = mail.EnqueueTx(t.Context(), tx, "late")
		for i := range 10 {
			db.setClock(midnight.Add(time.Duration(i) * time.Second))
			db.polled()
		}
		return err
	}))
	expect(t, w.outcome(id).Outcome, schedule.OutcomeSucceeded, "outcome")
}

// The index has dead entries far behind, because of an old snapshot: polls read them once a second
// only, however often jobs are enqueued.
func TestPollFarBehindOnceASecond(t *testing.T) {
	t.Parallel()
	db := newDirectDatabase(t)
	db.notePolls("since_us bigint", "since_us")
	w := newWorker(db, schedule.WithPartitions(1))
	w.Times().Poll = time.Minute
	mail := schedule.InTx(w.Scheduler, "mail", note)
	w.run()
	for range 5 {
		id := testkit.Must(mail.Enqueue(t.Context(), "now"))(t)
		expect(t, w.outcome(id).Outcome, schedule.OutcomeSucceeded, "outcome")
	}
	since := midnight.Add(-5 * time.Second).UnixMicro()
	polled := func(where string) int64 {
		return db.count("public.polls WHERE since_us "+where+" $1", since)
	}
	if n := polled(">"); n < 3 {
		t.Errorf("%d polls after the enqueueing", n)
	}
	if n := polled("<="); n > 2 { // one at everything
		t.Errorf("%d polls far behind, in less than the time between two", n)
	}
}

// A poll that passes over blocked keys takes too long, as with millions of jobs of one key. The
// next polls pass over none, and other partitions continue.
func TestSlowPollThatLeavesOutStopsNoOther(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newFreshDatabase(t)
	db.beforePolls("IF cardinality(but) > 0 THEN PERFORM pg_sleep(10); END IF")
	w, log := newLogged(db)
	w.Times().PollLimit = time.Second
	w.Times().Sweep = time.Hour
	began, goOn, handler := halting(nil, effect)
	defer close(goOn)
	books := schedule.InTx(w.Scheduler, "books", handler)
	mail := schedule.InTx(w.Scheduler, "mail", note)
	testkit.Must(books.EnqueueMany(t.Context(), make([]args, 250), schedule.WithJobKey(db.keyIn(1))))(t)
	w.run()
	testkit.Receive(t, "one runs", began)
	testkit.Until(t, "a poll took too long", func() bool { return log.count("poll failed") > 0 })
	id := testkit.Must(mail.Enqueue(t.Context(), "elsewhere", schedule.WithJobKey(db.keyIn(2))))(t)
	expect(t, w.outcome(id).Outcome, schedule.OutcomeSucceeded, "outcome of what is in another partition")
}

// notePolls makes each poll insert a value into a column of the table polls.
func (db *database) notePolls(column, value string) {
	db.exec("CREATE TABLE public.polls (n bigint GENERATED ALWAYS AS IDENTITY, " + column + `);
		GRANT INSERT ON public.polls TO PUBLIC`)
	db.beforePolls("INSERT INTO public.polls VALUES (DEFAULT, " + value + ")")
}

// beforePolls makes each poll begin with a statement of PL/pgSQL.
func (db *database) beforePolls(statement string) {
	const arguments = "(text, int[], int[], bigint, bigint, bigint[], int[], int, int, " +
		"text[], text[], bigint[], bigint[])"
	db.exec(`ALTER FUNCTION pgleases.schedule_poll` + arguments + ` RENAME TO schedule_look_before;
		CREATE FUNCTION pgleases.schedule_poll(g text, p int[], fresh int[], since_us bigint, h bigint, further bigint[], most int[], few int, total int, but text[], but_kinds text[],
			schedules bigint[], jobs bigint[], OUT clock_us bigint, OUT took_us bigint,
			OUT id bigint[], OUT job boolean[], OUT priority int[], OUT partition int[], OUT key text[], OUT kind text[], OUT due_us bigint[], OUT crashes int[], OUT gone_schedules bigint[], OUT gone_jobs bigint[]) LANGUAGE plpgsql AS $$ BEGIN
			` + statement + `;
			SELECT l.* INTO clock_us, took_us, id, job, priority, partition, key, kind, due_us, crashes, gone_schedules, gone_jobs
			FROM pgleases.schedule_look_before(g, p, fresh, since_us, h, further, most, few, total, but, but_kinds, schedules, jobs) AS l; END $$;
		GRANT EXECUTE ON FUNCTION pgleases.schedule_poll` + arguments + `, pgleases.schedule_look_before` + arguments + ` TO PUBLIC`)
}

// Jobs that were found begin while a poll is under way, however long that takes.
func TestRunsDoNotWaitForPoll(t *testing.T) {
	t.Parallel()
	db := newFreshDatabase(t)
	db.beforePolls("PERFORM pg_advisory_xact_lock_shared(7)")
	w := newWorker(db, schedule.WithPartitions(1), schedule.WithMaxRunning(1)) // so one poll finds both jobs
	w.Times().PollLimit = time.Hour
	began, goOn := make(chan struct{}, 2), make(chan struct{})
	k := schedule.InTx(w.Scheduler, "books", func(ctx context.Context, tx pgx.Tx, r schedule.Run[args]) error {
		began <- struct{}{}
		<-goOn
		return nil
	})
	ids := testkit.Must(k.EnqueueMany(t.Context(), make([]args, 2)))(t)
	w.run()
	<-began
	holder := db.begin("SELECT pg_advisory_xact_lock(7)")
	db.blocked("a poll waits", "schedule_poll")
	close(goOn)
	select {
	case <-began:
	case <-time.After(testkit.Patience):
		t.Error("the second job has not begun while a poll is under way")
	}
	testkit.OK(t, holder.Rollback(t.Context()))
	for _, id := range ids {
		testkit.Until(t, "the job is done", func() bool {
			j, err := w.Job(t.Context(), id)
			testkit.OK(t, err)
			return j.Outcome == schedule.OutcomeSucceeded
		})
	}
}
