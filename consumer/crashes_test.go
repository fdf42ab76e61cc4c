package consumer_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/consumer"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/testkit/clients"
)

const (
	victimOf = "PGLEASES_CONSUMER_VICTIM" // the database of a process that row 100 kills
	// the process is killed by the decoder of a row, not by its handler
	victimDecodes = "PGLEASES_CONSUMER_VICTIM_DECODES=1"
	killed        = 3
	together      = 4 // two rows of a suspect batch were handled side by side, or beside another
)

// victim is a process that row 100 kills.
func victim(url string) error {
	ctx := context.Background()
	config, err := pgtest.ParseConfig(url)
	if err != nil {
		return err
	}
	config.MaxConns = 8
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	client, err := pgleases.NewClient(ctx, pool,
		pgleases.WithoutMigration(), pgleases.WithClientID("victim"),
		pgleases.WithTTL(clients.TTL), pgleases.WithHeartbeat(100*time.Millisecond))
	if err != nil {
		return err
	}
	opts := []consumer.Option{
		consumer.WithoutMigration(), consumer.WithLogger(slog.New(slog.DiscardHandler)),
		consumer.WithPoll(20 * time.Millisecond), consumer.WithBatch(20, 1<<20),
		backoff(time.Millisecond, time.Millisecond),
	}
	var c *consumer.Consumer
	if name, value, _ := strings.Cut(victimDecodes, "="); os.Getenv(name) == value {
		c, err = consumer.New(ctx, client, pool, "orders", outbox, consumer.Each(handleTouchy), opts...)
	} else {
		c, err = consumer.New(ctx, client, pool, "orders", outbox, consumer.InTx(killing), opts...)
	}
	if err != nil {
		return err
	}
	return c.RunUntilEmpty(ctx)
}

// killing is effects, unless row 100 kills the process.
func killing(ctx context.Context, tx pgx.Tx, rows []consumer.Row[Order]) error {
	for _, row := range rows {
		if row.ID == 100 {
			os.Exit(killed)
		}
	}
	return effects(ctx, tx, rows)
}

// A row that kills its process is found, and blocks its key in the end. No row beside it is
// charged.
func TestRowThatKillsItsProcess(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	db.insert(400, 40)
	db.killed(5) // one unnoticed, one with a noted batch, three with the row alone
	expect(t, db.left(), "100,140,180,220,260,300,340,380", "rows that are left")
	blocked := one[string](db, `
		SELECT string_agg(format('%s %s', id, crashes), ',') FROM pgleases.consumer_blocked WHERE next_at = 'infinity'`)
	expect(t, blocked, "100 0", "blocked rows")
	contains(t, db.failure("id = 100"), "3 processes crashed")
	db.exact(392)
}

// killed runs processes until one ends because only blocked rows are left. So many are killed
// before.
func (db *database) killed(want int, env ...string) {
	db.t.Helper()
	for crashes := 0; ; crashes++ {
		process := exec.Command(os.Args[0])
		process.Env = append(append(os.Environ(), victimOf+"="+db.url), env...)
		output, err := process.CombinedOutput()
		switch code := process.ProcessState.ExitCode(); {
		case err == nil:
			db.t.Fatalf("it has ended: %s", output)
		case code == killed && crashes > 10:
			db.t.Fatal("it kills its process without an end")
		case code == killed:
			db.expire("victim", "")
		case !strings.Contains(string(output), "only rows of blocked keys are left"):
			db.t.Fatalf("exit status %d: %s", code, output)
		default:
			expect(db.t, crashes, want, "processes that crashed")
			return
		}
	}
}

// After a crash without a noted batch the next owner notes its batches, until it has passed the
// rows of that time.
func TestWatchEndsBehindTheRowsOfTheCrash(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db, consumer.Each(effect))
	w.run()
	db.becomes("it owns all", partitions, "pgleases.consumer_owners")
	w.crash()
	db.insert(500, 50)
	next := newWorker(db, consumer.Each(effect), consumer.WithBatch(10, 1<<20)).run()
	db.empty("all is handled")
	known := one[bool](db, "SELECT bool_and(crashed IS NOT NULL AND crashed < begun) FROM pgleases.consumer_owners")
	expect(t, known, true, "that the crash is known")
	db.insert(100, 50)
	db.empty("all is handled again")
	db.becomes("no batch is noted any longer", 0, `
		pgleases.consumer_owners WHERE watched_to IS NOT NULL OR note_first IS NOT NULL`)
	testkit.OK(t, next.end())
	db.exact(600)
}

// A process that lost its partitions and lives takes back that it seemed to have crashed, and
// what was charged for it.
func TestLostOwnershipIsNoCrash(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.exec("INSERT INTO public.outbox (customer, payload) SELECT 'c', to_jsonb(i) FROM generate_series(1, 30) AS i")
	in, out := make(chan struct{}), make(chan struct{})
	var first atomic.Bool
	w := newWorker(db, consumer.AtLeastOnce(func(ctx context.Context, rows []consumer.Row[Order]) error {
		if first.CompareAndSwap(false, true) {
			close(in)
			<-out
			return nil
		}
		return db.published(ctx, rows)
	}))
	let := closer(t, out)
	// as if the owner before had crashed
	db.exec(`
		INSERT INTO pgleases.consumer_owners (consumer, partition, begun)
		SELECT 'orders', p, 0 FROM generate_series(0, 7) AS p`)
	w.run()
	testkit.Receive(t, "a batch is in hand", in)
	expect(t, db.count("pgleases.consumer_owners WHERE note_first IS NOT NULL"), 1, "noted batches")
	epoch := one[int64](db, "SELECT begun FROM pgleases.consumer_owners WHERE note_first IS NOT NULL")
	w.evict()
	hold := make(chan struct{})
	other := newWorker(db, consumer.AtLeastOnce(func(ctx context.Context, rows []consumer.Row[Order]) error {
		<-hold
		return db.published(ctx, rows)
	}))
	other.run()
	const crashed = "pgleases.consumer_blocked WHERE crashed = $1"
	db.becomes("its batch is suspect", 30, crashed, epoch)
	let()
	db.becomes("no row is suspect but the one in hand", 0, crashed+" AND crashes = 0", epoch)
	db.becomes("the crash is forgotten", 0, "pgleases.consumer_owners WHERE crashed = $1", epoch)
	close(hold)
	db.empty("all is handled")
	testkit.OK(t, other.end())
	expect(t, one[int64](db, "SELECT count(DISTINCT id) FROM public.effects"), 30, "rows that the next owner handled")
	db.ordered()
}

// crashes checks how many crashes of row 1 are counted, with the attempt under way.
func (db *database) crashes(want int) {
	db.t.Helper()
	got := one[int](db, "SELECT coalesce(max(crashes), -1) FROM pgleases.consumer_blocked WHERE id = 1")
	expect(db.t, got, want, "crashes of the suspect")
}

// suspect inserts row 1, as if an owner had crashed with it in hand.
func (db *database) suspect() {
	db.t.Helper()
	db.insert(1, 1)
	db.crashed(1, 1, 1)
}

// suspected makes all rows suspects, and counts so many crashes for each.
func (db *database) suspected(crashes int) {
	db.t.Helper()
	db.exec(`
		INSERT INTO pgleases.consumer_blocked
			(consumer, partition, id, key, version, attempts, next_at, crashed, crashes)
		SELECT 'orders', partition, id, customer, xmin, 0, now(), 0, $1 FROM public.outbox`, crashes)
}

// A poll that was under way when a suspect's attempt ended does not know that the row is due again.
func TestOldPollEndsNoRun(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	var calls atomic.Int64
	var w *worker
	w = newWorker(db, poisoned(1, func(context.Context, pgx.Tx, consumer.Row[Order]) error {
		if calls.Add(1) > 1 {
			return nil
		}
		deliver := w.wire.Delay("pg_snapshot_xmin")
		testkit.Until(t, "a poll is under way", w.wire.Delayed)
		go func() {
			db.becomes("the attempt has ended", 1, "pgleases.consumer_blocked WHERE crashes = 0")
			deliver()
		}()
		return consumer.Unavailable(errors.New("no broker"))
	}))
	w.PauseAtMost(10 * time.Millisecond)
	db.suspect()
	testkit.OK(t, w.RunUntilEmpty(t.Context()))
	expect(t, calls.Load(), 2, "calls")
	db.exact(1)
}

// A suspect is not charged with a crash if its process lives, however often its handler fails for
// another reason.
func TestUnavailableIsNoCrash(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	var calls atomic.Int64
	w := newWorker(db, poisoned(1, func(context.Context, pgx.Tx, consumer.Row[Order]) error {
		if db.crashes(1); calls.Add(1) < 6 {
			return consumer.Unavailable(errors.New("no broker"))
		}
		return nil
	}))
	w.PauseAtMost(10 * time.Millisecond)
	db.suspect()
	testkit.OK(t, w.RunUntilEmpty(t.Context()))
	expect(t, calls.Load(), 6, "calls")
	db.exact(1)
}

// A process that loses its partition while it handles a suspect, and lives, takes back the crash
// that was counted.
func TestLostOwnershipTakesItsCrashBack(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	in, out := make(chan struct{}), make(chan struct{})
	// No transaction delays the next owner.
	w := newWorker(db, consumer.AtLeastOnce(func(context.Context, []consumer.Row[Order]) error {
		close(in)
		<-out
		return nil
	}), backoff(time.Hour, time.Hour)) // so the row is due only when the crash is taken back
	let := closer(t, out)
	db.suspect()
	w.run()
	testkit.Receive(t, "the suspect is in hand", in)
	db.crashes(1)
	w.evict()
	newWorker(db, poisoned(1, func(context.Context, pgx.Tx, consumer.Row[Order]) error {
		db.crashes(1)
		return nil
	})).run()
	testkit.Becomes(t, db.Pool, "the next owner has begun", true, `
		SELECT bool_or(p.begun > b.charged)
		FROM pgleases.consumer_owners AS p JOIN pgleases.consumer_blocked AS b USING (partition)`)
	let()
	db.empty("it is handled")
	db.exact(1)
}

// A process that was frozen with a suspect in hand takes its own charge back, even if the next
// owner has charged the row by then.
func TestFrozenProcessTakesItsChargeBack(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.insert(1, 1)
	db.crashed(1, 1, 1)
	held := func() (h consumer.Handler[Order], in, out chan struct{}) {
		in, out = make(chan struct{}), make(chan struct{})
		return consumer.AtLeastOnce(func(ctx context.Context, rows []consumer.Row[Order]) error {
			close(in)
			<-out
			return db.published(ctx, rows)
		}), in, out
	}
	const crashes = `
		SELECT concat_ws(' ', count(*), max(crashes), bool_and(charged IS NOT NULL)) FROM pgleases.consumer_blocked`
	h, in, thaw := held()
	frozen := newWorker(db, h).run()
	testkit.Receive(t, "the suspect is in hand", in)
	frozen.evict()
	h, in, out := held()
	next := newWorker(db, h).run()
	testkit.Receive(t, "the suspect is in hand of the next owner", in)
	expect(t, one[string](db, crashes), "1 2 t", "charges")
	close(thaw)
	testkit.Becomes(t, db.Pool, "the first charge is taken back", "1 1 t", crashes)
	close(out)
	db.empty("all is handled")
	testkit.OK(t, next.end())
}

// An owner that ends in order leaves the other suspects of a crash before it as they are.
func TestACleanEndKeepsSuspects(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.exec("INSERT INTO public.outbox (customer, payload) SELECT 'c', to_jsonb(i) FROM generate_series(1, 30) AS i")
	in, out := make(chan struct{}), make(chan struct{})
	w := newWorker(db, poisoned(1, func(context.Context, pgx.Tx, consumer.Row[Order]) error {
		close(in)
		<-out
		return nil
	}))
	db.crashed(1, 30, 30)
	w.run()
	testkit.Receive(t, "a suspect is in hand", in)
	w.stop()
	close(out)
	testkit.OK(t, w.end())
	expect(t, db.count("pgleases.consumer_blocked WHERE crashed IS NOT NULL"), 29, "suspects that are left")
}

// The commit of a process that was frozen in a handler is refused, and the next owner handles the
// row.
func TestFrozenHandlerDoesNotCommit(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.insert(40, 10)
	frozen, thaw := make(chan struct{}), make(chan struct{})
	var first atomic.Bool
	w := newWorker(db, consumer.Each(func(ctx context.Context, tx pgx.Tx, row consumer.Row[Order]) error {
		if err := effect(ctx, tx, row); err != nil {
			return err
		}
		if first.CompareAndSwap(false, true) {
			close(frozen)
			<-thaw
		}
		return nil
	}), consumer.WithIdleTimeout(500*time.Millisecond), consumer.WithMaxRunning(1)).run()
	testkit.Receive(t, "a row is in hand", frozen)
	w.crash()
	other := newWorker(db, consumer.Each(effect)).run()
	db.empty("all is handled")
	close(thaw)
	testkit.OK(t, other.end())
	db.exact(40)
}

// A suspect runs alone, and others wait for it for a while only.
func TestSuspectsRunAlone(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	db.insert(160, 40)
	w := newWorker(db, consumer.Each(func(context.Context, pgx.Tx, consumer.Row[Order]) error { return nil }))
	// as if an owner had crashed with batches in hand, in each partition
	db.crashed(1, 80, 160)
	testkit.OK(t, w.RunUntilEmpty(t.Context()))
	expect(t, db.count("public.outbox"), 0, "rows left")

	db.exec("UPDATE pgleases.consumer_owners SET ended = NULL, watched_to = 1000, note_first = 161, note_last = 180")
	db.insert(160, 40)
	var suspects, others, beside atomic.Int64
	hung, let := make(chan struct{}), make(chan struct{})
	var once atomic.Bool
	h := newWorker(db, consumer.Each(func(ctx context.Context, tx pgx.Tx, row consumer.Row[Order]) error {
		if row.ID <= 180 {
			if suspects.Add(1) > 1 {
				t.Error("two suspects run side by side")
			}
			defer suspects.Add(-1)
			if once.CompareAndSwap(false, true) {
				if others.Load() > 0 {
					t.Error("a suspect began beside another row")
				}
				close(hung)
				<-let
			}
		} else {
			others.Add(1)
			if suspects.Load() > 0 {
				beside.Add(1)
			}
			others.Add(-1)
		}
		return effect(ctx, tx, row)
	}))
	h.HoldForSuspects(200 * time.Millisecond)
	h.run()
	testkit.Receive(t, "a suspect is in hand", hung)
	testkit.Until(t, "others run beside it after a while", func() bool { return beside.Load() > 0 })
	close(let)
	db.empty("all is handled")
	testkit.OK(t, h.end())
	db.exact(160)
}

// A row has failed when more processes crashed than its consumer allows, and not before.
func TestMaxCrashes(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		most    int
		handled int64
	}{"one": {1, 0}, "two": {2, 1}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			db.put("a")
			db.suspected(1)
			err := newWorker(db, consumer.Each(effect), consumer.WithMaxCrashes(test.most)).RunUntilEmpty(t.Context())
			if test.handled == 0 {
				contains(t, err, "1 processes crashed while they handled the row alone: see WithMaxCrashes")
			} else {
				testkit.OK(t, err)
			}
			expect(t, db.count("public.effects"), test.handled, "effects")
		})
	}
}

// A suspect waits after many crashes for as long as the backoff allows, not for days.
func TestCrashesPauseWithinBackoff(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.put("a")
	db.suspected(20)
	var soon bool
	w := newWorker(db, consumer.Each(func(ctx context.Context, tx pgx.Tx, row consumer.Row[Order]) error {
		soon = one[bool](db, "SELECT next_at < clock_timestamp() + interval '1 minute' FROM pgleases.consumer_blocked")
		return effect(ctx, tx, row)
	}), consumer.WithMaxCrashes(100), consumer.WithMaxAttempts(3, consumer.Backoff(time.Second, time.Minute)))
	testkit.OK(t, w.RunUntilEmpty(t.Context()))
	if !soon {
		t.Error("it would wait for longer than the backoff")
	}
}

// A process that does not learn that it has counted the attempt of a crash suspect counts it once.
func TestLostAnswerCountsNoCrash(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.put("a")
	db.suspected(0)
	crashes := make(chan int, 1)
	w := newWorker(db, consumer.Each(func(ctx context.Context, tx pgx.Tx, row consumer.Row[Order]) error {
		crashes <- one[int](db, "SELECT crashes FROM pgleases.consumer_blocked")
		return effect(ctx, tx, row)
	}), backoff(time.Millisecond, time.Millisecond))
	w.run()
	for range 4 {
		w.wire.LoseAfter("crashes OPERATOR", "commit")
		testkit.Until(t, "it counts, and the answer is lost", func() bool { return w.wire.Left() == 0 })
	}
	db.empty("it is handled")
	expect(t, testkit.Receive(t, "the handler is called", crashes), 1, "crashes, with the attempt under way")
	testkit.OK(t, w.end())
}
