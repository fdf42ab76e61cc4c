package schedule_test

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/schedule"
)

// Schedules that the owner cannot run are blocked, with a reason, are not late, and do not stop
// others. A process that can run them does so at once.
func TestWhatAProcessDoesNotKnowWaits(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	grace := schedule.WithGrace(90 * time.Minute)
	maker := newWorker(db) // only puts
	testkit.OK(t, schedule.InTx(maker.Scheduler, "new", effect).Put(t.Context(), "kind", args{}, hourly, grace))
	books := schedule.InTx(maker.Scheduler, "books", effect)
	testkit.OK(t, books.Put(t.Context(), "arguments", args{}, hourly, grace))
	testkit.OK(t, books.Put(t.Context(), "zone", args{}, hourly, grace))
	testkit.OK(t, books.Put(t.Context(), "fine", args{}, hourly))
	db.exec(`UPDATE pgleases.schedules SET args = '{"N": "one"}' WHERE name = 'arguments';
		UPDATE pgleases.schedules SET rule = 'CRON_TZ=Mars/Olympus 0 * * * *' WHERE name = 'zone'`)
	newer := newWorker(db)
	newBooks := schedule.InTx(newer.Scheduler, "books", effect)
	schedule.InTx(newer.Scheduler, "new", effect)
	testkit.OK(t, newBooks.Add("declared", args{}, hourly, grace))
	newer.run().has("declared")
	newer.close()
	ledgers := make(map[string]*ledger)
	for _, name := range []string{"kind", "arguments", "zone", "declared", "fine"} {
		ledgers[name] = newLedger(db, name)
	}

	older := newWorker(db) // after a loss of trust, what is missed anyway gets its outcome
	schedule.InTx(older.Scheduler, "books", effect)
	older.run()
	db.setClock(midnight.Add(time.Hour))
	for name, why := range map[string]string{
		"kind":      `kind "new" is not registered`,
		"arguments": "cannot unmarshal string",
		"zone":      "Mars/Olympus",
		"declared":  "another version",
	} {
		older.waits(name, why)
	}
	s := testkit.Must(older.Get(t.Context(), "declared"))(t)
	const known = "only another version of the code declares it, last noted at 2026-03-02 00:00:00 UTC"
	expect(t, s.Why, known, "why it waits")
	expect(t, s.DeclaredAt.UTC(), midnight, "when it was noted")
	ledgers["fine"].settled(older.Scheduler)
	db.setClock(midnight.Add(72 * time.Hour)) // far beyond the grace
	ledgers["fine"].settled(older.Scheduler)
	ledgers["fine"].expectOutcomes(outcomes{schedule.OutcomeMissed: 70, schedule.OutcomeSucceeded: 2})
	expect(t, db.count("pgleases.history WHERE name <> 'fine'"), 0, "outcomes of what waits")
	older.close()

	db.exec(`UPDATE pgleases.schedules SET args = '{"N": 1}' WHERE name = 'arguments';
		UPDATE pgleases.schedules SET rule = 'CRON_TZ=UTC 0 * * * *' WHERE name = 'zone'`)
	newest := newWorker(db)
	newBooks = schedule.InTx(newest.Scheduler, "books", effect)
	schedule.InTx(newest.Scheduler, "new", effect)
	testkit.OK(t, newBooks.Add("declared", args{}, hourly, grace))
	newest.run()
	for _, name := range []string{"kind", "arguments", "zone", "declared"} {
		ledgers[name].settled(newest.Scheduler)
		ledgers[name].expectOutcomes(outcomes{schedule.OutcomeMissed: 71, schedule.OutcomeSucceeded: 1})
		s := testkit.Must(newest.Get(t.Context(), name))(t)
		expect(t, s.State, schedule.StatePlanned, "state")
	}
}

// If a kind is misspelled, Why of the blocked jobs names it. After the time that a deploy may take,
// the log has one line for each kind, with the registered kinds.
func TestUnknownKindIsLogged(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w, log := newLogged(db)
	ran := make(chan struct{}, 1)
	used := schedule.InTx(w.Scheduler, "used", func(context.Context, pgx.Tx, schedule.Run[string]) error {
		ran <- struct{}{}
		return nil
	})
	schedule.InTx(w.Scheduler, "letters", note)
	schedule.AtLeastOnce(w.Scheduler, "bills", noCall[string])
	w.run()
	testkit.Must(used.Enqueue(t.Context(), ""))(t)
	testkit.Receive(t, "one has run", ran)
	enqueuer := testkit.Must(schedule.NewEnqueuer(db.Pool, group))(t)
	var ids []int64
	for range 3 {
		id := testkit.Must(schedule.JobsOf[string](enqueuer, "lettres").Enqueue(t.Context(), ""))(t)
		ids = append(ids, id)
	}
	const waits = `kind "lettres" is not registered`
	for _, id := range ids {
		testkit.Until(t, "it waits", func() bool {
			j := testkit.Must(w.Job(t.Context(), id))(t)
			return j.Why == waits
		})
	}
	const line = "schedule: blocked, kind not registered"
	expect(t, log.count(line), 0, "lines before a minute is over")
	db.setClock(midnight.Add(90 * time.Second))
	testkit.Until(t, "it is logged", func() bool { return log.count(line) > 0 })
	expect(t, log.count("kind=lettres "), 1, "lines of the kind")
	expect(t, log.count(`registered="[bills letters used]"`), 1, "lines with the kinds that are registered")
	later := midnight.Add(3 * time.Hour)
	db.setClock(later)
	for _, id := range ids {
		becomes(db, "it was checked again", true, "SELECT due > $2 FROM pgleases.jobs WHERE id = $1", id, later)
	}
	expect(t, log.count(line), 1, "lines after hours")
}

// A job of an unknown kind that another session has locked makes polls no more frequent than others.
func TestLockedJobOfUnknownKindIsNotPolledFor(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	enqueuer := testkit.Must(schedule.NewEnqueuer(db.Pool, group, schedule.WithPartitions(4)))(t)
	testkit.Must(schedule.JobsOf[string](enqueuer, "telegraph").Enqueue(t.Context(), ""))(t)
	edit := db.begin("SELECT FROM pgleases.jobs FOR UPDATE")
	w := newWorker(db)
	w.Times().Poll, w.Times().PollPause = time.Second, 100*time.Millisecond // so each try ends before a poll
	since := time.Now()
	w.run()
	const polls = 16
	testkit.Until(t, "it has polled", func() bool { return w.Stats().Polls >= polls })
	if took := time.Since(since); took < polls/4*time.Second {
		t.Errorf("%d polls took %v", polls, took)
	}
	testkit.OK(t, edit.Rollback(t.Context()))
	counts(db, "it is blocked", 1, "pgleases.jobs WHERE blocked_reason <> ''")
}

// With MissedAll, all ticks that passed while a schedule was blocked run, even if the grace is short:
// in another process that can run it, or after an edit.
func TestNoTickIsLateForWaiting(t *testing.T) {
	t.Parallel()
	for _, by := range []string{"another process", "an edit"} {
		t.Run(by, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			w := newWorker(db)
			books := schedule.InTx(w.Scheduler, "books", effect)
			put := func() {
				grace := schedule.WithGrace(time.Minute)
				testkit.OK(t, books.Put(t.Context(), "close", args{1}, hourly, missedAll, grace))
			}
			put()
			db.exec(`UPDATE pgleases.schedules SET args = '{"N": "one"}'`)
			l := newLedger(db, "close")
			w.run()
			db.setClock(midnight.Add(time.Hour))
			w.waits("close", "")
			db.setClock(midnight.Add(50*time.Hour + 30*time.Minute))
			db.polled() // its ticks are overdue
			if by == "an edit" {
				put()
			} else {
				w.close()
				db.exec(`UPDATE pgleases.schedules SET args = '{"N": 1}'`)
				w = newWorker(db)
				schedule.InTx(w.Scheduler, "books", effect)
				w.run()
			}
			l.settled(w.Scheduler).expectOutcomes(outcomes{schedule.OutcomeSucceeded: 50})
			db.setClock(midnight.Add(52*time.Hour + 30*time.Minute)) // now they are late
			l.settled(w.Scheduler).expectOutcomes(outcomes{schedule.OutcomeSucceeded: 50, schedule.OutcomeMissed: 2})
		})
	}
}

// Invalid input returns an error that names it, and is not written.
func TestBadInputIsRefused(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	k := schedule.InTx(w.Scheduler, "books", effect)
	put := func(name string, rule schedule.Rule, opts ...schedule.ScheduleOption) error {
		return k.Put(t.Context(), name, args{}, rule, opts...)
	}
	register := func(name string, opts ...schedule.KindOption) error {
		return schedule.InTx(w.Scheduler, name, effect, opts...).Put(t.Context(), "x", args{}, hourly)
	}
	open := func(group string, opts ...schedule.Option) error {
		return second(schedule.New(t.Context(), w.client, w.pool, group, opts...))
	}
	manage := func(opts ...schedule.Option) error { return second(schedule.Manage(t.Context(), w.pool, "g", opts...)) }
	joins := func(pool *pgxpool.Pool) error { return second(schedule.New(t.Context(), w.client, pool, "g")) }
	channels := schedule.InTx(w.Scheduler, "channels", nothing[chan int])
	anything := schedule.InTx(w.Scheduler, "nul", nothing[any])
	noHandler := schedule.InTx[args](w.Scheduler, "none", nil)
	noCallee := schedule.AtLeastOnce[args](w.Scheduler, "no call", nil)
	retried := schedule.AtMostOnce(w.Scheduler, "pay", noCall[args], tries(2, 1))
	two := `WithPartitions: 0 partitions is out of range: 1 to 65536
schedule: WithDrainTimeout: drain of -1ns is negative`
	for says, err := range map[string]error{
		two: open("g", schedule.WithPartitions(0), schedule.WithDrainTimeout(-1)),

		`name "" is empty`:                           put("", hourly),
		"field 1, the minute":                        put("x", schedule.Cron("60 * * * *", "UTC")),
		"rule is empty":                              put("x", schedule.Rule{}),
		`expression "30 2 31 2 *": it never ticks`:   put("x", schedule.Cron("30 2 31 2 *", "UTC")),
		"grace of -1s":                               put("x", hourly, schedule.WithGrace(-time.Second)),
		"grace of 2562047h47m16.854775s is out of":   put("x", hourly, schedule.WithGrace(math.MaxInt64)),
		"jitter of 25h0m0s":                          put("x", hourly, schedule.WithJitter(25*time.Hour)),
		"Overlap(7)":                                 put("x", hourly, schedule.WithOverlap(schedule.Overlap(7))),
		"Missed(7)":                                  put("x", hourly, schedule.WithMissed(schedule.Missed(7))),
		"option is nil":                              put("x", hourly, nil),
		`key "" is empty`:                            put("x", hourly, schedule.WithKey("")),
		"arguments":                                  channels.Put(t.Context(), "x", make(chan int), hourly),
		`"a\u0000b":1} has a NUL`:                    anything.Add("x", map[string]int{"a\x00b": 1}, hourly),
		"transaction is nil":                         k.PutTx(t.Context(), nil, "x", args{}, hourly),
		"the name is registered already":             register("books"),
		"timeout 0s is out of range":                 register("fast", schedule.WithTimeout(0)),
		"limit of 0 runs at once":                    register("few", schedule.WithMaxConcurrent(0)),
		"limit of 1001 runs at once":                 register("many", schedule.WithMaxConcurrent(1001)),
		`"none": handler is nil`:                     noHandler.Put(t.Context(), "x", args{}, hourly),
		`"no call": handler is nil`:                  noCallee.Put(t.Context(), "x", args{}, hourly),
		"WithMaxAttempts is not valid":               retried.Put(t.Context(), "x", args{}, hourly),
		`group "" is empty`:                          open(""),
		"has 256 bytes":                              open(strings.Repeat("x", 247)),
		"0 partitions":                               open("g", schedule.WithPartitions(0)),
		"more than 6 connections":                    open("g", schedule.WithMaxRunning(6)),
		"retention of 0s and 1m0s":                   open("g", schedule.WithRetention(0, time.Minute)),
		"option of Manage only":                      open("g", schedule.WithReason("why", "")),
		`"elsewhere.clients" does not exist`:         open("g", schedule.WithSchema("elsewhere")),
		"client or pool is nil":                      second(schedule.New(t.Context(), nil, w.pool, "g")),
		"another server, database or schema":         joins(newDatabase(t).Pool),
		`"pgleases.clients" does not exist`:          joins(testkit.Pool(t, pgtest.EmptyDatabase(t))),
		`package schedule in schema "elsewhere"`:     manage(schedule.WithSchema("elsewhere")),
		"WithPartitions means nothing to Manage":     manage(schedule.WithPartitions(7)),
		"reason has 0 bytes, the actor 3: give 1":    manage(schedule.WithReason("", "ann")),
		"reason has 4001 bytes, the actor 0: give 1": manage(schedule.WithReason(strings.Repeat("x", 4001), "")),
		"reason has 3 bytes, the actor 256: give 1":  manage(schedule.WithReason("why", strings.Repeat("x", 256))),
		"manage: pool is nil":                        second(schedule.Manage(t.Context(), nil, "g")),
		`register kind "fast"`:                       w.Run(t.Context()),
		"WithDrainTimeout means nothing to Schema":   second(schedule.Schema(schedule.WithDrainTimeout(time.Second))),
		"WithPartitions means nothing to Migrate":    schedule.Migrate(t.Context(), w.pool, schedule.WithPartitions(1)),
		"ResumeMode(7)": func() error {
			testkit.OK(t, put("fine", hourly))
			testkit.OK(t, w.Pause(t.Context(), "fine"))
			return w.Resume(t.Context(), "fine", 7)
		}(),
	} {
		contains(t, err, says)
	}
	expect(t, one[string](db, "SELECT string_agg(name, ' ') FROM pgleases.schedules"), "fine", "schedules")
	expect(t, db.count("pg_namespace WHERE nspname = 'elsewhere'"), 0, "schemas that were made nevertheless")
}

// brittle has arguments that panic when they are parsed.
type brittle struct{}

func (*brittle) UnmarshalJSON([]byte) error { panic("brit\x00tle") }

// hollow has arguments whose error panics when its text is read.
type hollow struct{}

func (*hollow) UnmarshalJSON([]byte) error { var err *nilPointer; return err }

// A panic while arguments are parsed stops no other run, and its text is shown, whatever it is.
func TestArgumentsThatPanicWait(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	breaks := schedule.InTx(w.Scheduler, "brittle", nothing[brittle])
	testkit.OK(t, breaks.Put(t.Context(), "brittle", brittle{}, hourly))
	yields := schedule.InTx(w.Scheduler, "hollow", nothing[hollow])
	testkit.OK(t, yields.Put(t.Context(), "hollow", hollow{}, hourly))
	testkit.OK(t, schedule.InTx(w.Scheduler, "books", effect).Put(t.Context(), "close", args{}, hourly))
	l := newLedger(db, "close")
	w.run()
	db.setClock(midnight.Add(time.Hour))
	l.settled(w.Scheduler).expectOutcomes(outcomes{schedule.OutcomeSucceeded: 1})
	for name, says := range map[string]string{"brittle": "panic: brit\uFFFDtle", "hollow": "nil pointer"} {
		w.waits(name, says)
	}
}

// The code sets another rule for a schedule whose old zone this host does not know: that schedule
// is blocked, and others run.
func TestUnknownOldRuleStopsNoOther(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	maker := newWorker(db)
	testkit.OK(t, schedule.InTx(maker.Scheduler, "books", effect).Put(t.Context(), "close", args{}, halfPast))
	db.exec(`UPDATE pgleases.schedules SET rule = 'CRON_TZ=Mars/Olympus 30 * * * *'`)
	db.setClock(midnight.Add(10 * time.Minute))
	w, log := newLogged(db)
	books := schedule.InTx(w.Scheduler, "books", effect)
	testkit.OK(t, books.Add("close", args{}, hourly))
	testkit.OK(t, books.Add("fine", args{}, hourly))
	l := newLedger(db, "fine")
	w.run().has("fine")
	db.setClock(midnight.Add(time.Hour))
	l.settled(w.Scheduler).expectOutcomes(outcomes{schedule.OutcomeSucceeded: 1})
	w.waits("close", "Mars/Olympus")
	expect(t, log.count("old rule unknown here"), 1, "lines of the log")
}

// A second Scheduler of the same client and group returns an error, and the first continues.
func TestTwoSchedulersOfOneClient(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	l := w.runs(schedule.InTx(w.Scheduler, "books", effect).Add("close", args{}, hourly))
	db.polled()
	options := []schedule.Option{schedule.WithPartitions(4), schedule.WithoutMigration()}
	second := testkit.Must(schedule.New(t.Context(), w.client, w.pool, group, options...))(t)
	contains(t, second.Run(t.Context()), "another Scheduler of this client")
	db.setClock(midnight.Add(time.Hour))
	l.settled(w.Scheduler).expectOutcomes(outcomes{schedule.OutcomeSucceeded: 1})
}

// More jobs of a kind are blocked than one poll may update: the poll updates some of them, and
// known jobs run.
func TestManyThatWaitStopNobody(t *testing.T) {
	t.Parallel()
	db := newFreshDatabase(t)
	db.exec(`INSERT INTO pgleases.jobs
			(group_name, key, partition, kind, name, trigger, args, priority, at, due, blocked_reason, blocked_since)
			SELECT '` + group + `', n::text, pgleases.partition_for(n::text, 1), 'telegraph', '', 'job', '0', 1, now, now + interval '1 minute', 'unknown', now FROM public.test_clock, generate_series(1, 1200) AS n;
		CREATE TABLE public.woken (n bigint); GRANT ALL ON public.woken TO PUBLIC;
		CREATE FUNCTION public.note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO public.woken SELECT count(*) FROM woken; RETURN NULL; END $$;
		CREATE TRIGGER note AFTER UPDATE ON pgleases.jobs REFERENCING NEW TABLE AS woken FOR EACH STATEMENT EXECUTE FUNCTION public.note()`)
	w := newWorker(db, schedule.WithPartitions(1))
	mail := schedule.InTx(w.Scheduler, "mail", note)
	id := testkit.Must(mail.Enqueue(t.Context(), "known", schedule.WithPriority(3)))(t)
	w.run()
	expect(t, w.outcome(id).Outcome, schedule.OutcomeSucceeded, "outcome")
	woken := func() int64 { return one[int64](db, "SELECT coalesce(max(n), 0) FROM public.woken") }
	testkit.Until(t, "some are woken", func() bool { return woken() > 1 })
	if n := woken(); n > 1000 {
		t.Errorf("%d were woken by one statement", n)
	}
}

// A blocked job is checked again after as long as it has been blocked, so many jobs of an unknown
// kind cost little.
func TestLongBlockedJobsArePolledRarely(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	enqueuer := testkit.Must(schedule.NewEnqueuer(db.Pool, group))(t)
	testkit.Must(schedule.JobsOf[string](enqueuer, "telegraph").Enqueue(t.Context(), "x"))(t)
	newWorker(db).run()
	now := midnight
	for _, pause := range []time.Duration{1, 1, 2, 4, 8, 16, 32, 60, 60} {
		want := now.Add(pause * time.Minute)
		counts(db, fmt.Sprintf("it is due again at %v", want), 1,
			"pgleases.jobs WHERE blocked_reason IS NOT NULL AND due = $1", want)
		now = want
		db.setClock(now)
	}
}

// A process with another number of partitions gets an error with both numbers, and does not affect
// the processes that run.
func TestPartitionCountChangeRefused(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	testkit.OK(t, schedule.InTx(w.Scheduler, "books", effect).Add("close", args{}, hourly))
	w.run().has("close")
	becomes(db, "the group has its number", 4, "SELECT coalesce(max(partitions), 0) FROM pgleases.schedule_groups")
	other := newWorker(db, schedule.WithPartitions(7))
	testkit.OK(t, schedule.InTx(other.Scheduler, "books", effect).Add("other", args{}, hourly))
	err := other.Run(t.Context())
	wraps(t, "Run with another number of partitions", err, pgleases.ErrPartitionCount)
	contains(t, err, "4")
	contains(t, err, "7")
	expect(t, one[string](db, "SELECT string_agg(name, ' ') FROM pgleases.schedules"), "close", "schedules")
	expect(t, one[int64](db, "SELECT partitions::bigint FROM pgleases.schedule_groups"), 4, "partitions")
}

// Many jobs of kinds that a process does not register are blocked page by page: none of them is a
// run, and known jobs behind them run.
func TestUnknownKindsTakeNoRuns(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	const strangers = 2500
	enqueuer := testkit.Must(schedule.NewEnqueuer(db.Pool, group, schedule.WithPartitions(1)))(t)
	for _, kind := range []string{"telegraph", "telex"} {
		testkit.Must(schedule.JobsOf[string](enqueuer, kind).EnqueueMany(t.Context(), make([]string, strangers)))(t)
	}
	w := newWorker(db, schedule.WithPartitions(1))
	mail := schedule.InTx(w.Scheduler, "mail", note)
	testkit.Must(mail.EnqueueMany(t.Context(), make([]string, 10)))(t)
	w.wire.Count("schedule_open")
	w.run()
	counts(db, "the known jobs have run", 10, "pgleases.history WHERE outcome = 'succeeded'")
	counts(db, "the others are blocked", strangers, `pgleases.jobs
		WHERE blocked_reason = 'kind "telegraph" is not registered' AND due = blocked_since + interval '1 minute'`)
	counts(db, "those too", strangers, `pgleases.jobs WHERE blocked_reason = 'kind "telex" is not registered'`)
	if n := w.wire.Counted(); n > 20 {
		t.Errorf("%d runs were opened, for 10 known jobs", n)
	}
}

// Handlers that ignore the end of their context keep their keys and partitions, and others get their
// places, on a pool whose connections they have taken too.
func TestRunsThatIgnoreTheirContextGiveTheirPlaces(t *testing.T) {
	for _, kind := range []string{"InTx", "AtLeastOnce"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			w := newWorker(db, schedule.WithMaxRunning(2))
			w.Times().Overrun = 10 * time.Millisecond
			end := make(chan struct{})
			let := sync.OnceFunc(func() { close(end) })
			t.Cleanup(let)
			hang := func(context.Context, schedule.Run[args]) error {
				<-end
				return nil
			}
			deaf := register(w, kind, "deaf", hang, schedule.WithTimeout(100*time.Millisecond))
			books := schedule.InTx(w.Scheduler, "books", nothing[args])
			testkit.Must(deaf.EnqueueMany(t.Context(), make([]args, 4)))(t)
			w.run()
			testkit.Until(t, "their places are given to others", func() bool { return w.Stats().Overdue == 4 })
			testkit.Must(books.EnqueueMany(t.Context(), make([]args, 20)))(t)
			counts(db, "the others run", 20, "pgleases.history WHERE outcome = 'succeeded'")
			expect(t, db.count("pgleases.history WHERE kind = 'deaf'"), 0, "runs that have ended")
			expect(t, w.Stats().Kinds["deaf"].Begun, 4, "calls")
			let()
			testkit.Until(t, "all have ended", func() bool { return w.Stats().Overdue == 0 })
		})
	}
}

// So do handlers that ignore their context in a transaction of Guarded.
func TestRunsThatHangInGuardedGiveTheirPlaces(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db, schedule.WithMaxRunning(2))
	w.Times().Overrun = 10 * time.Millisecond
	end := closer(t)
	deaf := schedule.AtLeastOnce(w.Scheduler, "deaf", func(ctx context.Context, r schedule.Run[args]) error {
		return r.Guarded(ctx, func(pgx.Tx) error { <-end; return nil })
	}, schedule.WithTimeout(200*time.Millisecond))
	books := schedule.InTx(w.Scheduler, "books", nothing[args])
	testkit.Must(deaf.EnqueueMany(t.Context(), make([]args, 12)))(t)
	w.run()
	testkit.Until(t, "places are given to others", func() bool { return w.Stats().Overdue >= 6 })
	testkit.Must(books.EnqueueMany(t.Context(), make([]args, 20)))(t)
	counts(db, "the others run", 20, "pgleases.history WHERE kind = 'books' AND outcome = 'succeeded'")
}

// lazy has arguments whose reading ends when a test lets it.
type lazy struct{}

var lazyEnds = make(chan struct{})

func (*lazy) UnmarshalJSON([]byte) error { <-lazyEnds; return nil }

// A run whose arguments are read late has given its place, so it takes one for its handler as others do.
func TestRunsWithArgumentsReadLateTakePlaces(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db, schedule.WithMaxRunning(1))
	w.Times().Overrun = 10 * time.Millisecond
	end := sync.OnceFunc(func() { close(lazyEnds) })
	t.Cleanup(end)
	var now atomic.Int64
	h := schedule.InTx(w.Scheduler, "lazy", func(context.Context, pgx.Tx, schedule.Run[lazy]) error {
		defer now.Add(-1)
		if n := now.Add(1); n > 1 {
			return fmt.Errorf("%d handlers at once", n)
		}
		time.Sleep(10 * time.Millisecond) // the work
		return nil
	}, schedule.WithTimeout(2*time.Second))
	testkit.Must(h.EnqueueMany(t.Context(), make([]lazy, 4)))(t)
	w.run()
	testkit.Until(t, "all are read for long", func() bool { return w.Stats().Overdue == 4 })
	end()
	counts(db, "each is called alone", 4, "pgleases.history WHERE kind = 'lazy' AND outcome = 'succeeded'")
}

// endless has arguments whose reading ends when a test lets it.
type endless struct{}

var endlessEnds = make(chan struct{})

func (*endless) UnmarshalJSON([]byte) error { <-endlessEnds; return nil }

// A decoder of arguments that does not return is seen as a handler is.
func TestArgumentsThatAreReadForLongAreSeen(t *testing.T) {
	t.Parallel()
	w, log := newLogged(newDatabase(t))
	w.Times().Overrun = 0
	end := sync.OnceFunc(func() { close(endlessEnds) })
	t.Cleanup(end)
	stuck := schedule.AtLeastOnce(w.Scheduler, "stuck", noCall[endless], schedule.WithTimeout(time.Millisecond))
	testkit.Must(stuck.Enqueue(t.Context(), endless{}))(t)
	w.run()
	const line = "arguments still being read after the timeout"
	testkit.Until(t, "it is named", func() bool { return log.count(line) > 0 })
	expect(t, w.Stats().Running, 1, "running")
	testkit.Until(t, "its place is given to others", func() bool { return w.Stats().Overdue == 1 })
	expect(t, log.count("arguments read after the timeout"), 0, "lines that say that they were read")
	end()
	testkit.Until(t, "its end is named", func() bool { return log.count("arguments read after the timeout") > 0 })
}

// leaving has arguments whose reading ends the goroutine.
type leaving struct{}

func (*leaving) UnmarshalJSON([]byte) error { runtime.Goexit(); return nil }

// A decoder of arguments ends its goroutine: that is an error, and others run.
func TestArgumentsThatEndTheirGoroutineWait(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db, schedule.WithMaxRunning(1))
	gone := schedule.InTx(w.Scheduler, "leaving", nothing[leaving])
	testkit.OK(t, gone.Put(t.Context(), "leaving", leaving{}, hourly))
	testkit.OK(t, schedule.InTx(w.Scheduler, "books", effect).Put(t.Context(), "close", args{}, hourly))
	l := newLedger(db, "close")
	w.run()
	db.setClock(midnight.Add(time.Hour))
	w.waits("leaving", "runtime.Goexit")
	l.settled(w.Scheduler).expectOutcomes(outcomes{schedule.OutcomeSucceeded: 1})
}
