package consumer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/consumer"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/testkit/clients"
)

// A statement of a batch whose answer never comes delays its rows only for a while. A commit may
// take as long as a batch.
func TestSilentConnectionDelaysItsBatchOnly(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	for name, text := range map[string]string{"begin": "guard_many", "commit": "DELETE FROM public.outbox"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			w := db.begun(consumer.WithTimeout(11 * time.Second))
			w.wire.Mute(text)
			began := time.Now()
			db.insert(40, 40)
			db.empty("all is handled")
			expect(t, w.wire.Left(), 0, "messages to be lost")
			if took := time.Since(began); name == "commit" && took < 11*time.Second {
				t.Errorf("the commit was given up after %v", took)
			}
			testkit.OK(t, w.end())
			expect(t, w.Stats().BrokenOff, 1, "batches that were broken off")
			db.exact(48)
		})
	}
}

// A batch does not wait for a connection of the pool for ever, so its partition can move.
func TestExhaustedPoolBreaksBatchesOff(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	w := db.begun()
	var taken []*pgxpool.Conn
	for range w.pool.Config().MaxConns {
		taken = append(taken, testkit.Must(w.pool.Acquire(t.Context()))(t))
	}
	release := sync.OnceFunc(func() {
		for _, conn := range taken {
			conn.Release()
		}
	})
	t.Cleanup(release)
	db.insert(8, 8)
	testkit.Until(t, "a batch is broken off", func() bool { return w.Stats().BrokenOff > 0 })
	release()
	db.empty("all is handled")
	testkit.OK(t, w.end())
	db.exact(16)
}

// The time of a handler begins when its rows are read, and not while the batch waits for a
// connection of the pool.
func TestHandlerHasItsTimeAfterAWaitForThePool(t *testing.T) {
	t.Parallel()
	for name, inTx := range map[string]bool{"Each": true, "AtLeastOnce": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			const timeout = time.Second
			var late atomic.Int64
			note := func(ctx context.Context) {
				if ctx.Err() != nil {
					late.Add(1)
				}
			}
			h := consumer.Each(func(ctx context.Context, tx pgx.Tx, row consumer.Row[Order]) error {
				note(ctx)
				return effect(ctx, tx, row)
			})
			if !inTx {
				h = consumer.AtLeastOnce(func(ctx context.Context, rows []consumer.Row[Order]) error {
					note(ctx)
					return db.published(ctx, rows)
				})
			}
			w := newWorker(db, h, consumer.WithTimeout(timeout)).run()
			db.allBegun()
			w.polled(1)
			var taken []*pgxpool.Conn
			for range w.pool.Config().MaxConns {
				taken = append(taken, testkit.Must(w.pool.Acquire(t.Context()))(t))
			}
			db.insert(1, 1)
			testkit.Until(t, "a batch has waited", func() bool { return w.Stats().OldestBatch > timeout+timeout/4 })
			for _, conn := range taken {
				conn.Release()
			}
			db.empty("the row is handled")
			testkit.OK(t, w.end())
			expect(t, late.Load(), 0, "calls that began after their timeout")
		})
	}
}

// A process that cannot record its end waits for a while only.
func TestEndThatIsNotRecordedDelaysNoOwner(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := db.begun()
	w.wire.Mute("consumer_end")
	testkit.OK(t, w.end())
	expect(t, w.wire.Left(), 0, "messages to be lost")
	next := newWorker(db, consumer.Each(effect)).run()
	db.insert(8, 8)
	db.empty("all is handled")
	testkit.OK(t, next.end())
	db.exact(16)
}

// A process that lost its partitions because the database was away has not crashed.
func TestOutageIsNoCrash(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	log := make(lines, 1000)
	db.ttl = 6 * time.Second // for its trust to end
	w := db.begun(consumer.WithLogger(slog.New(slog.NewTextHandler(log, nil))))
	db.ttl = clients.TTL
	begun := one[int64](db, "SELECT max(begun) FROM pgleases.consumer_owners")
	w.wire.Cut()
	w.evict()
	next := newWorker(db, consumer.Each(effect)).run()
	const crashed = "pgleases.consumer_owners WHERE crashed IS NOT NULL"
	db.becomes("another process owns all", 8, crashed+" AND begun > $1", begun)
	log.until(t, "end not recorded")
	w.wire.Mend()
	log.until(t, `level=INFO msg="consumer: end recorded" `)
	db.becomes("the first one has ended", 0, `
		pgleases.consumer_owners WHERE crashed IS NOT NULL OR watched_to IS NOT NULL`)
	db.insert(8, 8)
	db.empty("all is handled")
	testkit.OK(t, next.end())
	db.exact(16)
}

// Run waits for a while only if it cannot leave its lease. That its end is not recorded is logged
// once.
func TestRunEndsWithoutDatabase(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	var log bytes.Buffer
	w := db.begun(consumer.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	w.LeaveWithin(time.Second)
	w.wire.Cut()
	if err := w.end(); err == nil {
		t.Error("Run has left the lease")
	}
	if n := strings.Count(log.String(), "end not recorded"); n != 1 {
		t.Errorf("%d messages that an end was not recorded, want one", n)
	}
	db.exact(8)
}

// A handler that ignores its context keeps its partition for the timeout and the drain margin of 5 s
// at most, and does not commit.
func TestHandlerThatIgnoresItsContextLosesItsPartition(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	in, out := make(chan struct{}), make(chan struct{})
	log := make(lines, 1000)
	w := newWorker(db, consumer.AtLeastOnce(func(ctx context.Context, rows []consumer.Row[Order]) error {
		in <- struct{}{}
		<-out
		return nil
	}), consumer.WithTimeout(100*time.Millisecond), consumer.WithLogger(slog.New(slog.NewTextHandler(log, nil))))
	let := closer(t, out)
	w.run()
	db.insert(1, 1)
	testkit.Receive(t, "the row is in hand", in)
	w.stop()
	next := newWorker(db, consumer.InTx(func(ctx context.Context, tx pgx.Tx, rows []consumer.Row[Order]) error {
		return effects(ctx, tx, rows)
	})).run()
	db.empty("the next owner has handled it")
	log.until(t, "still running after its context ended")
	let()
	log.until(t, `level=INFO msg="consumer: handler returned after its context ended"`)
	testkit.OK(t, w.end())
	testkit.OK(t, next.end())
	db.exact(1)
}

// stubborn begins a worker of Each with one slot. Its handler calls a function first, and works on when
// its context has ended.
func stubborn(db *database, first func(consumer.Row[Order]) error) *worker {
	db.t.Helper()
	w := newWorker(db, consumer.Each(func(ctx context.Context, tx pgx.Tx, row consumer.Row[Order]) error {
		err := first(row)
		if err != nil {
			return err
		}
		return effect(context.WithoutCancel(ctx), tx, row)
	}), consumer.WithMaxRunning(1), consumer.WithTimeout(time.Second), backoff(time.Millisecond, time.Millisecond))
	w.LogOverrunAfter(10 * time.Millisecond)
	return w.run()
}

// A call of Each that ignores the end of its context keeps the partition of its row. The others of its
// batch go on, and what it had written for all of them is rolled back.
func TestCallOfEachThatIgnoresItsContextKeepsItsPartition(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	all := db.oneOfEachPartition()
	deaf := all[partitions/2]
	db.put(all...)
	end := make(chan struct{})
	let := closer(t, end)
	var calls atomic.Int64
	w := stubborn(db, func(row consumer.Row[Order]) error {
		if row.Key == deaf && calls.Add(1) == 1 {
			<-end
		}
		return nil
	})
	db.becomes("the other rows are handled", 1, "public.outbox")
	expect(t, calls.Load(), 1, "calls for the row")
	testkit.Until(t, "the call is counted", func() bool { return w.Stats().Overdue == 1 })
	let()
	db.empty("the row is handled in the end")
	testkit.OK(t, w.end())
	db.exact(int64(partitions))
}

// So does a call that hangs when its row is handled again, alone, after it has failed in its batch.
func TestSecondCallThatHangsKeepsItsPartition(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	all := db.oneOfEachPartition()
	deaf := all[partitions/2]
	db.put(all...)
	end := make(chan struct{})
	let := closer(t, end)
	var calls atomic.Int64
	w := stubborn(db, func(row consumer.Row[Order]) error {
		if row.Key != deaf {
			return nil
		}
		switch calls.Add(1) {
		case 1:
			return errors.New("reset by peer")
		case 2:
			<-end
		}
		return nil
	})
	testkit.Until(t, "the call is counted", func() bool { return w.Stats().Overdue == 1 })
	db.put(all[0], all[7])
	db.becomes("the other rows are handled", 1, "public.outbox")
	let()
	db.empty("the row is handled in the end")
	testkit.OK(t, w.end())
}

// A call that says Unavailable, long after its timeout, is no failed attempt, whatever its batch has.
func TestHungCallThatFindsSomethingAwayIsNoAttempt(t *testing.T) {
	for _, rows := range []int{1, partitions} {
		t.Run(fmt.Sprint(rows), func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			all := db.oneOfEachPartition()
			db.put(all[:rows]...)
			end := make(chan struct{})
			let := closer(t, end)
			var calls atomic.Int64
			w := stubborn(db, func(row consumer.Row[Order]) error {
				if row.Key == all[0] && calls.Add(1) == 1 {
					<-end
					return consumer.Unavailable(errors.New("the receiver is away"))
				}
				return nil
			})
			testkit.Until(t, "the call is counted", func() bool { return w.Stats().Overdue == 1 })
			let()
			db.empty("the row is handled in the end")
			expect(t, w.Stats().Failures, 0, "failures")
			expect(t, w.Stats().Pauses, 1, "pauses")
			testkit.OK(t, w.end())
		})
	}
}

// A batch that goes on for longer than the drain timeout loses its partition to the next owner.
func TestDrainTimeoutEndsABatch(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	in, causes := make(chan struct{}), make(chan error, 1)
	w := newWorker(db, consumer.InTx(func(ctx context.Context, tx pgx.Tx, rows []consumer.Row[Order]) error {
		close(in)
		<-ctx.Done()
		causes <- context.Cause(ctx)
		return ctx.Err()
	}), consumer.WithTimeout(time.Hour), consumer.WithDrainTimeout(50*time.Millisecond)).run()
	db.insert(1, 1)
	testkit.Receive(t, "the row is in hand", in)
	testkit.OK(t, w.end())
	if cause := testkit.Receive(t, "the handler's context ends", causes); !errors.Is(cause, pgleases.ErrDrainTimeout) {
		t.Errorf("cause %v", cause)
	}
	next := newWorker(db, consumer.Each(effect))
	testkit.OK(t, next.RunUntilEmpty(t.Context()))
	db.exact(1)
}

// lines are what a logger writes.
type lines chan string

func (l lines) Write(line []byte) (int, error) {
	l <- string(line)
	return len(line), nil
}

// until waits until a text is logged.
func (l lines) until(t testing.TB, text string) {
	t.Helper()
	for !strings.Contains(testkit.Receive(t, "it is logged: "+text, l), text) {
	}
}
