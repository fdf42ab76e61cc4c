package consumer_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/consumer"
	"github.com/pgleases/pgleases/internal/testkit"
)

// Partitions with a backlog take turns, although the partitions after them have no rows.
func TestPartitionsTakeTurns(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	for partition := range 3 {
		db.put(slices.Repeat(db.customers(partition, 1), 8)...)
	}
	w := db.held(consumer.Each(effect), consumer.WithBatch(1, 1), consumer.WithWorkers(1))
	db.empty("all is handled")
	testkit.OK(t, w.end())
	db.exact(24)
	if most := one[int](db, "SELECT max(n - r)::int FROM (SELECT n, 3 * row_number() OVER (PARTITION BY customer ORDER BY n) AS r FROM public.effects) AS e"); most > 3 {
		t.Errorf("a row came %d rows later than in turns", most)
	}
}

// A row that cannot be moved to the dead letters blocks its key, and nothing else.
func TestDeadLetterThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.exec(`ALTER TABLE public.outbox ADD COLUMN more json NOT NULL DEFAULT '{}'`)
	of := db.alike(2)
	db.exec(`INSERT INTO public.outbox (customer, payload, more) VALUES ($1, '1', '"\u0000"')`, of[0]) // no jsonb has it
	db.put(of[1])
	w := newWorker(db, consumer.Each(func(ctx context.Context, tx pgx.Tx, row consumer.Row[Order]) error {
		if row.Key == of[0] {
			return errors.New("it fails")
		}
		return effect(ctx, tx, row)
	}), consumer.WithAttempts(1), consumer.WithOnFailure(consumer.DeadLetter))
	contains(t, w.RunUntilEmpty(t.Context()), "only rows of blocked keys are left", "it fails", "not moved to the dead letters")
	expect(t, one[int64](db, "SELECT count(*) FROM public.effects"), 1, "rows handled behind it")
}

// Blocked rows of many keys, all due at once, do not make the look for rows slow.
func TestManyBlockedKeysThatAreDue(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.exec("INSERT INTO public.outbox (customer, payload) SELECT 'a' || i, '1' FROM generate_series(1, 100000) AS i WHERE pgleases.partition_for('a' || i, 8) = 3")
	db.block("true")
	db.exec("INSERT INTO public.outbox (customer, payload) VALUES ('another', '1')")
	w := newWorker(db, consumer.Each(effect)).run()
	testkit.Becomes(t, db.Pool, "the row of another partition is handled", int64(1), "SELECT count(*) FROM public.effects WHERE customer = 'another'")
	testkit.OK(t, w.end())
	expect(t, w.Stats().ProbeErrors, 0, "looks for rows that took too long")
}

// The begin after a crash does not read the backlog.
func TestBeginAfterACrashReadsFewRows(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db, failing())
	for partition := 3; partition <= 4; partition++ {
		db.exec("INSERT INTO public.outbox (customer, payload) SELECT $1, '1' FROM generate_series(1, 50000)", db.customers(partition, 1)[0])
	}
	db.exec("INSERT INTO pgleases.consumer_partitions (consumer, partition, begun) VALUES ('orders', 3, 1)")
	db.exec("ANALYZE public.outbox")
	sql := strings.TrimSpace(w.CrashSQL())
	if blocks := testkit.BlocksRead(t, db.Pool, sql, "orders", 3, 0, 1, 1); blocks > 100 {
		t.Errorf("it reads %d blocks", blocks)
	}
}

// A statement that fails each time, for example because a column is gone, is repeated once a second.
func TestReadThatAlwaysFails(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.insert(8, 8)
	w := newWorker(db, consumer.Each(effect))
	db.exec("ALTER TABLE public.outbox RENAME COLUMN payload TO other")
	began := time.Now()
	w.run()
	testkit.Until(t, "it has tried for a while", func() bool { return w.Stats().Probes > 50 })
	if n, most := w.Stats().Troubles, partitions*(10+int64(time.Since(began)/time.Second)); n > most {
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
	}), consumer.WithBatch(10, 1<<20), consumer.WithBackoff(time.Millisecond, time.Millisecond)).run()
	testkit.Becomes(t, db.Pool, "the row has failed", int64(1), "SELECT count(*) FROM pgleases.consumer_blocked")
	probes := w.Stats().Probes
	testkit.Until(t, "it is handled again, or many probes have come back", func() bool {
		select {
		case <-retried:
			return true
		default:
			return w.Stats().Probes > probes+20
		}
	})
	testkit.Receive(t, "it is handled again", retried)
	if one[int64](db, "SELECT count(*) FROM public.outbox") == 0 {
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
	w := newWorker(db, consumer.Each(func(ctx context.Context, tx pgx.Tx, row consumer.Row[Order]) error {
		if calls <- row.Attempt; row.Attempt == 2 {
			<-again
		}
		return errors.New("not yet")
	}), consumer.WithBackoff(time.Hour, time.Hour)).run()
	expect(t, testkit.Receive(t, "a call", calls), 1, "attempt")
	testkit.Becomes(t, db.Pool, "it has failed", int64(1), "SELECT count(*) FROM pgleases.consumer_blocked")
	db.exec("UPDATE pgleases.consumer_blocked SET next_at = clock_timestamp()")
	expect(t, testkit.Receive(t, "another call", calls), 2, "attempt")
	sent := one[time.Time](db, "SELECT clock_timestamp()")
	deliver := w.wire.Delay("pg_snapshot_xmax")
	testkit.Until(t, "the answer to a probe is delayed", func() bool { return w.wire.Left() == 0 })
	testkit.Becomes(t, db.Pool, "it has seen the row", true, "SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND query = 'commit' AND state = 'idle' AND state_change > $1", sent)
	close(again)
	testkit.Becomes(t, db.Pool, "the row has failed again", 2, "SELECT attempts FROM pgleases.consumer_blocked")
	probes := w.Stats().Probes
	deliver()
	testkit.Until(t, "the answer and others have come", func() bool { return w.Stats().Probes > probes+2 })
	testkit.OK(t, w.end())
	expect(t, len(calls), 0, "further calls")
}

// A row that was changed, and has failed again since, keeps that attempt.
func TestChangedRowThatFailsMeanwhileKeepsItsAttempt(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.put("a")
	w := newWorker(db, failing(1), consumer.WithBackoff(time.Hour, time.Hour))
	w.SweepEvery(20 * time.Millisecond)
	w.run()
	testkit.Becomes(t, db.Pool, "the row has failed", int64(1), "SELECT count(*) FROM pgleases.consumer_blocked")
	testkit.OK(t, pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
		testkit.Must(tx.Exec(t.Context(), "SELECT FROM pgleases.consumer_blocked FOR UPDATE"))(t)
		db.exec("UPDATE public.outbox SET payload = '2'")
		testkit.Becomes(t, db.Pool, "the change is found", true, "SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
		_, err := tx.Exec(t.Context(), "UPDATE pgleases.consumer_blocked SET attempts = 5, version = (SELECT xmin::text FROM public.outbox)")
		return err
	}))
	probes := w.Stats().Probes
	testkit.Until(t, "probes have come back", func() bool { return w.Stats().Probes > probes+2 })
	testkit.OK(t, w.end())
	expect(t, one[int](db, "SELECT attempts FROM pgleases.consumer_blocked"), 5, "failed attempts")
}

// Blocked rows whose handler hangs do not keep all workers.
func TestHungBlockedRowsLeaveWorkers(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	for partition := range 4 {
		db.put(db.customers(partition, 1)...)
	}
	db.block("true")
	calls, hang := make(chan struct{}, 10), make(chan struct{})
	w := newWorker(db, consumer.Each(func(ctx context.Context, tx pgx.Tx, row consumer.Row[Order]) error {
		if row.Attempt > 1 {
			calls <- struct{}{}
			<-hang
		}
		return effect(ctx, tx, row)
	}), consumer.WithWorkers(4)).run()
	end := sync.OnceFunc(func() { close(hang) })
	t.Cleanup(end)
	testkit.Receive(t, "a blocked row is in hand", calls)
	testkit.Receive(t, "another is", calls)
	db.put(db.customers(5, 1)...)
	testkit.Becomes(t, db.Pool, "the row of another partition is handled", int64(1), "SELECT count(*) FROM public.effects")
	end()
	db.empty("all is handled")
	testkit.OK(t, w.end())
}

// One worker handles blocked and other rows in turn.
func TestBlockedRowsTakeTurnsWithOthers(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	for partition := range 7 {
		db.put(db.customers(partition, 1)...)
	}
	db.block("true")
	let, first := make(chan struct{}), make(chan struct{})
	begun := sync.OnceFunc(func() { close(first) })
	w := newWorker(db, consumer.Each(func(ctx context.Context, tx pgx.Tx, row consumer.Row[Order]) error {
		begun()
		<-let
		return effect(ctx, tx, row)
	}), consumer.WithWorkers(1)).run()
	testkit.Receive(t, "a blocked row is in hand", first)
	db.put(db.customers(7, 1)...)
	testkit.Becomes(t, db.Pool, "all partitions have begun", int64(partitions), "SELECT count(*) FROM pgleases.consumer_partitions WHERE ended IS DISTINCT FROM begun")
	probes := w.Stats().Probes
	testkit.Until(t, "two probes have come back since", func() bool { return w.Stats().Probes >= probes+2 })
	close(let)
	db.empty("all is handled")
	testkit.OK(t, w.end())
	expect(t, one[int](db, "SELECT n::int FROM public.effects WHERE attempt = 1"), 2, "place of the row that is not blocked")
}
