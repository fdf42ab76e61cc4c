package schedule_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/timeguard"
	"github.com/pgleases/pgleases/schedule"
)

// A gate counts runs that are under way over all processes of a test.
type gate struct {
	mu          sync.Mutex
	inside, top int
}

func (g *gate) enter() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inside++
	g.top = max(g.top, g.inside)
}

func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inside--
}

func (g *gate) highest() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.top
}

// Over several processes, no more runs of a kind are under way than its limit, or the higher limit
// if two versions differ. That many do run, and each job succeeds.
func TestNoMoreRunsAtOnceThanTheLimit(t *testing.T) {
	t.Parallel()
	for _, calls := range testkit.Some("in a transaction", "outside") {
		t.Run(calls, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			var g gate
			var once sync.Once
			most := make(chan struct{}) // closed when as many have been under way as may be
			// hold waits until then, and for an event of the database, that takes a little.
			hold := func(ctx context.Context) {
				if g.highest() == 3 {
					once.Do(func() { close(most) })
				}
				select {
				case <-most:
				case <-ctx.Done():
				}
				_, _ = db.Exec(ctx, "SELECT pg_sleep(0.005)")
			}
			start := func(limit int) *schedule.Kind[string] {
				w := newWorker(db, schedule.WithMaxRunning(5))
				opts := []schedule.KindOption{
					schedule.WithMaxConcurrent(limit), schedule.WithMaxCrashes(100), tries(1000, time.Millisecond),
				}
				call := func(ctx context.Context, r schedule.Run[string]) error {
					g.enter()
					defer g.leave()
					hold(ctx)
					_, err := db.Exec(ctx, `INSERT INTO public.effects (name) SELECT $1
						WHERE NOT EXISTS (SELECT FROM public.effects WHERE name = $1)`, r.Args)
					return err
				}
				handler := func(ctx context.Context, tx pgx.Tx, r schedule.Run[string]) error {
					g.enter()
					defer g.leave()
					hold(ctx)
					return note(ctx, tx, r)
				}
				var k *schedule.Kind[string]
				if calls == "outside" {
					k = schedule.AtLeastOnce(w.Scheduler, "mail", call, opts...)
				} else {
					k = schedule.InTx(w.Scheduler, "mail", handler, opts...)
				}
				w.run()
				return k
			}
			start(1)
			start(3)
			k := start(3)
			jobs := testkit.Rounds(60)
			var all []string
			for i := range jobs {
				all = append(all, fmt.Sprint(i))
			}
			testkit.Must(k.EnqueueMany(t.Context(), all))(t)
			counts(db, "all jobs are done", jobs, "pgleases.history WHERE outcome = 'succeeded'")
			expect(t, len(db.effects()), jobs, "effects")
			expect(t, g.highest(), 3, "runs at once, at most")
		})
	}
}

// A process is cut off during its runs. Its slots stay taken as long as the runs may have effects:
// for a transaction until the server ends it, for a call outside until the partition has another
// owner.
func TestSlotsOfCutOffProcess(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	timeguard.Run(t, slotsOfCutOffProcess)
}

func slotsOfCutOffProcess(t *timeguard.Try) {
	t.Brief(3 * time.Second)
	db := newDatabase(t)
	began := make(chan string, 100)
	start := func(hold bool) *worker {
		w := newWorkerFor(db, 3*time.Second) // if it lost its trust earlier, the runs would be suspect
		wait := func(ctx context.Context, r schedule.Run[string]) {
			began <- r.Args
			if hold {
				<-ctx.Done()
			}
		}
		schedule.InTx(w.Scheduler, "books", func(ctx context.Context, tx pgx.Tx, r schedule.Run[string]) error {
			wait(ctx, r)
			return note(ctx, tx, r)
		}, schedule.WithMaxConcurrent(1), schedule.WithIdleTimeout(2*time.Second))
		schedule.AtLeastOnce(w.Scheduler, "mail", func(ctx context.Context, r schedule.Run[string]) error {
			wait(ctx, r)
			return ctx.Err()
		}, schedule.WithMaxConcurrent(1))
		return w.run()
	}
	w := start(true)
	enqueuer := testkit.Must(schedule.NewEnqueuer(db.Pool, group, schedule.WithPartitions(4)))(t)
	for _, kind := range []string{"books", "mail"} {
		testkit.Must(schedule.JobsOf[string](enqueuer, kind).EnqueueMany(t.Context(), []string{kind, kind}))(t)
	}
	testkit.Receive(t, "a run", began)
	testkit.Receive(t, "a run", began)
	db.polled()
	expect(t, len(began), 0, "runs beyond the limits")
	expect(t, db.count("pgleases.schedule_slots WHERE run IS NOT NULL"), 1, "slots that are written into")
	w.crash()
	start(false)
	counts(db, "all are done", 4, "pgleases.history WHERE outcome = 'succeeded'")
	expect(t, fmt.Sprint(db.effects()), "[books books]", "effects of those in transactions")
	expect(t, db.count("pgleases.schedule_slots"), 2, "slots")
	counts(db, "all slots are free", 0, "pgleases.schedule_slots WHERE run IS NOT NULL")
}

// A run that waits for a slot spends no attempt and no grace. Meanwhile Why says so, it is not
// tried all the time, and later items run.
func TestWhatWaitsForASlotWaitsForFree(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db, schedule.WithPartitions(1))
	began, end, handler := halting(nil, effect)
	books := schedule.InTx(w.Scheduler, "books", handler, schedule.WithMaxConcurrent(1))
	mail := schedule.InTx(w.Scheduler, "mail", note)
	testkit.OK(t, books.Put(t.Context(), "a", args{}, hourly, missedAll, schedule.WithGrace(time.Minute)))
	testkit.OK(t, books.Put(t.Context(), "b", args{}, hourly, missedAll, schedule.WithGrace(time.Minute)))
	l := newLedger(db, "b")
	other := newLedger(db, "a")
	w.run()
	db.setClock(midnight.Add(time.Hour))
	if testkit.Receive(t, "a tick begins", began).Name == "b" {
		l, other = other, l
	}
	w.waits(l.name, "")
	var many []args
	for range 150 { // more than a poll finds
		many = append(many, args{})
	}
	testkit.Must(books.EnqueueMany(t.Context(), many, schedule.WithPriority(3)))(t)
	id := testkit.Must(mail.Enqueue(t.Context(), "behind", schedule.WithPriority(3)))(t)
	expect(t, w.outcome(id).Outcome, schedule.OutcomeSucceeded, "outcome of what is behind those that wait")
	db.setClock(midnight.Add(3*time.Hour + 30*time.Minute))
	w.wire.Count("schedule_take_slot")
	db.polled()
	expect(t, len(began), 0, "runs beyond the limit")
	if n := w.wire.Counted(); n > 50 {
		t.Errorf("a slot was asked for %d times meanwhile", n)
	}
	db.exec("DELETE FROM pgleases.jobs")
	close(end)
	l.settled(w.Scheduler).expectOutcomes(outcomes{schedule.OutcomeSucceeded: 3})
	for _, e := range l.entries {
		expect(t, e.Attempts, 1, "attempts")
	}
}

// Runs without a slot take no room from other kinds, spend no attempt, and are not tried all the
// time.
func TestRunsWithoutASlotTakeNoRoom(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db, schedule.WithPartitions(1), schedule.WithMaxRunning(2))
	w.Times().Poll = 100 * time.Millisecond
	books := schedule.InTx(w.Scheduler, "books", note, schedule.WithMaxConcurrent(2))
	mail := schedule.InTx(w.Scheduler, "mail", note)
	w.run()
	id := testkit.Must(books.Enqueue(t.Context(), "makes the slots"))(t)
	expect(t, w.outcome(id).Outcome, schedule.OutcomeSucceeded, "outcome of the first")
	other := db.begin("SELECT FROM pgleases.schedule_slots FOR UPDATE")
	first := testkit.Must(books.EnqueueMany(t.Context(), make([]string, 150)))(t)
	began := time.Now()
	w.wire.Count("schedule_take_slot")
	for range 20 {
		id := testkit.Must(mail.Enqueue(t.Context(), "beside"))(t)
		expect(t, w.outcome(id).Outcome, schedule.OutcomeSucceeded, "outcome of what is beside those that wait")
	}
	// One run tries at each poll. Each statement has its text twice when it is prepared.
	if n, most := w.wire.Counted(), 50+4*int(time.Since(began)/(100*time.Millisecond)); n > most {
		t.Errorf("a slot was asked for %d times, not %d at most", n, most)
	}
	testkit.OK(t, other.Rollback(t.Context()))
	counts(db, "all are done", 171, "pgleases.history WHERE outcome = 'succeeded'")
	e := testkit.Must(w.Job(t.Context(), first[149]))(t)
	expect(t, e.Attempts, 1, "attempts")
	expect(t, db.count("pgleases.history WHERE attempts <> 1"), 0, "jobs that took more than one")
}

// Polls leave out runs that wait for a slot all the time, and not only every second poll.
func TestBlockedRunsAreLeftOutOfEachPoll(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	for _, waits := range []string{"for a slot", "for a key"} {
		t.Run(waits, func(t *testing.T) {
			t.Parallel()
			db := newFreshDatabase(t)
			db.notePolls("leaves_out boolean", "cardinality(but) + cardinality(but_kinds) > 0")
			w := newWorker(db, schedule.WithPartitions(1))
			w.Times().Sweep = time.Hour
			began, goOn, handler := halting(nil, effect)
			opts, same := []schedule.KindOption{schedule.WithMaxConcurrent(1)}, []schedule.JobOption{}
			if waits == "for a key" {
				opts, same = nil, []schedule.JobOption{schedule.WithJobKey("one")}
			}
			books := schedule.InTx(w.Scheduler, "books", handler, opts...)
			testkit.Must(books.EnqueueMany(t.Context(), make([]args, 250), same...))(t)
			w.run()
			testkit.Receive(t, "one runs", began)
			testkit.Until(t, "it polls often", func() bool { return db.count("public.polls WHERE leaves_out") >= 5 })
			behind := testkit.Must(schedule.InTx(w.Scheduler, "mail", note).Enqueue(t.Context(), "behind"))(t)
			expect(t, w.outcome(behind).Outcome, schedule.OutcomeSucceeded, "outcome of what is behind those that wait")
			const later = "public.polls WHERE NOT leaves_out AND n > (SELECT min(n) FROM public.polls WHERE leaves_out)"
			expect(t, db.count(later), 0, "polls that leave out nothing, after one that did")
			close(goOn)
			counts(db, "all are found in the end", 0, "pgleases.jobs")
		})
	}
}

// Each statement in turn is lost: each job succeeds, no slot stays taken, and the limit holds.
func TestSlotsAreFreeIfStatementsAreLost(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	var g gate
	w := newWorker(db, schedule.WithMaxRunning(5))
	limits := []schedule.KindOption{
		schedule.WithMaxConcurrent(1), schedule.WithIdleTimeout(time.Second),
		schedule.WithMaxCrashes(100), tries(1000, time.Millisecond),
	}
	in := schedule.InTx(w.Scheduler, "books", note, limits...)
	out := schedule.AtLeastOnce(w.Scheduler, "mail", func(ctx context.Context, r schedule.Run[string]) error {
		g.enter()
		defer g.leave()
		return nil
	}, limits...)
	w.wire.Lose(1, "schedule_make_slots", true)
	w.run()
	done := int64(0)
	for _, text := range []string{"schedule_make_slots", "schedule_take_slot", "schedule_free_slot"} {
		for _, after := range []bool{false, true} {
			if text != "schedule_make_slots" {
				w.wire.Lose(1, text, after)
			} else if !after {
				continue // it is sent once in a process
			}
			for _, k := range []*schedule.Kind[string]{in, out} {
				testkit.Must(k.EnqueueMany(t.Context(), make([]string, 5)))(t)
			}
			done += 10
			testkit.Until(t, "the message was lost: "+text, func() bool { return w.wire.Left() == 0 })
			counts(db, "all are done after "+text, done, "pgleases.history WHERE outcome = 'succeeded'")
			counts(db, "all slots are free after "+text, 0, "pgleases.schedule_slots WHERE run IS NOT NULL")
		}
	}
	expect(t, g.highest(), 1, "calls at once, at most")
}

// A limit that is not reached costs each run one statement, which reads a few of the slots and not all.
func TestALimitThatIsNotReachedCostsLittle(t *testing.T) {
	t.Parallel()
	db := newDirectDatabase(t)
	w := newWorker(db, schedule.WithMaxRunning(5))
	k := schedule.InTx(w.Scheduler, "limited", note, schedule.WithMaxConcurrent(1000))
	w.run()
	const jobs = 100
	enqueue := func() { testkit.Must(k.EnqueueMany(t.Context(), make([]string, jobs)))(t) }
	done := func(n int64) {
		counts(db, "all are done", n, "pgleases.history WHERE outcome = 'succeeded' AND kind = 'limited'")
	}
	enqueue()
	done(jobs) // the first run in a partition notes that, in a transaction of its own
	w.wire.Record()
	enqueue()
	done(2 * jobs)
	w.close() // so all is sent that belongs to it
	w.pool.Close()
	runs := 0
	for _, trips := range w.wire.Recorded("schedule_open") {
		for i, sent := range trips {
			if !strings.Contains(sent, "schedule_open") {
				continue
			}
			runs++
			for n, text := range []string{"begin", "schedule_take_slot", "INSERT INTO public.effects", "commit\x00"} {
				if i+n >= len(trips) || !strings.Contains(trips[i+n], text) {
					t.Fatalf("trip %d of a run is without %q: %q", n, text, trips[i:])
				}
			}
		}
	}
	expect(t, runs, jobs, "runs")
	read := db.read("schedule_slots", 2*jobs)
	if most := int64(2 * jobs * 100); read > most { // a session that does not know the table yet plans to read all
		t.Errorf("%d runs read %d slots, not at most %d", 2*jobs, read, most)
	}
}

// A promoted standby may lack the slots that a process has created.
func TestSlotsThatAreGoneAreMadeAgain(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	k := schedule.InTx(w.Scheduler, "ship", nothing[string], schedule.WithMaxConcurrent(1))
	w.run()
	for range 2 {
		testkit.Must(k.Enqueue(t.Context(), "an order"))(t)
		counts(db, "the job is done", 0, "pgleases.jobs")
		testkit.Must(db.Exec(t.Context(), "DELETE FROM pgleases.schedule_slots"))(t)
	}
}

// A slot that cannot be freed holds no place: runs of other kinds go on. Runs that cannot begin
// because of that are tried less and less often, and logged once a minute.
func TestSlotThatIsNotFreedHoldsNoPlace(t *testing.T) {
	t.Parallel()
	db := newFreshDatabase(t)
	w, log := newLogged(db, schedule.WithMaxRunning(2))
	began, end := make(chan struct{}, 2), make(chan struct{})
	calls := schedule.AtLeastOnce(w.Scheduler, "calls", func(ctx context.Context, r schedule.Run[string]) error {
		began <- struct{}{}
		released(ctx, end)
		return nil
	}, schedule.WithMaxConcurrent(2))
	pay := schedule.InTx(w.Scheduler, "pay", note, schedule.WithMaxConcurrent(2))
	mail := schedule.InTx(w.Scheduler, "mail", note)
	w.run()
	testkit.Must(calls.EnqueueMany(t.Context(), make([]string, 2)))(t)
	testkit.Receive(t, "one is called", began)
	testkit.Receive(t, "both are called", began)
	db.exec(`CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''no''; END';
		CREATE TRIGGER refuse BEFORE INSERT OR UPDATE ON pgleases.schedule_slots FOR EACH ROW EXECUTE FUNCTION public.refuse()`)
	close(end)
	id := testkit.Must(mail.Enqueue(t.Context(), "beside"))(t)
	expect(t, w.outcome(id).Outcome, schedule.OutcomeSucceeded, "outcome of another kind")
	since := time.Now()
	w.wire.Count("schedule_make_slots")
	testkit.Must(pay.Enqueue(t.Context(), "a bill"))(t)
	for range 8 {
		db.polled()
	}
	// Each statement has its text twice when it is prepared.
	if n, most := w.wire.Counted(), 2+2*int(time.Since(since)/time.Second); n == 0 || n > most {
		t.Errorf("slots were made %d times, not %d at most", n, most)
	}
	expect(t, log.count("run postponed"), 1, "lines of runs that could not begin")
	db.exec("DROP TRIGGER refuse ON pgleases.schedule_slots")
	counts(db, "all are done", 4, "pgleases.history WHERE outcome = 'succeeded'")
	counts(db, "all slots are free", 0, "pgleases.schedule_slots WHERE run IS NOT NULL")
}

// Slots are created again if none was found, while existing slots are taken and freed, whatever the
// default isolation level.
func TestSlotsAreMadeUnderAnyDefaultOfTransactions(t *testing.T) {
	t.Parallel()
	db := newFreshDatabase(t)
	db.exec(serializable + `;
		INSERT INTO pgleases.schedule_slots (group_name, kind, slot) VALUES ('` + group + `', 'pay', 0)`)
	w, log := newLogged(db)
	done := make(chan struct{}, 1)
	pay := schedule.AtLeastOnce(w.Scheduler, "pay", func(context.Context, schedule.Run[args]) error {
		done <- struct{}{}
		return nil
	}, schedule.WithMaxConcurrent(2))
	held := db.begin("LOCK TABLE pgleases.schedule_slots IN EXCLUSIVE MODE")
	testkit.Must(pay.Enqueue(t.Context(), args{}))(t)
	w.run()
	db.blocked("the slots are being made", "schedule_make_slots")
	testkit.Must(held.Exec(t.Context(), "UPDATE pgleases.schedule_slots SET run = NULL"))(t) // as who frees one
	testkit.OK(t, held.Commit(t.Context()))
	testkit.Receive(t, "it is called", done)
	expect(t, log.count("run postponed"), 0, "lines of runs that could not begin")
}

func TestGroupsOnOnePoolLeaveHalfOfIt(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	log := slog.New(slog.DiscardHandler)
	other, err := schedule.New(t.Context(), w.client, w.pool, "other",
		schedule.WithPartitions(4), schedule.WithoutMigration(), schedule.WithLogger(log))
	testkit.OK(t, err)
	other.Hasten()
	var running atomic.Int32
	end := make(chan struct{})
	var kinds []*schedule.Kind[args]
	run := func(ctx context.Context, _ schedule.Run[args]) error {
		running.Add(1)
		released(ctx, end)
		_, err := w.pool.Exec(ctx, "SELECT 1")
		return err
	}
	for _, s := range []*schedule.Scheduler{w.Scheduler, other} {
		kinds = append(kinds, schedule.InTx(s, "books", inside(run)))
	}
	w.run()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- other.Run(ctx) }()
	testkit.Until(t, "both groups run", func() bool { // they count on the pool only after they have joined
		return w.Stats().Polls > 0 && other.Stats().Polls > 0
	})
	for _, k := range kinds {
		testkit.Must(k.EnqueueMany(t.Context(), make([]args, 6)))(t)
	}
	testkit.Until(t, "they have half of the pool", func() bool { return running.Load() >= 3 })
	db.polled()
	db.polled()
	expect(t, running.Load(), 3, "handlers at once of two groups on a pool of 6")
	close(end)
	counts(db, "all are done", 12, "pgleases.history WHERE outcome = 'succeeded'")
	stop()
	testkit.Receive(t, "the other group ends", ended)
}

// What it costs to take and to free a slot does not grow with the calls that had it before, while
// an old snapshot keeps all row versions.
func TestSlotsBehindAnOldSnapshotCostTheSame(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDirectDatabase(t) // see BlocksRead
	const makes, calls = "SELECT pgleases.schedule_make_slots('" + group + "', 'pay', 3)", 2000
	db.exec(makes)
	old := db.begin("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
	testkit.Must(old.Exec(t.Context(), "SELECT FROM pgleases.schedule_slots"))(t)
	take := "SELECT pgleases.schedule_take_slot('" + group + "', 'pay', 3, 1, 1, 'the call')"
	free := "SELECT pgleases.schedule_free_slot('" + group + "', 'pay', NULL, 'the call', 1000)"
	for range calls {
		db.exec(take)
		db.exec(free)
	}
	for _, statement := range []string{makes, take, free} {
		testkit.BlocksRead(t, db.Pool, statement) // the session may not know the table yet
		tx := testkit.Must(db.Begin(t.Context()))(t)
		n := testkit.BlocksRead(t, tx, statement)
		t.Logf("%s: %d blocks", statement, n)
		testkit.OK(t, tx.Rollback(t.Context()))
		if n > 40 {
			t.Errorf("after %d calls, %s reads %d blocks", calls, statement, n)
		}
	}
	testkit.OK(t, old.Rollback(t.Context()))
}

// A process that was frozen while it made slots holds no other up that finds all that it needs.
func TestSlotsThatAreThereWaitForNobody(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	const makes = "SELECT pgleases.schedule_make_slots('" + group + "', 'pay', %d)"
	db.exec(fmt.Sprintf(makes, 3))
	frozen := db.begin(fmt.Sprintf(makes, 4))
	other := db.begin("SET LOCAL lock_timeout = '100ms'")
	testkit.Must(other.Exec(t.Context(), fmt.Sprintf(makes, 3)))(t)
	testkit.OK(t, other.Rollback(t.Context()))
	testkit.OK(t, frozen.Commit(t.Context()))
	expect(t, db.count("pgleases.schedule_slots"), 4, "slots")
}

// A job that waits makes polls read what has ended since it was due in its own partition, and not in
// all of them, while an old snapshot keeps the rows of the jobs that have ended.
func TestWaitingJobBehindAnOldSnapshotCostsOnePartition(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	const partitions, jobs = 128, 12_800
	db := newDirectDatabase(t) // see BlocksRead
	old := db.begin("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
	testkit.Must(old.Exec(t.Context(), "SELECT FROM pgleases.jobs"))(t)
	poll := func(further string) int {
		t.Helper()
		statement := fmt.Sprintf(`SELECT pgleases.schedule_poll('%s', ARRAY(SELECT generate_series(0, %d)), '{}',
				(extract(epoch FROM pgleases.schedule_clock()) * 1000000)::bigint, 2000000,
				ARRAY(SELECT (%s)::bigint FROM generate_series(0, %[2]d) AS n), array_fill(15, ARRAY[%[4]d]), 1, 2000,
				'{}', '{}', '{}', '{}')`, group, partitions-1, further, partitions)
		testkit.BlocksRead(t, db.Pool, statement) // the session may not know the tables yet
		n := testkit.BlocksRead(t, db.Pool, statement)
		t.Logf("%s: %d blocks", further, n)
		return n
	}
	const waits = "CASE WHEN n = 7 THEN 3600000000 ELSE 0 END"
	before := poll(waits)
	db.exec(fmt.Sprintf(`INSERT INTO pgleases.jobs
			(group_name, key, partition, kind, name, trigger, args, priority, at, due)
		SELECT '%s', 'k' || i, i %% %d, 'mail', 'j' || i, 'api', '{}', 1, d.at, d.at
		FROM generate_series(1, %d) AS i
		CROSS JOIN (SELECT pgleases.schedule_clock() - interval '10 min' AS at) AS d`, group, partitions, jobs))
	db.exec("DELETE FROM pgleases.jobs")
	after, all := poll(waits), poll("3600000000")
	if after > before+3*jobs/partitions || all < before+jobs/2 {
		t.Errorf("%d blocks are read beside a job that waits, %d before, %d if one waits in each partition",
			after, before, all)
	}
	testkit.OK(t, old.Rollback(t.Context()))
}
