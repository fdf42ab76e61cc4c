package schedule_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/timeguard"
	"github.com/pgleases/pgleases/schedule"
)

// Owners of a dozen schedules crash in a handler, at the commit, and between runs; close; and hand
// over while handlers run.
func TestOwnerChangesKeepOutcomesExact(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	const schedules = 6
	inHandler := make(chan *worker, 1000) // who is in a handler now
	start := func() *worker {
		w := newWorker(db, schedule.WithDrainTimeout(time.Minute))
		books := schedule.InTx(w.Scheduler, "books", func(ctx context.Context, tx pgx.Tx, r schedule.Run[args]) error {
			inHandler <- w
			return effect(ctx, tx, r)
		}, schedule.WithIdleTimeout(time.Second))
		for i := range schedules {
			testkit.OK(t, books.Add(fmt.Sprint("close ", i), args{i}, hourly, missedAll, buffered))
		}
		return w.run()
	}
	var ledgers []*ledger
	for i := range schedules {
		ledgers = append(ledgers, newLedger(db, fmt.Sprint("close ", i)))
	}
	now := midnight
	pass := func(hours int) {
		for len(inHandler) > 0 {
			<-inHandler
		}
		now = now.Add(time.Duration(hours) * time.Hour)
		db.setClock(now)
	}
	w := start().has("close 5")
	for _, end := range []func(*worker){
		(*worker).crash,
		func(w *worker) { w.wire.Lose(1, "commit", false); w.crash() },
		(*worker).close,
		(*worker).end,
	} {
		pass(3)
		testkit.Receive(t, "a handler runs", inHandler)
		next := start() // takes half of it over meanwhile
		pass(2)
		end(testkit.Receive(t, "a handler runs", inHandler)) // either of them
		w, next = next, start()
		pass(2)
		for _, l := range ledgers {
			l.settled(next.Scheduler) // w may have crashed
		}
		next.close()
		w.close()
		w = start()
	}
	for _, l := range ledgers {
		l.settled(w.Scheduler)
		l.expectOutcomes(map[schedule.Outcome]int64{schedule.OutcomeSucceeded: int64(now.Sub(midnight) / time.Hour)})
	}
}

// The lock of Guard, while the handler runs: a takeover waits for it.
func TestNobodyOwnsThePartitionOfARunThatIsUnderWay(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	took := make(chan error, 1)
	books := schedule.InTx(w.Scheduler, "books", func(ctx context.Context, tx pgx.Tx, r schedule.Run[args]) error {
		// As a takeover does:
		_, err := db.Exec(ctx, "SELECT FROM pgleases.partitions WHERE partition = $1 FOR UPDATE NOWAIT", r.Partition)
		took <- err
		return effect(ctx, tx, r)
	})
	l := w.runs(books.Add("close", args{}, hourly))
	db.setClock(midnight.Add(time.Hour))
	if err := testkit.Receive(t, "the handler ran", took); !store.LockTimeout(err) {
		t.Fatalf("to take the partition over in the middle of a run: %v, not a lock timeout", err)
	}
	l.settled(w.Scheduler)
}

// The process was frozen in the handler, so the server ended its transaction, and another process
// has run the tick. What the first one does afterwards is not committed.
func TestAFrozenHandlerDoesNotCommit(t *testing.T) {
	t.Parallel()
	timeguard.Run(t, aFrozenHandlerDoesNotCommit)
}

func aFrozenHandlerDoesNotCommit(t *timeguard.Try) {
	t.Brief(2 * time.Second)
	db := newDatabase(t)
	frozen, thaw := make(chan struct{}), make(chan struct{})
	first := true
	w := newBriefWorker(db)
	wakeUp := sync.OnceFunc(func() { close(thaw) })
	t.Cleanup(wakeUp) // a try that ends before waits for no handler
	woke := make(chan error, 1)
	books := schedule.InTx(w.Scheduler, "books", func(ctx context.Context, tx pgx.Tx, r schedule.Run[args]) error {
		err := effect(ctx, tx, r)
		if first {
			first = false
			close(frozen)
			<-thaw
			err = effect(ctx, tx, r)
			woke <- err
			return nil
		}
		return err
	}, schedule.WithIdleTimeout(200*time.Millisecond))
	l := w.runs(books.Add("close", args{}, hourly, missedAll))
	db.setClock(midnight.Add(time.Hour))
	testkit.Receive(t, "the handler runs", frozen)
	w.wire.Cut() // it hears nothing more
	other := newWorker(db)
	others := schedule.InTx(other.Scheduler, "books", effect)
	testkit.OK(t, others.Add("close", args{}, hourly, missedAll))
	other.run()
	l.settled(other.Scheduler)
	w.wire.Mend()
	wakeUp()
	if err := testkit.Receive(t, "it woke up", woke); err == nil {
		t.Fatal("the transaction of a handler that was frozen for longer than its idle limit goes on")
	}
	w.close()
	db.setClock(midnight.Add(3 * time.Hour))
	l.settled(other.Scheduler).expectOutcomes(map[schedule.Outcome]int64{schedule.OutcomeSucceeded: 3})
}

// An ownership ends between two runs, and the process has not noticed: the guard refuses the second.
func TestARunOfAnEndedOwnershipDoesNotBegin(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	ran := make(chan int64, 10)
	books := schedule.InTx(w.Scheduler, "books", func(ctx context.Context, tx pgx.Tx, r schedule.Run[args]) error {
		ran <- r.Epoch
		return effect(ctx, tx, r)
	})
	l := w.runs(books.Add("close", args{}, hourly))
	db.setClock(midnight.Add(time.Hour))
	l.settled(w.Scheduler) // the first run in a partition has a guard of its own
	before := testkit.Receive(t, "it ran", ran)
	rolledBack := func() int64 {
		return one[int64](db, "SELECT xact_rollback FROM pg_stat_database WHERE datname = current_database()")
	}
	rollbacks := rolledBack()
	db.exec("UPDATE pgleases.partitions SET epoch = epoch + 100") // of another owner
	db.setClock(midnight.Add(2 * time.Hour))
	testkit.Until(t, "it was refused, or had heard already", func() bool {
		return len(ran) > 0 || rolledBack() > rollbacks
	})
	db.exec("UPDATE pgleases.leases SET generation = generation + 1") // now it hears
	l.settled(w.Scheduler)
	if epoch := testkit.Receive(t, "it ran", ran); epoch <= before {
		t.Fatalf("it ran under epoch %d, which had ended", epoch)
	}
}

// The process crashed during a statement that takes a minute: the server detects that, and the next
// owner does not wait for its end.
func TestAStatementOfADeadProcessHoldsNobodyUp(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db, schedule.WithDrainTimeout(0))
	began := make(chan struct{}, 1)
	k := schedule.InTx(w.Scheduler, "books", func(ctx context.Context, tx pgx.Tx, r schedule.Run[args]) error {
		began <- struct{}{}
		_, err := tx.Exec(ctx, "SELECT pg_sleep(60)")
		return err
	})
	l := w.runs(k.Add("close", args{}, hourly))
	db.setClock(midnight.Add(time.Hour))
	testkit.Receive(t, "the handler runs", began)
	testkit.Until(t, "its statement runs", func() bool {
		return db.sessions("state = 'active' AND query = 'SELECT pg_sleep(60)'") > 0
	})
	w.crash()
	other := newWorker(db)
	testkit.OK(t, schedule.InTx(other.Scheduler, "books", effect).Add("close", args{}, hourly))
	other.run()
	l.settled(other.Scheduler).expectOutcomes(outcomes{schedule.OutcomeSucceeded: 1})
}

// The server falls silent while a process that ends records its runs. After it has lost its
// partitions, no process waits for that.
func TestClosingEndsWithLastOwnership(t *testing.T) {
	t.Parallel()
	timeguard.Run(t, func(t *timeguard.Try) {
		db := newDatabase(t)
		w := newWorker(db)
		k := schedule.InTx(w.Scheduler, "books", effect)
		l := w.runs(k.Put(t.Context(), "close", args{}, hourly))
		db.polled()
		db.setClock(midnight.Add(time.Hour))
		l.settled(w.Scheduler).expectOutcomes(outcomes{schedule.OutcomeSucceeded: 1})
		w.wire.Mute("schedule_end")
		w.stop()
		testkit.Until(t, "it fell silent", func() bool { return w.wire.Left() == 0 })
		db.exec("SELECT pgleases.evict_client('" + w.client.ID() + "', 'no process waits for it')")
		evicted := time.Now()
		testkit.Receive(t, "Run ends", w.ended)
		w.stop = nil
		const most = 8 * time.Second // a statement is waited for as long as 10 s
		if took := time.Since(evicted); took > most {
			t.Missed(evicted, most, "Run ended %v after the process had lost all", took)
		}
	})
}

// A migration has locked the table when a process with many partitions ends: it does not wait once
// for each of them, and sends few statements for all.
func TestClosingWaitsForOneLockOnly(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	timeguard.Run(t, func(t *timeguard.Try) {
		db := newDatabase(t)
		w := newWorker(db, schedule.WithPartitions(32))
		w.Times().LockWait = time.Second
		k := schedule.InTx(w.Scheduler, "books", effect)
		var ledgers []*ledger
		for i := range 24 {
			name := fmt.Sprint("close ", i)
			testkit.OK(t, k.Put(t.Context(), name, args{i}, hourly))
			ledgers = append(ledgers, newLedger(db, name))
		}
		w.run()
		db.setClock(midnight.Add(time.Hour))
		for _, l := range ledgers {
			l.settled(w.Scheduler).expectOutcomes(outcomes{schedule.OutcomeSucceeded: 1})
		}
		begun := one[int](db, "SELECT count(*) FROM pgleases.schedule_owners WHERE begun > ended")
		if begun < 12 {
			t.Fatalf("%d partitions to close", begun)
		}
		db.begin("LOCK TABLE pgleases.schedule_owners IN EXCLUSIVE MODE")
		w.wire.Count("schedule_end(")
		began := time.Now()
		w.end()
		const few = 4 // the first, and one for those that came while it waited for the lock
		if sent := w.wire.Counted(); sent < 1 || sent > few {
			t.Missed(began, w.Times().LockWait, "%d statements for %d partitions", sent, begun)
		}
		const most = 9 * time.Second
		if took := time.Since(began); took > most {
			t.Missed(began, most, "Run ended after %v, with %d partitions to close", took, begun)
		}
	})
}

// An application edits two schedules in its transaction while a process that owns both ends and
// counts a crash of each. Neither is broken off, and the crashes are taken back after the edit.
func TestAnEditIsBrokenOffByNoProcessThatCloses(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	began, let := make(chan string, 10), make(chan struct{})
	start := func(opts ...schedule.Option) (*worker, *schedule.Kind[args]) {
		w := newWorker(db, append(opts, schedule.WithDrainTimeout(0))...)
		k := schedule.InTx(w.Scheduler, "books", func(ctx context.Context, tx pgx.Tx, r schedule.Run[args]) error {
			began <- r.Name
			if r.Name != "plain" {
				<-let
			}
			return nil
		}, schedule.WithIdleTimeout(time.Minute), schedule.WithTimeout(time.Minute))
		return w, k
	}
	w, k := start()
	low, high := db.keyIn(1), db.keyIn(2)
	testkit.OK(t, k.Put(t.Context(), low, args{}, hourly))
	testkit.OK(t, k.Put(t.Context(), high, args{}, hourly))
	w.run()
	db.setClock(midnight.Add(time.Hour))
	testkit.Receive(t, "one runs", began)
	testkit.Receive(t, "the other runs", began)
	w.crash()
	w, k = start()
	w.run()
	testkit.Receive(t, "one runs again", began)
	testkit.Receive(t, "the other runs again", began)
	crashes := func() int { return one[int](db, "SELECT sum(crashes) FROM pgleases.schedules") }
	expect(t, crashes(), 2, "crashes, while they run")
	testkit.OK(t, k.Put(t.Context(), "plain", args{}, hourly, schedule.WithKey(db.keyIn(0))))
	db.setClock(midnight.Add(2 * time.Hour))
	testkit.Receive(t, "the plain one runs", began)
	becomes(db, "it is done", true, "SELECT EXISTS (SELECT FROM pgleases.history WHERE name = 'plain')")

	edit := db.begin()
	lock := func(name string) error {
		_, err := edit.Exec(t.Context(), "SELECT FROM pgleases.schedules WHERE name = $1 FOR UPDATE", name)
		return err
	}
	testkit.OK(t, lock(high))
	held := db.begin("LOCK TABLE pgleases.schedule_owners IN EXCLUSIVE MODE")
	waits := func() bool { return db.sessions("wait_event_type = 'Lock' AND query LIKE '%schedule_end%'") > 0 }
	w.stop()
	testkit.Until(t, "a partition is being closed", waits)
	close(let)
	// Together, as far as they are: but for these two, no transaction is left.
	testkit.Until(t, "the others are to be closed, too", func() bool {
		return db.sessions("state = 'idle in transaction'") == 2
	})
	testkit.OK(t, held.Rollback(t.Context()))
	testkit.Until(t, "that of the other schedule is being closed", func() bool {
		return db.count("pgleases.schedule_owners WHERE begun > ended") < 3 && waits()
	})
	testkit.Must(edit.Exec(t.Context(), "SET LOCAL deadlock_timeout = '10ms'"))(t)
	if err := lock(low); err != nil {
		t.Errorf("an edit: %v", err)
	}
	testkit.OK(t, edit.Rollback(t.Context()))
	testkit.Receive(t, "Run ends", w.ended)
	w.stop = nil
	expect(t, crashes(), 0, "crashes, after all was closed")
	begun := db.count("pgleases.schedule_owners WHERE begun > ended")
	expect(t, begun, 0, "partitions whose owner seems to have crashed")
}

// A process that ends keeps the partitions with runs, and no other.
func TestWhoEndsKeepsOnlyThePartitionsOfItsRuns(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	ends := func(ctx context.Context, _ schedule.Run[args]) error { return ctx.Err() }
	begun, end, handler := halting(nil, inside(ends))
	start := func() *worker {
		w := newWorker(db, schedule.WithDrainTimeout(time.Minute))
		k := schedule.InTx(w.Scheduler, "books", handler)
		testkit.OK(t, k.Put(t.Context(), "close", args{}, hourly))
		return w.run()
	}
	ending := start().has("close")
	db.setClock(midnight.Add(time.Hour))
	kept := testkit.Receive(t, "it runs", begun).Partition
	start()
	ending.stop()
	const others = "pgleases.partitions WHERE owner_id <> $1"
	counts(db, "the others are owned by the other", 3, others, ending.client.ID())
	its := one[int](db, "SELECT partition FROM pgleases.partitions WHERE owner_id = $1", ending.client.ID())
	expect(t, its, kept, "partition of the run")
	close(end)
	if err := testkit.Receive(t, "it ends", ending.ended); !errors.Is(err, context.Canceled) {
		t.Errorf("Run returned %v, not the end of its context", err)
	}
	ending.ended <- nil // for close
	counts(db, "all are owned by the other", 4, others, ending.client.ID())
	expect(t, db.count("pgleases.history WHERE outcome = 'succeeded'"), 1, "runs that are done")
}

// The application closes the pool too early: Run ends, so that another process gets the partitions.
func TestRunEndsWithItsPool(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	closes := func(context.Context, schedule.Run[args]) error {
		w.pool.Close()
		return nil
	}
	closing := schedule.AtMostOnce(w.Scheduler, "closing", closes)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go func() { w.ended <- w.Run(ctx) }()
	testkit.Must(closing.Enqueue(t.Context(), args{}))(t)
	err := testkit.Receive(t, "Run ends", w.ended)
	contains(t, err, "the pool is closed: closed pool; close it after Run has returned")
	counts(db, "its partitions are free", 0, "pgleases.partitions WHERE owner IS NOT NULL")
}

// A run that its process does not finish, because it stops or has lost the partition, is no attempt.
// So the log is all that remains of its call.
func TestBrokenOffRunIsLogged(t *testing.T) {
	t.Parallel()
	evict := func(w *worker) { w.db.exec("SELECT pgleases.evict_client('" + w.client.ID() + "', 'for this test')") }
	brokenOff := func(cause string) string {
		return `msg="schedule: run broken off, repeated" .*job=%d .*kind=books .*cause="` + cause
	}
	for name, c := range map[string]struct {
		end   func(*worker)
		line  string // where %d is the job
		fails bool   // what the handler does when its context ends
		with  string
	}{
		"stopped in a transaction": {(*worker).end, brokenOff("the run did not end in time"), true, "InTx"},
		"stopped outside of one":   {(*worker).end, brokenOff("the run did not end in time"), true, "AtLeastOnce"},
		"evicted in a transaction": {evict, brokenOff("trust in .*evicted"), true, "InTx"},
		"evicted after its success": {
			evict,
			`msg="schedule: outcome not recorded, run repeated" .*job=%d .*kind=books .*error="trust in .*evicted`,
			false, "AtLeastOnce",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, log := newDatabase(t), new(lines)
			w := newWorker(db, schedule.WithDrainTimeout(10*time.Millisecond), log.option())
			began := make(chan struct{}, 1)
			work := func(ctx context.Context, _ schedule.Run[args]) error {
				began <- struct{}{}
				<-ctx.Done()
				if c.fails {
					return ctx.Err()
				}
				return nil
			}
			books := register(w, c.with, "books", work)
			w.run()
			id := testkit.Must(books.Enqueue(t.Context(), args{}))(t)
			testkit.Receive(t, "it runs", began)
			c.end(w)
			if w.stop != nil {
				testkit.Receive(t, "Run ends", w.ended)
				w.stop = nil
			}
			line := regexp.MustCompile(fmt.Sprintf(c.line, id))
			if log.matches(line) != 1 || log.count("repeated\"") != 1 {
				t.Errorf("want one line %s in\n%s", line, log.buf.String())
			}
		})
	}
}

// The process has to stop, or is evicted, while it waits for the answer to the commit of a run. The
// run is committed, so it is not repeated, and the log does not say so.
func TestRunBrokenOffDuringItsCommit(t *testing.T) {
	t.Parallel()
	evict := func(w *worker) { w.db.exec("SELECT pgleases.evict_client('" + w.client.ID() + "', 'for this test')") }
	for name, end := range map[string]func(*worker){"stopped": func(w *worker) { w.stop() }, "evicted": evict} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, log := newFreshDatabase(t), new(lines)
			w := newWorker(db, schedule.WithDrainTimeout(10*time.Millisecond), log.option())
			began, ended, lose := make(chan struct{}, 1), make(chan struct{}, 1), func() {}
			// a run of the same ownership, whose context ends with it
			wait := func(ctx context.Context, _ schedule.Run[args]) error {
				began <- struct{}{}
				<-ctx.Done()
				ended <- struct{}{}
				return ctx.Err()
			}
			beside := schedule.InTx(w.Scheduler, "beside", inside(wait))
			books := schedule.InTx(w.Scheduler, "books", func(context.Context, pgx.Tx, schedule.Run[args]) error {
				lose = w.wire.LoseLate("commit\x00")
				return nil
			})
			keys := one[[]string](db, `SELECT array_agg(k::text) FROM generate_series(1, 100) AS k
				WHERE pgleases.partition_for(k::text, 4) = 0`)
			testkit.OK(t, books.Put(t.Context(), "close", args{}, hourly, schedule.WithKey(keys[1])))
			w.run()
			testkit.Must(beside.Enqueue(t.Context(), args{}, schedule.WithJobKey(keys[0])))(t)
			testkit.Receive(t, "the other runs", began)
			db.setClock(midnight.Add(time.Hour))
			counts(db, "it is committed", 1, "pgleases.history WHERE outcome = 'succeeded'")
			end(w)
			testkit.Receive(t, "the ownership ends", ended)
			lose()
			testkit.Receive(t, "Run ends", w.ended)
			w.stop = nil
			const perhaps = `run broken off during its commit, perhaps committed" .*kind=books .*name=close .*cause=`
			line := regexp.MustCompile(`msg="schedule: ` + perhaps)
			if log.matches(line) != 1 || log.matches(regexp.MustCompile(`repeated" .*kind=books`)) != 0 {
				t.Errorf("want one line %s in\n%s", line, log.buf.String())
			}
		})
	}
}
