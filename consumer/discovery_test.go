package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/consumer"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/timeguard"
)

// A batch from several partitions takes two round trips, besides those of its handler.
func TestABatchTakesTwoRoundTrips(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db, consumer.InTx(effects), consumer.WithMaxRunning(1)).run()
	db.insert(3, 3)
	db.empty("it has begun")
	w.wire.Record()
	db.insert(5, 5)
	db.empty("all is handled")
	testkit.OK(t, w.end())
	db.exact(8)
	found := false
	for _, sent := range w.wire.Recorded("guard_many") {
		for i, message := range sent {
			if !strings.Contains(message, "guard_many") || !strings.Contains(message, "outbox") || i+6 >= len(sent) {
				continue
			}
			found = true
			if !strings.Contains(message, "begin isolation level read committed") {
				t.Errorf("the batch is opened by %q", message)
			}
			deletes := func(m string) bool { return strings.Contains(m, "DELETE FROM public.outbox") }
			closing := slices.IndexFunc(sent[i:], deletes)
			if closing < 0 || !strings.Contains(sent[i+closing], "commit") {
				t.Errorf("the rows are not deleted and committed in one message: %q", sent[i:])
				continue
			}
			for _, between := range sent[i+1 : i+closing] {
				if !strings.Contains(between, "INSERT INTO public.effects") {
					t.Errorf("a message besides those of the handler: %q", between)
				}
			}
		}
	}
	if !found {
		t.Error("no batch was recorded")
	}
}

// Without notifications an idle process sends one query each WithPoll, whatever its number of
// partitions. A poll finds rows.
func TestIdleProcessPollsOnly(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db, consumer.Each(effect), consumer.WithPoll(20*time.Millisecond)).run()
	db.becomes("it owns all", partitions, "pgleases.consumer_owners")
	w.polled(30) // at first it polls more often: it has begun, and a notification may have been missed
	began := time.Now()
	w.polled(20)
	if took := time.Since(began); took < 19*20*time.Millisecond { // between 20 answers are 19 pauses
		t.Errorf("20 polls within %v", took)
	}
	expect(t, w.Stats().PollErrors, 0, "failed polls")
	db.exec("DROP TRIGGER consumer_inserted ON public.outbox")
	db.insert(5, 5)
	db.empty("a poll has found the rows")
	testkit.OK(t, w.end())
	db.exact(5)
}

// An insert wakes the consumer, long before its next poll.
func TestInsertWakesConsumer(t *testing.T) {
	t.Parallel()
	timeguard.Run(t, func(t *timeguard.Try) {
		const poll = 10 * time.Second
		db := newDirectDatabase(t)
		w := newWorker(db, consumer.Each(effect), consumer.WithPoll(poll)).run()
		db.becomes("it owns all", partitions, "pgleases.consumer_owners")
		for range 3 {
			w.waits()
			for range 10 {
				inserted := time.Now()
				db.insert(1, 1)
				db.empty("it is handled, even if its notification was suppressed")
				if waited := time.Since(inserted); waited > poll/2 {
					t.Missed(inserted, poll/2, "a row waited for %v, so only a poll found it", waited)
				}
			}
		}
		testkit.OK(t, w.end())
		db.exact(30)
	})
}

// waits waits until a process with rare polls waits for a notification.
func (w *worker) waits() {
	w.t.Helper()
	polls, since := int64(0), time.Now()
	testkit.Until(w.t, "it waits for a notification", func() bool {
		if n := w.Stats().Polls; n != polls {
			polls, since = n, time.Now()
		}
		// At first, and after a notification, it polls for 210 ms.
		return polls > 0 && time.Since(since) > 500*time.Millisecond
	})
}

// A row whose transaction commits after higher IDs were handled is found.
func TestLateCommitIsFound(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	late := testkit.Must(db.Begin(t.Context()))(t)
	testkit.Must(late.Exec(t.Context(), "INSERT INTO public.outbox (customer, payload) VALUES ('late', '1')"))(t)
	w := newWorker(db, consumer.Each(effect)).run()
	db.insert(200, 40)
	db.empty("the others are handled")
	testkit.OK(t, late.Commit(t.Context()))
	db.empty("the late one is handled")
	testkit.OK(t, w.end())
	db.exact(201)
}

// A row of a blocked key is not handled, even if it is changed while the batch waits for its lock.
func TestBlockedKeyIsNotOvertakenByAChangedRow(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.exec("INSERT INTO public.outbox (customer, payload) VALUES ('a', '1'), ('a', '2'), ('b', '3')")
	w := newWorker(db, poisoned(1, func(context.Context, pgx.Tx, consumer.Row[Order]) error {
		return context.DeadlineExceeded
	}), attempts(1)).run()
	db.becomes("key a is blocked", 1, "pgleases.consumer_blocked WHERE next_at = 'infinity'")
	for range 20 {
		change := testkit.Must(db.Begin(t.Context()))(t)
		testkit.Must(change.Exec(t.Context(), "UPDATE public.outbox SET payload = '9' WHERE id = 2"))(t)
		db.exec("INSERT INTO public.outbox (customer, payload) VALUES ('b', '4')")
		testkit.OK(t, change.Commit(t.Context()))
	}
	db.becomes("key b is empty", 2, "public.outbox")
	testkit.OK(t, w.end())
	expect(t, db.count("public.effects WHERE customer = 'a'"), 0, "rows of the blocked key that were handled")
	db.ordered()
}

// AtLeastOnce handles a row again that was changed while the handler had it.
func TestChangedRowIsHandledAgain(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.insert(10, 1)
	changed := false
	w := newWorker(db, consumer.AtLeastOnce(func(ctx context.Context, rows []consumer.Row[Order]) error {
		for _, row := range rows {
			if row.ID == 7 && !changed {
				changed = true
				db.exec("UPDATE public.outbox SET payload = '77' WHERE id = 7; DELETE FROM public.outbox WHERE id = 8")
			}
			if row.ID == 7 {
				db.exec("INSERT INTO public.effects (id, customer, attempt) VALUES (7, $1, $2::int)",
					string(row.Value.Payload), row.Attempt)
			}
		}
		return nil
	}), consumer.WithMaxRunning(1)).run()
	db.empty("all is handled")
	testkit.OK(t, w.end())
	handled := one[string](db, "SELECT string_agg(customer || ' ' || attempt, ', ' ORDER BY n) FROM public.effects")
	expect(t, handled, "7 1, 77 1", "payloads of the row and attempts")
	expect(t, w.Stats().Rows, 9, "rows in Stats, of which the application has deleted one")
}

// A trigger of the application that refuses the delete of a row is that row's fault, at once.
func TestTriggerThatRefusesADelete(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	for kind := range kinds(nil) {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			w := newWorker(db, kinds(db)[kind], attempts(1))
			db.exec(`
				CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql
					AS 'BEGIN RAISE EXCEPTION ''not yet''; END';
				CREATE TRIGGER refuse AFTER DELETE ON public.outbox FOR EACH ROW EXECUTE FUNCTION public.refuse()`)
			db.insert(1, 1)
			contains(t, w.RunUntilEmpty(t.Context()), "only rows of blocked keys are left", "not yet")
			expect(t, w.Stats().BrokenOff, 0, "batches that were broken off")
		})
	}
}

// If a trigger keeps rows that are deleted, no effect is committed, and the rows fail.
func TestRowsThatADeleteKeeps(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	for kind := range kinds(nil) {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			w := newWorker(db, kinds(db)[kind], attempts(1))
			db.exec(`CREATE FUNCTION public.keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
				CREATE TRIGGER keep BEFORE DELETE ON public.outbox FOR EACH ROW EXECUTE FUNCTION public.keep()`)
			db.insert(1, 1)
			w.run()
			const blocked = `SELECT EXISTS (SELECT FROM pgleases.consumer_blocked
				WHERE error LIKE 'ERROR: of 1 handled rows 0 were deleted%')`
			inTx, most := kind != "AtLeastOnce", 0
			if !inTx {
				most = 5
			}
			testkit.Becomes(t, db.Pool, "the row blocks its key, or has too many effects", true,
				blocked+" OR (SELECT count(*) FROM public.effects) > $1", most)
			testkit.OK(t, w.end())
			expect(t, one[bool](db, blocked), true, "that the row blocks its key")
			contains(t, db.failure("true"), "prevents the DELETE, or the handler")
			if inTx {
				expect(t, db.count("public.effects"), 0, "effects")
			}
		})
	}
}

// If a batch fails, its rows are read anew: an attempt sees what the application has changed since.
func TestRowsAreReadAnewAfterASplit(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.exec("INSERT INTO public.outbox (customer, payload) SELECT 'c', to_jsonb(i) FROM generate_series(1, 8) AS i")
	changed := false
	w := newWorker(db, consumer.AtLeastOnce(func(ctx context.Context, rows []consumer.Row[Order]) error {
		if !changed {
			changed = true
			db.exec("UPDATE public.outbox SET payload = '77' WHERE id = 1")
			return context.Canceled
		}
		for _, row := range rows {
			if row.ID == 1 {
				db.exec("INSERT INTO public.effects (id, customer) VALUES (1, $1)", string(row.Value.Payload))
			}
		}
		return nil
	}), consumer.WithMaxRunning(1)).run()
	db.empty("all is handled")
	testkit.OK(t, w.end())
	payloads := one[string](db, "SELECT string_agg(customer, ', ' ORDER BY n) FROM public.effects")
	expect(t, payloads, "77", "payloads of the changed row")
}

// A row that the application has locked is waited for, and not overtaken.
func TestLockedRowIsNotOvertaken(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.insert(3, 1)
	lock := testkit.Must(db.Begin(t.Context()))(t)
	testkit.Must(lock.Exec(t.Context(), "SELECT FROM public.outbox WHERE id = 1 FOR UPDATE"))(t)
	w := newWorker(db, consumer.Each(effect)).run()
	testkit.Becomes(t, db.Pool, "it waits for the lock, or goes on", true,
		"SELECT EXISTS (SELECT FROM public.effects) OR "+waitsForTheQueue)
	expect(t, db.count("public.effects"), 0, "rows that overtook the locked one")
	testkit.OK(t, lock.Rollback(t.Context()))
	db.empty("all is handled")
	testkit.OK(t, w.end())
	db.exact(3)
}

// waitsForTheQueue is whether a session waits for a lock of the queue.
const waitsForTheQueue = `EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database()
	AND wait_event_type = 'Lock' AND query LIKE '%public.outbox%')`

// A row that moves to a blocked key while its lock is waited for waits with that key.
func TestAChangedRowOfABlockedKeyWaits(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	b := one[string](db, `
		SELECT 'b' || i FROM generate_series(1, 1000) AS i
		WHERE pgleases.partition_for('b' || i, 8) = pgleases.partition_for('a', 8) LIMIT 1`)
	db.exec("INSERT INTO public.outbox (customer, payload) VALUES ('a', '1')")
	w := newWorker(db, failing(1), attempts(1)).run()
	db.becomes("key a is blocked", 1, "pgleases.consumer_blocked WHERE next_at = 'infinity'")
	testkit.OK(t, w.end())
	db.exec("INSERT INTO public.outbox (customer, payload) VALUES ($1, '2')", b)
	change := testkit.Must(db.Begin(t.Context()))(t)
	testkit.Must(change.Exec(t.Context(), "UPDATE public.outbox SET customer = 'a' WHERE id = 2"))(t)
	w = newWorker(db, failing(1)).run()
	testkit.Becomes(t, db.Pool, "it waits for the lock", true, "SELECT "+waitsForTheQueue)
	testkit.OK(t, change.Commit(t.Context()))
	db.exec("INSERT INTO public.outbox (customer, payload) VALUES ($1, '3')", b)
	db.becomes("the other key is handled", 1, "public.effects WHERE id = 3")
	testkit.OK(t, w.end())
	expect(t, db.count("public.effects WHERE customer = 'a'"), 0, "rows that overtook the blocked one")
}

// The batches of a slow handler are shared among the workers, for it to run at the same time. For
// those of a quick one, that would only make more transactions, and they may have more rows.
func TestBatchesAreAsLargeAsTheirHandlerIsQuick(t *testing.T) {
	limited := consumer.WithBatch(50, 1000)
	for _, c := range []struct {
		due, free int
		pace      time.Duration
		size      int64
		opts      []consumer.Option
		want      int
	}{
		{8, 4, 0, 1, nil, 2},
		{8, 4, time.Second, 1, nil, 2},
		{8, 4, 500 * time.Microsecond, 1, nil, 4},
		{8, 4, time.Microsecond, 1, nil, 8},
		{1, 4, time.Microsecond, 1, nil, 1},
		{5, 1, time.Second, 1, nil, 5},
		{900, 4, time.Microsecond, 1, nil, 400},
		{900, 1, 250 * time.Microsecond, 1, nil, 200},
		{900, 1, time.Millisecond, 1, nil, 100},
		{900, 1, time.Microsecond, 1, []consumer.Option{limited}, 50},
		{900, 1, time.Microsecond, 0, nil, 10},
		{900, 1, time.Microsecond, 100, []consumer.Option{limited}, 10},
		{900, 1, time.Microsecond, 1 << 30, nil, 1},
		{900, 1, time.Microsecond, 1, []consumer.Option{consumer.WithBatch(50, math.MaxInt64)}, 50},
	} {
		got := consumer.Together(c.due, c.free, c.pace, c.size, c.opts...)
		expect(t, got, c.want, fmt.Sprintf("partitions of a batch, of %d with %d free workers, %v a row and %d bytes",
			c.due, c.free, c.pace, c.size))
	}
}

// Calls that fail at once do not make a slow handler a quick one, whose rows one worker handles
// alone.
func TestFailuresAreNoPace(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	const slow = 50 * time.Millisecond
	away, calls := false, 0
	w := newWorker(db, consumer.Each(func(ctx context.Context, tx pgx.Tx, row consumer.Row[Order]) error {
		if away {
			if calls++; calls < 20 {
				return consumer.Unavailable(errors.New("away"))
			}
		}
		time.Sleep(slow)
		return effect(ctx, tx, row)
	}), consumer.WithMaxRunning(1))
	w.PauseAtMost(time.Millisecond)
	db.insert(2, 2)
	testkit.OK(t, w.RunUntilEmpty(t.Context()))
	away = true
	db.insert(1, 1)
	testkit.OK(t, w.RunUntilEmpty(t.Context()))
	if pace := w.Pace(); pace < slow*3/10 {
		t.Errorf("the handler takes %v for a row, and not %v", pace, slow)
	}
}

// While a process handles a batch of a partition, it begins no other of that partition.
func TestOneBatchOfAPartitionAtATime(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.insert(4, 1)
	var running, calls atomic.Int64
	var w *worker
	w = newWorker(db, consumer.AtLeastOnce(func(ctx context.Context, rows []consumer.Row[Order]) error {
		if running.Add(1) > 1 {
			t.Error("two batches of a partition run side by side")
		}
		defer running.Add(-1)
		polled := w.Stats().Polls
		if calls.Add(1) == 1 {
			testkit.Until(t, "it has polled", func() bool { return w.Stats().Polls > polled+2 || running.Load() > 1 })
		}
		return db.published(ctx, rows)
	}), consumer.WithBatch(1, 1<<20), consumer.WithMaxRunning(3)).run()
	db.empty("all is handled")
	testkit.OK(t, w.end())
	db.exact(4)
}

// Rows of one key that one process has in hand when it ends are finished, and no others begin.
func TestEndFinishesWhatIsInHand(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.insert(100, 1)
	in, out := make(chan struct{}), make(chan struct{})
	w := newWorker(db, poisoned(3, func(context.Context, pgx.Tx, consumer.Row[Order]) error {
		close(in)
		<-out
		return nil
	})).run()
	testkit.Receive(t, "a row is in hand", in)
	w.stop()
	testkit.Until(t, "it has left the lease", func() bool {
		return db.count("pgleases.partitions WHERE owner IS NOT NULL") <= 1
	})
	inHand := db.count("pgleases.consumer_owners WHERE ended IS DISTINCT FROM begun")
	expect(t, inHand, 1, "partitions in hand, unless the end was recorded")
	close(out)
	testkit.OK(t, w.end())
	db.exact(3)
	expect(t, db.count("public.outbox"), 97, "rows left")
}

// A batch ends with the row that fills it. When the size of rows is known, no more of them are read
// than fit.
func TestBatchIsLimitedByBytes(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	db.exec("ALTER TABLE public.outbox ALTER payload SET STORAGE EXTERNAL")
	db.exec(`
		INSERT INTO public.outbox (customer, payload)
		SELECT 'c', to_jsonb(repeat('x', 10000)) FROM generate_series(1, 50)`)
	type batch struct{ handled, read int64 }
	batches := make(chan batch, 100)
	w := newWorker(db, consumer.InTx(func(ctx context.Context, tx pgx.Tx, rows []consumer.Row[Order]) error {
		const locked = `SELECT count(*) - (SELECT count(*) FROM (
				SELECT FROM public.outbox FOR UPDATE SKIP LOCKED
			) AS o) FROM public.outbox`
		batches <- batch{int64(len(rows)), one[int64](db, locked)}
		return effects(ctx, tx, rows)
	}), consumer.WithBatch(100, 25_000), consumer.WithMaxRunning(1)).run()
	db.empty("all is handled")
	testkit.OK(t, w.end())
	close(batches)
	n := 0
	for b := range batches {
		if n++; b.handled > 3 || n > 1 && b.read > 3 {
			t.Errorf("batch %d: %d rows of 10 kB in a batch of 25 kB, %d read", n, b.handled, b.read)
		}
	}
	db.exact(50)
}

// Without a key the partition is the key.
func TestWithoutAKey(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.exec(`
		CREATE TABLE public.log (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, partition int NOT NULL, payload jsonb);
		CREATE INDEX ON public.log (partition, id);
		GRANT ALL ON public.log TO PUBLIC`)
	db.exec("INSERT INTO public.log (partition, payload) SELECT i % 4, to_jsonb(i) FROM generate_series(1, 200) AS i")
	type row = consumer.Row[map[string]any]
	h := consumer.Each(func(ctx context.Context, tx pgx.Tx, row row) error {
		const insert = "INSERT INTO public.effects (id, customer) VALUES ($1, $2)"
		_, err := tx.Exec(ctx, insert, row.Value["id"], row.Partition)
		return err
	})
	w := newWorkerOf(db, consumer.Queue{Table: "log", Partitions: 4}, h)
	testkit.OK(t, w.RunUntilEmpty(t.Context()))
	db.exact(200)
}

func TestByKey(t *testing.T) {
	t.Parallel()
	var rows []consumer.Row[int]
	for i, key := range []string{"b", "a", "b", "c", "a"} {
		rows = append(rows, consumer.Row[int]{ID: int64(i), Key: key})
	}
	var got [][]int64
	for _, of := range consumer.ByKey(rows) {
		var ids []int64
		for _, r := range of {
			ids = append(ids, r.ID)
		}
		got = append(got, ids)
	}
	if !slices.EqualFunc(got, [][]int64{{0, 2}, {1, 4}, {3}}, slices.Equal) {
		t.Errorf("%v", got)
	}
}

// A row that the application has locked delays its own partition only.
func TestLockedRowDelaysItsPartitionOnly(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	db.insert(200, 40)
	locked := testkit.Must(db.Begin(t.Context()))(t)
	testkit.Must(locked.Exec(t.Context(), "SELECT FROM public.outbox WHERE id = 1 FOR UPDATE"))(t)
	w := newWorker(db, consumer.Each(effect), consumer.WithMaxRunning(1)).run()
	const others = "public.outbox WHERE partition <> (SELECT partition FROM public.outbox WHERE id = 1)"
	db.becomes("the other partitions are empty", 0, others)
	began, batches := time.Now(), w.Stats().Batches
	for range 5 { // each waits for no lock
		db.insert(40, 40)
		db.becomes("the other partitions are empty again", 0, others)
	}
	if n := w.Stats().Batches - batches; n < 5 {
		t.Errorf("%d batches within %v", n, time.Since(began))
	}
	expect(t, db.count("pgleases.consumer_blocked"), 0, "rows that were charged")
	testkit.OK(t, locked.Rollback(t.Context()))
	db.empty("all is handled")
	testkit.OK(t, w.end())
	db.exact(400)
}
