package consumer_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/consumer"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
)

// A row that cannot be moved to the dead letters blocks its key, and nothing else.
func TestDeadLetterThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	for name, why := range map[string]string{
		"no jsonb has it": `ALTER TABLE public.outbox ADD COLUMN more json NOT NULL DEFAULT '"\u0000"'`,
		// For example of a value whose text would be longer than 1 GB.
		"internal error": `CREATE FUNCTION public.fails() RETURNS trigger LANGUAGE plpgsql
				AS $$BEGIN RAISE SQLSTATE 'XX000'; END$$;
			CREATE TRIGGER fails BEFORE INSERT ON pgleases.consumer_dead_letters FOR EACH ROW EXECUTE FUNCTION public.fails()`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := databaseAt(t, pgtest.FreshDatabase(t, ddl(t)...))
			db.exec(why)
			of := db.alike(2)
			db.put(of...)
			w := newWorker(db, consumer.Each(func(ctx context.Context, tx pgx.Tx, row consumer.Row[Order]) error {
				if row.Key == of[0] {
					return errors.New("it fails")
				}
				return effect(ctx, tx, row)
			}), attempts(1), consumer.WithOnFailure(consumer.OnFailureDeadLetter))
			err := w.RunUntilEmpty(t.Context())
			contains(t, err, "only rows of blocked keys are left", "it fails", "not moved to the dead letters")
			expect(t, db.count("public.effects"), 1, "rows handled behind it")
		})
	}
}

// shy is a type whose values have no text, like a row whose text would be longer than 1 GB.
const shy = `
	CREATE TYPE public.shy;
	CREATE FUNCTION public.shy_in(cstring) RETURNS public.shy LANGUAGE internal IMMUTABLE STRICT AS 'textin';
	CREATE FUNCTION public.shy_out(public.shy) RETURNS cstring LANGUAGE internal IMMUTABLE STRICT AS 'trigger_out';
	CREATE TYPE public.shy (INPUT = public.shy_in, OUTPUT = public.shy_out, LIKE = text);
	ALTER TABLE public.outbox ADD COLUMN further public.shy`

// A failing row that has no text blocks its key like another, also if it is changed later, and
// keeps no other row of its partition.
func TestRowWithoutATextBlocksItsKeyOnly(t *testing.T) {
	t.Parallel()
	db := databaseAt(t, pgtest.FreshDatabase(t, ddl(t)...))
	if !one[bool](db, "SELECT rolsuper FROM pg_roles WHERE rolname = current_user") {
		t.Skip("only a superuser may create the type")
	}
	db.exec(shy)
	keys := db.customers(0, 2)
	db.put(keys...)
	db.exec("UPDATE public.outbox SET further = 'x' WHERE customer = $1", keys[0])
	var failing atomic.Bool
	failing.Store(true)
	w := newWorker(db, consumer.Each(func(ctx context.Context, tx pgx.Tx, row consumer.Row[Order]) error {
		if row.Key == keys[0] && failing.Load() {
			return errors.New("no such order")
		}
		return effect(ctx, tx, row)
	}), consumer.WithMaxAttempts(2, consumer.Backoff(time.Millisecond, time.Millisecond)))
	w.SweepEvery(50 * time.Millisecond)
	w.run()
	db.becomes("the row has failed", 1, "pgleases.consumer_blocked WHERE next_at = 'infinity'")
	db.becomes("the other row is handled", 1, "public.outbox")
	failing.Store(false)
	db.exec("UPDATE public.outbox SET payload = '0' WHERE customer = $1", keys[0])
	db.empty("the row is handled after a change")
	testkit.OK(t, w.end())
}

// Blocked rows of many keys, all due at once, do not make the look for rows slow.
func TestManyBlockedKeysThatAreDue(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	db.exec(`
		INSERT INTO public.outbox (customer, payload)
		SELECT 'a' || i, '1' FROM generate_series(1, 100000) AS i WHERE pgleases.partition_for('a' || i, 8) = 3`)
	db.block("true")
	db.exec("INSERT INTO public.outbox (customer, payload) VALUES ('another', '1')")
	w := newWorker(db, consumer.Each(effect)).run()
	db.becomes("the row of another partition is handled", 1, "public.effects WHERE customer = 'another'")
	testkit.OK(t, w.end())
	expect(t, w.Stats().PollErrors, 0, "looks for rows that took too long")
}

// Keys that are blocked are read once for each partition, however long they are. Otherwise 100,000
// of them would be read 100,000 times, by each look for rows.
func TestManyLongBlockedKeysAreReadOnce(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDirectDatabase(t) // see BlocksRead
	// About 12 MB, which is more than work_mem.
	db.exec(`
		INSERT INTO public.outbox (customer, payload)
		SELECT k, '1' FROM (SELECT i || repeat(md5(i::text), 45) AS k FROM generate_series(1, 64000) AS i) AS k
		WHERE pgleases.partition_for(k, 8) = 3`)
	db.block("true")
	db.exec("ANALYZE pgleases.consumer_blocked")
	w := newWorker(db, consumer.Each(effect))
	tx := testkit.Must(db.Begin(t.Context()))(t)
	testkit.Must(tx.Exec(t.Context(), w.OursSQL()))(t)
	sql := strings.TrimSpace(w.PollSQL())
	blocks := testkit.BlocksRead(t, tx, sql, []int32{3}, []int64{0}, []int64{0}, []int32{math.MaxInt32}, "orders")
	testkit.OK(t, tx.Rollback(t.Context()))
	if blocks > 100_000 {
		t.Errorf("a look for rows reads %d blocks", blocks)
	}
}

// The begin after a crash does not read the backlog.
func TestBeginAfterACrashReadsFewRows(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDirectDatabase(t) // see BlocksRead
	w := newWorker(db, failing())
	for partition := 3; partition <= 4; partition++ {
		customer := db.customers(partition, 1)[0]
		db.exec("INSERT INTO public.outbox (customer, payload) SELECT $1, '1' FROM generate_series(1, 50000)", customer)
	}
	db.exec("INSERT INTO pgleases.consumer_owners (consumer, partition, begun) VALUES ('orders', 3, 1)")
	db.exec("ANALYZE public.outbox")
	sql := strings.TrimSpace(w.CrashSQL())
	if blocks := testkit.BlocksRead(t, db.Pool, sql, "orders", 3, 0, 1, 1); blocks > 100 {
		t.Errorf("it reads %d blocks", blocks)
	}
}

// A statement that fails each time, for example because a column is gone, is repeated once a
// second.
func TestReadThatAlwaysFails(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	db.insert(8, 8)
	w := newWorker(db, consumer.Each(effect))
	db.exec("ALTER TABLE public.outbox RENAME COLUMN payload TO other")
	began := time.Now()
	w.run()
	testkit.Until(t, "it has tried for a while", func() bool { return w.Stats().Polls > 50 })
	if n, most := w.Stats().BrokenOff, partitions*(10+int64(time.Since(began)/time.Second)); n > most {
		t.Errorf("it tried %d times, want at most %d", n, most)
	}
	db.exec("ALTER TABLE public.outbox RENAME COLUMN other TO payload")
	db.empty("all is handled")
	testkit.OK(t, w.end())
	db.exact(8)
}

// A partition that always has rows handles its blocked rows too, when their time comes.
func TestRetryComesDuringABacklog(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	of := db.alike(2)
	db.put(of[0])
	db.exec("INSERT INTO public.outbox (customer, payload) SELECT $1, '1' FROM generate_series(1, 20000)", of[1])
	retried := make(chan struct{})
	w := newWorker(db, consumer.Each(func(ctx context.Context, tx pgx.Tx, row consumer.Row[Order]) error {
		switch {
		case row.Key == of[1]:
			time.Sleep(time.Millisecond) // the work
		case row.Attempt == 1:
			return errors.New("not yet")
		default:
			close(retried)
		}
		return nil
	}), consumer.WithBatch(10, 1<<20), backoff(time.Millisecond, time.Millisecond)).run()
	testkit.Until(t, "the row has failed", func() bool { return w.Stats().Failures == 1 })
	polls := w.Stats().Polls
	testkit.Until(t, "it is handled again, or many polls have come back", func() bool {
		select {
		case <-retried:
			return true
		default:
			return w.Stats().Polls > polls+20
		}
	})
	testkit.Receive(t, "it is handled again", retried)
	if db.count("public.outbox") == 0 {
		t.Error("it was handled behind the backlog")
	}
	testkit.OK(t, w.end())
}

// An answer from before the latest attempt at a blocked row does not repeat the row too early.
func TestBackoffHoldsAfterALateAnswer(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.put("a")
	calls, again := make(chan int, 10), make(chan struct{})
	end := closer(t, again)
	w := newWorker(db, consumer.Each(func(ctx context.Context, tx pgx.Tx, row consumer.Row[Order]) error {
		if calls <- row.Attempt; row.Attempt == 2 {
			<-again
		}
		return errors.New("not yet")
	}), backoff(time.Hour, time.Hour)).run()
	expect(t, testkit.Receive(t, "a call", calls), 1, "attempt")
	db.becomes("it has failed", 1, "pgleases.consumer_blocked")
	db.exec("UPDATE pgleases.consumer_blocked SET next_at = clock_timestamp()")
	expect(t, testkit.Receive(t, "another call", calls), 2, "attempt")
	deliver := w.wire.Delay("pg_snapshot_xmax")
	t.Cleanup(deliver)
	testkit.Until(t, "the answer to a poll is delayed", w.wire.Delayed)
	end()
	testkit.Becomes(t, db.Pool, "the row has failed again", 2, "SELECT attempts FROM pgleases.consumer_blocked")
	polls := w.Stats().Polls
	deliver()
	testkit.Until(t, "the answer and others have come", func() bool { return w.Stats().Polls > polls+2 })
	testkit.OK(t, w.end())
	expect(t, len(calls), 0, "further calls")
}

// A record of a blocked row that is locked delays no rows, and what is written then stays.
func TestLockedRecordDelaysNoRows(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.put("a")
	w := newWorker(db, failing(1), backoff(time.Hour, time.Hour))
	w.SweepEvery(20 * time.Millisecond)
	w.run()
	db.becomes("the row has failed", 1, "pgleases.consumer_blocked")
	testkit.OK(t, pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
		testkit.Must(tx.Exec(t.Context(), "SELECT FROM pgleases.consumer_blocked FOR UPDATE"))(t)
		db.exec("UPDATE public.outbox SET payload = '2'")
		w.polled(3)
		for partition := range partitions {
			db.put(db.customers(partition, 1)...)
		}
		db.becomes("all other rows are handled", 1, "public.outbox")
		_, err := tx.Exec(t.Context(), `
			UPDATE pgleases.consumer_blocked SET attempts = 5, version = (SELECT xmin::text FROM public.outbox)`)
		return err
	}))
	w.polled(3)
	testkit.OK(t, w.end())
	expect(t, w.Stats().PollErrors, 0, "polls that failed")
	expect(t, one[int](db, "SELECT attempts FROM pgleases.consumer_blocked"), 5, "failed attempts")
}

// A blocked row that cannot be handled or skipped now keeps no other keys of its partition.
func TestBlockedRowThatCannotBeHandledKeepsNoOthers(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	for _, name := range []string{"unavailable", "locked", "not skipped"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			of := db.alike(2)
			db.put(of[0])
			db.block("true")
			db.exec("INSERT INTO public.outbox (customer, payload) SELECT $1, '1' FROM generate_series(1, 2000)", of[1])
			var calls atomic.Int64
			w := newWorker(db, consumer.Each(func(ctx context.Context, tx pgx.Tx, row consumer.Row[Order]) error {
				if row.ID == 1 {
					calls.Add(1)
					return consumer.Unavailable(errors.New("away"))
				}
				return nil
			}), consumer.WithBatch(10, 1<<20))
			tx := testkit.Must(db.Begin(t.Context()))(t)
			defer func() { testkit.OK(t, tx.Rollback(t.Context())) }()
			switch name {
			case "locked":
				testkit.Must(tx.Exec(t.Context(), "SELECT FROM public.outbox WHERE id = 1 FOR UPDATE"))(t)
			case "not skipped":
				db.exec(`
					CREATE TABLE public.child (parent bigint REFERENCES public.outbox);
					INSERT INTO public.child VALUES (1)`)
				db.skip(1)
			}
			w.run()
			db.becomes("all others are handled", 1, "public.outbox")
			if n := calls.Load(); n > 100 {
				t.Errorf("%d calls for the row", n)
			}
			testkit.OK(t, w.end())
		})
	}
}

// In what looks like an outage, a good row behind many of a key that fails is found, after a
// crash too.
func TestGoodRowBehindManyOfAFailingKey(t *testing.T) {
	t.Parallel()
	for name, watched := range map[string]string{"": "WHERE false", "watched": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			of := db.alike(4)
			db.put(of[0], of[1])
			db.put(slices.Repeat(of[2:3], 500)...)
			db.put(of[3])
			db.exec(`
				INSERT INTO pgleases.consumer_owners (consumer, partition, begun, watched_to)
				SELECT 'orders', 3, 0, 503 ` + watched)
			w := newWorker(db, consumer.Each(func(ctx context.Context, tx pgx.Tx, row consumer.Row[Order]) error {
				if row.Key != of[3] {
					return errors.New("it fails")
				}
				return effect(ctx, tx, row)
			}))
			w.PauseAtMost(20 * time.Millisecond)
			w.run()
			db.becomes("the good row is handled", 1, "public.effects")
			testkit.OK(t, w.end())
		})
	}
}

// Blocked rows that find something away are tried in turn, and first the one that an operator
// retries.
func TestRetryBehindManyBlockedRows(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	db.put(db.alike(150)...)
	db.block("true")
	var calls, first, second atomic.Int64 // all, and those until the row that is retried, and until the other good one
	retried := make(chan struct{})
	w := newWorker(db, consumer.Each(func(ctx context.Context, tx pgx.Tx, row consumer.Row[Order]) error {
		if calls.Add(1) == 4 {
			<-retried // otherwise its turn may come before
		}
		if row.ID < 149 {
			return consumer.Unavailable(errors.New("away"))
		}
		map[int64]*atomic.Int64{150: &first, 149: &second}[row.ID].Store(calls.Load())
		return effect(ctx, tx, row)
	}))
	w.PauseAtMost(time.Millisecond)
	w.TryWhileAway(time.Millisecond)
	w.run()
	end := closer(t, retried)
	testkit.Until(t, "it is at work", func() bool { return calls.Load() > 3 })
	db.retry(150)
	w.polled(2) // it knows
	end()
	db.becomes("the row is handled", 1, "public.effects WHERE id = 150")
	db.becomes("so is one that nobody has retried", 2, "public.effects")
	if first.Load() > second.Load() || second.Load() > 400 {
		t.Errorf("%d calls until the first, and %d until the second", first.Load(), second.Load())
	}
	testkit.OK(t, w.end())
}

// Other work waits once for the suspects of a crash, not for each.
func TestSuspectsHoldOtherWorkOnce(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	db.put(db.alike(30)...)
	db.crashed(1, 30, 30)
	db.exec("UPDATE pgleases.consumer_owners SET note_first = NULL WHERE partition <> 3")
	db.put(db.customers(7, 1)...)
	hang := make(chan struct{})
	w := newWorker(db, consumer.Each(func(ctx context.Context, tx pgx.Tx, row consumer.Row[Order]) error {
		if row.Partition == 7 {
			<-hang
		}
		return effect(ctx, tx, row)
	}), consumer.WithMaxRunning(3)).run()
	end := closer(t, hang)
	db.becomes("the suspects are handled beside a call that hangs", 30, "public.effects")
	end()
	db.empty("all is handled")
	testkit.OK(t, w.end())
}

// A suspect does not wait for rows of its partition that fail again and again.
func TestSuspectTakesTurnsWithBlockedRows(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.put(db.alike(11)...)
	db.block("id <= 10")
	db.crashed(11, 11, 11)
	var calls atomic.Int64
	w := newWorker(db, consumer.Each(func(ctx context.Context, tx pgx.Tx, row consumer.Row[Order]) error {
		if row.ID <= 10 {
			calls.Add(1)
			time.Sleep(20 * time.Millisecond) // the work
			return errors.New("it fails")
		}
		return effect(ctx, tx, row)
	}), consumer.WithMaxAttempts(1000, consumer.Backoff(time.Millisecond, time.Millisecond))).run()
	db.becomes("the suspect is handled", 1, "public.effects")
	if n := calls.Load(); n > 200 {
		t.Errorf("%d calls for the others until then", n)
	}
	testkit.OK(t, w.end())
}

// When one partition succeeds after an outage, all others are tried at once.
func TestAllPartitionsRecoverTogether(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	for partition := range partitions {
		db.put(db.customers(partition, 1)...)
	}
	var tried sync.Map
	begun, begins := make(chan struct{}), make(chan struct{}, 100)
	w := newWorker(db, consumer.Each(func(ctx context.Context, tx pgx.Tx, row consumer.Row[Order]) error {
		begins <- struct{}{}
		<-begun
		if _, again := tried.LoadOrStore(row.Partition, true); !again {
			return consumer.Unavailable(errors.New("away"))
		}
		return effect(ctx, tx, row)
	}))
	w.TryWhileAway(20 * time.Second)
	w.run()
	testkit.Receive(t, "a row is in hand", begins)
	db.allBegun()
	w.polled(2)
	close(begun)
	db.empty("all is handled")
	testkit.OK(t, w.end())
}

// A partition that succeeds while something is away lets the others try again at once, with a
// single row each.
func TestOnePartitionThatSucceedsLetsOthersTryOneRow(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	for partition := range partitions {
		of := db.customers(partition, 2)
		db.put(of[0], of[0], of[1])
	}
	var mu sync.Mutex // guards paused and recovered
	paused, recovered := make(map[int]bool), false
	sizes := make(chan int, 1000)
	w := db.held(consumer.AtLeastOnce(func(_ context.Context, rows []consumer.Row[Order]) error {
		mu.Lock()
		defer mu.Unlock()
		if recovered {
			sizes <- len(rows)
		}
		for _, row := range rows {
			paused[row.Partition] = true
		}
		if len(paused) == partitions && rows[0].Partition == 0 && len(rows) == 1 && !recovered {
			recovered = true
			return nil
		}
		return consumer.Unavailable(errors.New("away"))
	}), consumer.WithMaxRunning(1))
	for range partitions - 1 {
		expect(t, testkit.Receive(t, "another partition is tried", sizes), 1, "rows in a call")
	}
	testkit.OK(t, w.end())
}

// Rows that found something away are tried beside blocked rows that do, by a single worker.
func TestRowsTakeTurnsWithBlockedRowsInAnOutage(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	for partition := range 5 {
		db.put(db.customers(partition, 1)...)
	}
	db.block("true")
	customer := db.customers(7, 1)[0]
	db.exec("INSERT INTO public.outbox (customer, payload) SELECT $1, '1' FROM generate_series(1, 100000)", customer)
	var blocked, calls atomic.Int64
	w := newWorker(db, consumer.Each(func(ctx context.Context, tx pgx.Tx, row consumer.Row[Order]) error {
		switch {
		case row.Partition < 5:
			blocked.Add(1)
			return consumer.Unavailable(errors.New("away"))
		case row.Partition == 7:
			time.Sleep(time.Millisecond) // the work
			return nil
		case calls.Add(1) == 1:
			return consumer.Unavailable(errors.New("busy"))
		}
		return effect(ctx, tx, row)
	}), consumer.WithMaxRunning(1))
	w.PauseAtMost(40 * time.Millisecond)
	w.TryWhileAway(20 * time.Millisecond)
	w.run()
	testkit.Until(t, "it is at work", func() bool { return blocked.Load() > 20 })
	db.put(db.customers(6, 1)...)
	before := blocked.Load()
	db.becomes("the row is handled", 1, "public.effects")
	if n := blocked.Load() - before; n > 100 {
		t.Errorf("%d calls for blocked rows until then", n)
	}
	testkit.OK(t, w.end())
}
