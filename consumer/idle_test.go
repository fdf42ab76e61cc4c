package consumer_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/consumer"
	"github.com/pgleases/pgleases/internal/testkit"
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
	db.becomes("it owns all", partitions, "pgleases.consumer_owners")
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

// Behind a pooler, whose connections have other process numbers, a process does not rely on notifications.
func TestProcessBehindAPoolerPollsOften(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDirectDatabase(t)
	w := newWorker(db, consumer.Each(effect))
	w.pool = testkit.Pool(db.t, db.url, func(c *pgxpool.Config) {
		c.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, address)
			return &pooled{conn}, err
		}
	})
	w.Consumer = testkit.Must(consumer.New(t.Context(), w.client, w.pool, "orders", outbox, consumer.Each(effect),
		consumer.WithoutMigration(), consumer.WithPoll(idlePoll)))(t)
	w.QuietAfter(quiet)
	w.run()
	w.pollsOften()
	testkit.OK(t, w.end())
}

// Only an enabled trigger that wakes this consumer announces rows.
func TestOnlyItsOwnTriggerAnnouncesRows(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	const trigger = "CREATE TRIGGER consumer_inserted AFTER INSERT ON public.outbox FOR EACH STATEMENT " +
		"EXECUTE FUNCTION pgleases.consumer_inserted"
	expect(t, newWorker(db, consumer.Each(effect)).Announced(), true, "announced at first")
	for _, change := range []string{
		"ALTER TABLE public.outbox DISABLE TRIGGER consumer_inserted",
		"DROP TRIGGER consumer_inserted ON public.outbox",
		trigger + "('others')",
	} {
		db.exec(change)
		expect(t, newWorker(db, consumer.Each(effect)).Announced(), false, "announced after "+change)
	}
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
		const listener = `SELECT %s FROM pg_stat_activity
			WHERE datname = current_database() AND query = 'commit' AND pid <> pg_backend_pid()`
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
	db.becomes("it is skipped", 1, "pgleases.consumer_dead_letters")
	w.waits()
	testkit.OK(t, db.manager().Return(t.Context(), 9))
	failed(3)
	testkit.Must(db.manager().Pause(t.Context()))(t)
	w.waits()
	db.insert(8, 8)
	w.waits()
	expect(t, db.count("public.outbox"), 9, "rows in the pause")
	testkit.Must(db.manager().Resume(t.Context()))(t)
	db.becomes("all is handled but the row and one of its key", 2, "public.outbox")
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
	channel := one[int](db, "SELECT pgleases.notify_channel('consumer/orders')")
	testkit.Must(conn.Exec(t.Context(), fmt.Sprintf("LISTEN pgleases_notify_%d", channel)))(t)
	long := testkit.Must(db.Begin(t.Context()))(t)
	defer func() { testkit.OK(t, long.Rollback(context.Background())) }()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience/2)
	defer cancel()
	const insert = "INSERT INTO public.outbox (customer, payload) VALUES ('long', '1')"
	testkit.Must(long.Exec(t.Context(), insert))(t) // its notification
	for range 3 {
		slice := one[int64](db, "SELECT (extract(epoch FROM clock_timestamp()) * 5)::bigint")
		testkit.Until(t, "the next 200 ms begin", func() bool {
			testkit.Must(long.Exec(t.Context(), insert))(t)
			return one[bool](db, "SELECT (extract(epoch FROM clock_timestamp()) * 5)::bigint > $1", slice)
		})
		testkit.Must(long.Exec(t.Context(), insert))(t)
		db.insert(1, 1)
		if _, err := conn.Conn().WaitForNotification(ctx); err != nil {
			t.Fatalf("an insert is not announced beside the other transaction: %v", err)
		}
	}
}
