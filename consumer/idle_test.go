package consumer_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/consumer"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/timeguard"
)

const (
	idlePoll = 40 * time.Millisecond
	quiet    = 250 * time.Millisecond
)

// idler is a worker of a queue that notifications announce, and that owns all partitions.
func idler(db *database, h consumer.Handler[Order], opts ...consumer.Option) *worker {
	db.t.Helper()
	w := newWorker(db, h, append([]consumer.Option{consumer.WithPoll(idlePoll)}, opts...)...)
	w.QuietAfter(quiet)
	w.run()
	testkit.Becomes(db.t, db.Pool, "it owns all", int64(partitions), "SELECT count(*) FROM pgleases.consumer_owners")
	return w
}

// four returns how long four pauses between polls last.
func (w *worker) four() time.Duration {
	w.t.Helper()
	var began time.Time
	first := w.Stats().Polls + 1
	testkit.Until(w.t, "it has polled", func() bool {
		n := w.Stats().Polls
		if began.IsZero() && n >= first {
			began, first = time.Now(), n
		}
		return !began.IsZero() && n >= first+4
	})
	return time.Since(began)
}

// pollsRarely waits until only every fifth poll is sent: transactions of other tests may be open.
func (w *worker) pollsRarely() {
	w.t.Helper()
	testkit.Until(w.t, "it polls rarely", func() bool { return w.four() > 3*5*idlePoll })
}

// pollsOften checks that each poll is sent, although nothing comes for a while. A busy machine may
// delay some.
func (w *worker) pollsOften() {
	w.t.Helper()
	for range 3 { // until no notification is recent
		w.four()
	}
	testkit.Until(w.t, "it polls often", func() bool { return w.four() < 2*5*idlePoll })
}

// quieten waits until no notification is recent, without a look at polls.
func quieten(t testing.TB) {
	t.Helper()
	began := time.Now()
	testkit.Until(t, "no notification is recent", func() bool { return time.Since(began) > 2*quiet })
}

// late is an open transaction that has inserted a row.
func (db *database) late() pgx.Tx {
	db.t.Helper()
	tx := testkit.Must(db.Begin(db.t.Context()))(db.t)
	db.t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	testkit.Must(tx.Exec(db.t.Context(), "INSERT INTO public.outbox (customer, payload) VALUES ('late', '1')"))(db.t)
	return tx
}

// notify notifies the consumer, as an insert does that is not shortly after another one.
func (db *database) notify() {
	db.t.Helper()
	db.exec("SELECT pg_notify('pgleases_notify_' || pgleases.notify_channel('consumer/orders'), '')")
}

// An idle process polls rarely while inserts notify it. If a row comes without a notification, it
// is found, and the process polls often from then on.
func TestIdleProcessPollsRarely(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDirectDatabase(t)
	w := idler(db, consumer.Each(effect))
	w.pollsRarely()
	db.insert(8, 8)
	db.empty("all is handled")
	w.pollsRarely()
	db.exec("ALTER TABLE public.outbox DISABLE TRIGGER consumer_inserted")
	w.pollsRarely()
	db.insert(8, 8)
	db.empty("a poll has found the rows")
	w.pollsOften()
	testkit.OK(t, w.end())
	db.exact(16)
}

// A process polls often while it cannot rely on notifications, or a row waits for another attempt.
func TestIdleProcessPollsOften(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	for name, begin := range map[string]func(*database) *worker{
		"there is no trigger": func(db *database) *worker {
			db.exec("DROP TRIGGER consumer_inserted ON public.outbox")
			return idler(db, consumer.Each(effect))
		},
		"the trigger is disabled": func(db *database) *worker {
			db.exec("ALTER TABLE public.outbox DISABLE TRIGGER consumer_inserted")
			return idler(db, consumer.Each(effect))
		},
		"the trigger wakes another consumer": func(db *database) *worker {
			db.exec("DROP TRIGGER consumer_inserted ON public.outbox; CREATE TRIGGER consumer_inserted AFTER INSERT ON public.outbox FOR EACH STATEMENT EXECUTE FUNCTION pgleases.consumer_inserted('others')")
			return idler(db, consumer.Each(effect))
		},
		"its connection is through a pooler": func(db *database) *worker {
			w := newWorker(db, consumer.Each(effect))
			w.pool = testkit.Pool(db.t, db.url, func(c *pgxpool.Config) {
				c.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
					conn, err := new(net.Dialer).DialContext(ctx, network, address)
					return &pooled{conn}, err
				}
			})
			w.Consumer = testkit.Must(consumer.New(db.t.Context(), w.client, w.pool, "orders", outbox, consumer.Each(effect), consumer.WithoutMigration(), consumer.WithPoll(idlePoll)))(db.t)
			w.QuietAfter(quiet)
			return w.run()
		},
		"a row waits for another attempt": func(db *database) *worker {
			w := idler(db, failing(1), backoff(time.Hour, time.Hour))
			w.pollsRarely()
			db.insert(1, 1)
			testkit.Becomes(db.t, db.Pool, "it has failed", int64(1), "SELECT count(*) FROM pgleases.consumer_blocked")
			return w
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDirectDatabase(t)
			w := begin(db)
			w.pollsOften()
			testkit.OK(t, w.end())
		})
	}
}

// While a handler is at work, a process polls often: no poll sees what its partition waits for.
func TestBusyProcessPollsOften(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDirectDatabase(t)
	in, out := make(chan struct{}), make(chan struct{})
	w := idler(db, consumer.AtLeastOnce(func(context.Context, []consumer.Row[Order]) error {
		close(in)
		<-out
		return nil
	}))
	release := closer(t, out)
	w.pollsRarely()
	db.insert(1, 1)
	testkit.Receive(t, "a row is in hand", in)
	w.pollsOften()
	release()
	db.empty("it is handled")
	testkit.OK(t, w.end())
}

// The same holds for a poll that was under way when the handler ended.
func TestPollBesideAJobIsNoReasonToPollRarely(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	timeguard.Run(t, func(t *timeguard.Try) {
		const poll = time.Second
		db := newDirectDatabase(t)
		var calls atomic.Int64
		var failed, again time.Time
		var w *worker
		w = idler(db, consumer.AtLeastOnce(func(context.Context, []consumer.Row[Order]) error {
			if calls.Add(1) > 1 {
				again = time.Now()
				return nil
			}
			quieten(t)
			w.polled(2)
			deliver := w.wire.Delay("pg_snapshot_xmin")
			testkit.Until(t, "a poll is under way", w.wire.Delayed)
			go func() {
				testkit.Becomes(t, db.Pool, "the row has failed", int64(1), "SELECT count(*) FROM pgleases.consumer_blocked")
				testkit.Until(t, "the job has ended", func() bool { return w.Stats().Failures > 0 })
				deliver()
			}()
			failed = time.Now()
			return errors.New("not yet")
		}), consumer.WithPoll(poll), backoff(time.Millisecond, time.Millisecond))
		w.waits()
		db.insert(1, 1)
		db.empty("it is handled")
		testkit.OK(t, w.end())
		if waited := again.Sub(failed); waited > 4*poll {
			t.Missed(failed, 4*poll, "the second attempt came %v after the first", waited)
		}
	})
}

// The notification of an insert is suppressed shortly after another one. So a process polls often
// until all transactions have ended that may have inserted then.
func TestOpenTransactionKeepsProcessPolling(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDirectDatabase(t)
	w := idler(db, consumer.Each(effect))
	w.pollsRarely()
	late := db.late()
	db.notify()
	w.pollsOften()
	testkit.OK(t, late.Commit(t.Context()))
	db.empty("a poll has found the row")
	testkit.OK(t, w.end())
}

// The same if no poll can be sent before its time, because jobs work on all partitions.
func TestOpenTransactionOfABusyTimeKeepsProcessPolling(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDirectDatabase(t)
	in, out := make(chan struct{}, 100), make(chan struct{})
	release := closer(t, out)
	w := idler(db, consumer.AtLeastOnce(func(context.Context, []consumer.Row[Order]) error {
		in <- struct{}{}
		<-out
		return nil
	}))
	w.pollsRarely()
	db.insert(40, 40)
	for range 3 {
		testkit.Receive(t, "each worker has a batch, of all partitions together", in)
	}
	late := db.late()
	db.notify()
	quieten(t)
	release()
	db.empty("all is handled")
	w.pollsOften()
	testkit.OK(t, late.Commit(t.Context()))
	db.empty("a poll has found the row")
	testkit.OK(t, w.end())
}

// pooled is a connection whose process number is not that of its server process.
type pooled struct{ net.Conn }

func (p *pooled) Read(b []byte) (int, error) {
	n, err := p.Conn.Read(b)
	if at := bytes.Index(b[:n], []byte{'K', 0, 0, 0, 12}); at >= 0 && at+9 <= n {
		binary.BigEndian.PutUint32(b[at+5:], 1<<30)
	}
	return n, err
}

// A process knows at once that the connection is lost on which notifications arrive.
func TestLostListenerIsReplacedAtOnce(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDirectDatabase(t)
	w := db.begun(consumer.WithPoll(time.Hour))
	for range 3 {
		w.waits()
		w.pool.Reset() // only the process's own connections are left
		polls := w.Stats().Polls
		const listener = "SELECT %s FROM pg_stat_activity WHERE datname = current_database() AND query = 'commit' AND pid <> pg_backend_pid()"
		testkit.Becomes(t, db.Pool, "the pool has no connections", int64(1), fmt.Sprintf(listener, "count(*)"))
		db.exec("SELECT pg_terminate_backend($1)", one[int](db, fmt.Sprintf(listener, "pid")))
		testkit.Until(t, "it polls again", func() bool { return w.Stats().Polls > polls })
		db.insert(8, 8)
		db.empty("all is handled")
	}
	testkit.OK(t, w.end())
	db.exact(32)
}

// What operators change takes effect long before the next poll.
func TestOperatorsNotifyConsumers(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDirectDatabase(t)
	w := newWorker(db, failing(9), consumer.WithPoll(time.Hour), attempts(1)).run()
	db.insert(9, 9)
	failed := func(n int64) {
		testkit.Until(t, "the row has failed", func() bool { return w.Stats().Failures == n })
		w.waits()
	}
	failed(1)
	db.retry(9)
	failed(2)
	db.skip(9)
	testkit.Becomes(t, db.Pool, "it is skipped", int64(1), "SELECT count(*) FROM pgleases.consumer_dead_letters")
	w.waits()
	testkit.OK(t, db.manager().Return(t.Context(), 9))
	failed(3)
	testkit.Must(db.manager().Pause(t.Context()))(t)
	w.waits()
	db.insert(8, 8)
	w.waits()
	expect(t, one[int64](db, "SELECT count(*) FROM public.outbox"), 9, "rows in the pause")
	testkit.Must(db.manager().Resume(t.Context()))(t)
	testkit.Becomes(t, db.Pool, "all is handled but the row and one of its key", int64(2), "SELECT count(*) FROM public.outbox")
	testkit.OK(t, w.end())
}

// A transaction that inserts again and again does not keep the notifications of others back, except
// at first: it sends one at its end.
func TestLongInserterLeavesNotificationsToOthers(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDirectDatabase(t)
	conn := testkit.Must(db.Acquire(t.Context()))(t)
	defer conn.Release()
	testkit.Must(conn.Exec(t.Context(), fmt.Sprintf("LISTEN pgleases_notify_%d", one[int](db, "SELECT pgleases.notify_channel('consumer/orders')"))))(t)
	long := testkit.Must(db.Begin(t.Context()))(t)
	defer func() { testkit.OK(t, long.Rollback(context.Background())) }()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience/2)
	defer cancel()
	testkit.Must(long.Exec(t.Context(), "INSERT INTO public.outbox (customer, payload) VALUES ('long', '1')"))(t) // its notification
	for range 3 {
		slice := one[int64](db, "SELECT (extract(epoch FROM clock_timestamp()) * 5)::bigint")
		testkit.Until(t, "the next 200 ms begin", func() bool {
			testkit.Must(long.Exec(t.Context(), "INSERT INTO public.outbox (customer, payload) VALUES ('long', '1')"))(t)
			return one[bool](db, "SELECT (extract(epoch FROM clock_timestamp()) * 5)::bigint > $1", slice)
		})
		testkit.Must(long.Exec(t.Context(), "INSERT INTO public.outbox (customer, payload) VALUES ('long', '1')"))(t)
		db.insert(1, 1)
		if _, err := conn.Conn().WaitForNotification(ctx); err != nil {
			t.Fatalf("an insert is not announced beside the other transaction: %v", err)
		}
	}
}
