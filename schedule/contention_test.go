package schedule_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/schedule"
)

// 100 writers enqueue jobs of one key while the job runs. Each gets the true result. What was
// enqueued runs once; what was rolled back does not exist.
func TestAHundredWritersOfOneUniqueKeyWhileItRuns(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newFreshDatabase(t)
	w := newWorker(db)
	schedule.InTx(w.Scheduler, "mail", note)
	w.run()
	db.polled()
	enqueuer := testkit.Must(schedule.NewEnqueuer(db.Pool, group))(t)
	putter := schedule.JobsOf[string](enqueuer, "mail")
	db.exec("CREATE TABLE public.orders (n bigint GENERATED ALWAYS AS IDENTITY, name text, job bigint)")
	stop := errors.New("rolled back")
	var puts, refused, undone atomic.Int64
	var wait sync.WaitGroup
	for writer := range 100 {
		wait.Go(func() {
			for n := range 3 {
				name, taken := fmt.Sprintf("%d of %d", n, writer), schedule.OnConflict(rand.N(3))
				put := func(tx pgx.Tx) error {
					id, err := putter.EnqueueTx(context.Background(), tx, name, schedule.WithUnique("inv-7", taken))
					if err != nil {
						return err
					}
					_, err = tx.Exec(context.Background(), `INSERT INTO public.orders (name, job) SELECT $1, j.id
						FROM pgleases.jobs AS j WHERE j.id = $2 AND j.args = to_jsonb($1::text)`, name, id) // else it was ignored
					if err != nil {
						return err
					}
					if n == 1 {
						return stop
					}
					return nil
				}
				err := pgx.BeginFunc(context.Background(), db.Pool, put)
				switch {
				case err == nil:
					puts.Add(1)
				case errors.Is(err, schedule.ErrExists) && taken == schedule.OnConflictReject:
					refused.Add(1)
				case errors.Is(err, stop):
					undone.Add(1)
				default:
					t.Errorf("to put %s with %v: %v", name, taken, err)
				}
			}
		})
	}
	wait.Wait()
	counts(db, "all have ended", 0, "pgleases.jobs")
	const twice = "(SELECT name FROM public.effects GROUP BY name HAVING count(*) > 1) AS e"
	expect(t, db.count(twice), 0, "orders that ran twice")
	unordered := db.count(`public.effects AS e
		WHERE NOT EXISTS (SELECT FROM public.orders AS o WHERE o.name = e.name)`)
	expect(t, unordered, 0, "runs of what was rolled back, refused or ignored")
	unrun := db.count(`(SELECT DISTINCT ON (job) name FROM public.orders ORDER BY job, n DESC) AS last
		WHERE NOT EXISTS (SELECT FROM public.effects AS e WHERE e.name = last.name)`)
	expect(t, unrun, 0, "jobs whose last order did not run")
	expect(t, db.count("pgleases.history WHERE job IS NOT NULL"), int64(len(db.effects())), "outcomes")
	if puts.Load() == 0 || undone.Load() == 0 {
		t.Errorf("%d put, %d refused, %d rolled back: that proves little", puts.Load(), refused.Load(), undone.Load())
	}
}

// Handlers and transactions of an application put jobs and schedules in any order. In a deadlock
// the database ends one transaction: that of a handler is repeated, that of a user returns the
// error. All work is done once.
func TestPutsInAnyOrderResolveDeadlocks(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newFreshDatabase(t)
	db.exec(`CREATE OR REPLACE FUNCTION pgleases.schedule_clock()
			RETURNS timestamptz LANGUAGE sql STABLE AS 'SELECT statement_timestamp()';
		CREATE TABLE public.accounts (n int PRIMARY KEY, puts int NOT NULL DEFAULT 0);
		INSERT INTO public.accounts SELECT generate_series(0, 1);
		GRANT ALL ON public.accounts TO PUBLIC`)
	w := newWorker(db, schedule.WithMaxRunning(2))
	var mail *schedule.Kind[string]
	var books *schedule.Kind[args]
	var began, have atomic.Int64
	met := make(chan struct{})
	ctx := t.Context()
	// shuffled does in random order what locks rows: of the application, of jobs, of schedules.
	shuffled := func(ctx context.Context, tx pgx.Tx) error {
		var all []func() error
		for n := range 2 {
			all = append(all, func() error {
				_, err := tx.Exec(ctx, "UPDATE public.accounts SET puts = puts + 1 WHERE n = $1", n)
				return err
			}, func() error {
				key, later := replacing(fmt.Sprint("later ", n)), schedule.WithDelay(time.Hour)
				_, err := mail.EnqueueTx(ctx, tx, "mail", key, later)
				return err
			}, func() error {
				return books.PutTx(ctx, tx, fmt.Sprint("put ", n), args{rand.Int()}, schedule.Cron("0 0 29 2 *", "UTC"))
			})
		}
		rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		for _, do := range all {
			if err := do(); err != nil {
				return err
			}
		}
		return nil
	}
	mail = schedule.InTx(w.Scheduler, "mail", note)
	books = schedule.InTx(w.Scheduler, "books", func(ctx context.Context, tx pgx.Tx, r schedule.Run[args]) error {
		if n := began.Add(1) - 1; n < 2 { // the first two have an account each, and then want both
			if _, err := tx.Exec(ctx, "SELECT FROM public.accounts WHERE n = $1 FOR UPDATE", n); err != nil {
				return err
			}
			if have.Add(1) == 2 {
				close(met)
			}
			released(ctx, met)
		}
		if err := shuffled(ctx, tx); err != nil {
			return err
		}
		return effect(ctx, tx, r)
	}, schedule.WithMaxAttempts(100, schedule.Backoff(time.Millisecond, 5*time.Millisecond)))
	w.run()
	const handlers, users, each = 4, 1, 2
	var ids []int64
	for range handlers {
		id := testkit.Must(books.Enqueue(ctx, args{}))(t)
		ids = append(ids, id)
	}
	testkit.Receive(t, "two handlers meet", met)
	var wait sync.WaitGroup
	var transactions atomic.Int64
	for range users {
		wait.Go(func() {
			for n := 0; ctx.Err() == nil && n < each; {
				err := pgx.BeginFunc(ctx, db.Pool, func(tx pgx.Tx) error { return shuffled(ctx, tx) })
				switch {
				case err == nil:
					n++
					transactions.Add(1)
				case !slices.Contains([]string{"40P01", "40001", "55P03"}, store.Code(err)): // users try again, too
					t.Error(err)
					return
				}
			}
		})
	}
	for _, id := range ids {
		expect(t, w.outcome(id).Outcome, schedule.OutcomeSucceeded, "outcome of what was in deadlocks")
	}
	wait.Wait()
	expect(t, int64(len(db.effects())), handlers, "effects")
	done := one[int64](db, "SELECT sum(puts)::bigint FROM public.accounts")
	expect(t, done, 2*(handlers+transactions.Load()), "what was put")
	expect(t, db.count("pgleases.jobs"), 2, "jobs that are to come")
}

// The application uses all connections of the pool for a while: polls continue, and due runs are
// late, with no other effect.
func TestAnExhaustedPoolMakesRunsLateAndNothingElse(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	w.Times().Answer = 500 * time.Millisecond
	w.Times().PollLimit = time.Second // on a busy machine the first connection takes that long
	l, calls := newLedger(db, "close"), newLedger(db, "send")
	calls.calls = "at least once"
	testkit.OK(t, schedule.InTx(w.Scheduler, "books", effect).Add("close", args{}, hourly, missedAll))
	mail := schedule.AtLeastOnce(w.Scheduler, "mail", db.send)
	testkit.OK(t, mail.Add("send", args{}, hourly, missedAll))
	w.run().has("close")
	db.polled()
	var taken []*pgxpool.Conn
	for free := true; free; {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		conn, err := w.pool.Acquire(ctx)
		if free = err == nil; free {
			taken = append(taken, conn)
		}
		cancel()
	}
	db.setClock(midnight.Add(2 * time.Hour))
	waits := w.pool.Stat().CanceledAcquireCount()
	testkit.Until(t, "it has not got a connection in time", func() bool {
		return w.pool.Stat().CanceledAcquireCount() > waits+2
	})
	db.polled() // on a connection of its own
	expect(t, db.count("pgleases.history"), 0, "outcomes, without a connection")
	for _, conn := range taken {
		conn.Release()
	}
	l.settled(w.Scheduler).expectOutcomes(outcomes{schedule.OutcomeSucceeded: 2})
	calls.settled(w.Scheduler).expectOutcomes(outcomes{schedule.OutcomeSucceeded: 2})
}

// A partition is wanted elsewhere during a run, which ends within the drain timeout or not. The
// next tick passes meanwhile.
func TestASlowHandlerDuringAHandoff(t *testing.T) {
	t.Parallel()
	for _, test := range testkit.Some([]struct {
		overlap schedule.Overlap
		drain   time.Duration
		outside bool
		want    outcomes
	}{
		{schedule.OverlapSkip, time.Minute, false, outcomes{schedule.OutcomeSucceeded: 2, schedule.OutcomeSkipped: 1}},
		{schedule.OverlapBuffer, time.Minute, false, outcomes{schedule.OutcomeSucceeded: 3}},
		// The run that was broken off is not one that went on meanwhile.
		{schedule.OverlapSkip, 0, false, outcomes{schedule.OutcomeSucceeded: 3}},
		{schedule.OverlapBuffer, 0, false, outcomes{schedule.OutcomeSucceeded: 3}},
		{schedule.OverlapSkip, time.Minute, true, outcomes{schedule.OutcomeSucceeded: 2, schedule.OutcomeSkipped: 1}},
		{schedule.OverlapBuffer, 0, true, outcomes{schedule.OutcomeSucceeded: 3}},
	}...) {
		t.Run(fmt.Sprintf("overlap %d, %v, outside %v", test.overlap, test.drain, test.outside), func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			var atOnce atomic.Int32
			began, end := make(chan struct{}, 10), make(chan struct{})
			start := func(slow bool) *worker {
				w := newWorker(db, schedule.WithDrainTimeout(test.drain))
				work := func(ctx context.Context, done func() error) error {
					if atOnce.Add(1) > 1 {
						t.Error("two runs at once under one key")
					}
					defer atOnce.Add(-1)
					if slow {
						began <- struct{}{}
						released(ctx, end)
						if ctx.Err() != nil {
							return ctx.Err()
						}
					}
					return done()
				}
				call := func(ctx context.Context, r schedule.Run[args]) error {
					return work(ctx, func() error { return db.sent(r) })
				}
				handler := func(ctx context.Context, tx pgx.Tx, r schedule.Run[args]) error {
					return work(ctx, func() error { return effect(ctx, tx, r) })
				}
				var k *schedule.Kind[args]
				if test.outside {
					k = schedule.AtLeastOnce(w.Scheduler, "books", call)
				} else {
					k = schedule.InTx(w.Scheduler, "books", handler)
				}
				testkit.OK(t, k.Add("close", args{}, hourly, schedule.WithOverlap(test.overlap), missedAll))
				return w.run().has("close")
			}
			w := start(true)
			l := newLedger(db, "close")
			db.setClock(midnight.Add(time.Hour))
			testkit.Receive(t, "it runs", began)
			db.setClock(midnight.Add(2 * time.Hour))
			db.polled()
			next := start(false)
			w.stop() // all that it owns is wanted elsewhere
			testkit.Until(t, "the other owns something", func() bool {
				return db.count("pgleases.status WHERE lease = 'schedule/tests' AND owner = $1", next.client.ID()) > 0
			})
			if test.drain > 0 {
				db.polled()
				expect(t, db.count("pgleases.history"), 0, "outcomes while it runs")
				close(end)
			}
			w.close()
			l.settled(next.Scheduler)
			db.setClock(midnight.Add(3 * time.Hour))
			l.settled(next.Scheduler).expectOutcomes(test.want)
		})
	}
}

// An edit waits for another one that deletes its schedule and creates another of the name. It then
// locks the new schedule.
func TestEditLocksRecreatedSchedule(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	k := schedule.InTx(newWorker(db).Scheduler, "books", effect)
	testkit.OK(t, k.Put(t.Context(), "close", args{1}, hourly))
	replaced := db.begin("DELETE FROM pgleases.schedules")
	testkit.OK(t, k.PutTx(t.Context(), replaced, "close", args{2}, hourly))
	edit := db.begin()
	got := make(chan error, 1)
	go func() {
		_, err := edit.Exec(t.Context(), "SELECT pgleases.schedule_get($1, 'close', NULL)", group)
		got <- err
	}()
	db.blocked("it waits for the transaction", "schedule_get")
	testkit.OK(t, replaced.Commit(t.Context()))
	testkit.OK(t, testkit.Receive(t, "it goes on", got))
	expect(t, db.count("(SELECT FROM pgleases.schedules FOR UPDATE SKIP LOCKED) AS s"), 0, "schedules without a lock")
}

// A transaction of the application keeps rows of schedules locked. Jobs and other schedules run
// meanwhile, and those schedules when it has ended.
func TestLockedSchedulesStopNoOther(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db, schedule.WithMaxRunning(2))
	books := schedule.InTx(w.Scheduler, "books", effect)
	letters := schedule.AtLeastOnce(w.Scheduler, "letters", noCall[args])
	names := make([]string, 10)
	var ledgers []*ledger
	for i := range names {
		names[i] = fmt.Sprintf("locked %d", i)
		ledgers = append(ledgers, newLedger(db, names[i]))
		testkit.OK(t, books.Put(t.Context(), names[i], args{}, hourly))
	}
	w.run()
	db.polled()
	edit := db.begin()
	for _, name := range names {
		testkit.OK(t, books.PutTx(t.Context(), edit, name, args{2}, hourly))
	}
	db.setClock(midnight.Add(time.Hour))
	db.polled()
	testkit.Must(books.EnqueueMany(t.Context(), make([]args, 10)))(t)
	testkit.Must(letters.EnqueueMany(t.Context(), make([]args, 10)))(t)
	counts(db, "all jobs have run", 20, "pgleases.history WHERE outcome = 'succeeded'")
	testkit.Until(t, "all that wait for the lock are counted", func() bool {
		return w.Stats().SlowByLock == len(names)
	})
	testkit.OK(t, edit.Rollback(t.Context()))
	for _, l := range ledgers {
		l.settled(w.Scheduler).expectOutcomes(outcomes{schedule.OutcomeSucceeded: 1})
	}
	testkit.Until(t, "none waits, and none runs", func() bool {
		s := w.Stats()
		return s.SlowByLock == 0 && s.OldestRun == 0
	})
}
