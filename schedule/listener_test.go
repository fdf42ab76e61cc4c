package schedule_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/schedule"
)

// What is enqueued elsewhere, or in a transaction, is due now, and begins long before the next
// regular poll.
func TestJobOfOtherProcessBeginsAtOnce(t *testing.T) {
	t.Parallel()
	db := newDirectDatabase(t)
	w := newWorker(db, schedule.WithPartitions(1))
	w.Times().Poll = rarely
	mail := schedule.InTx(w.Scheduler, "mail", note)
	testkit.OK(t, mail.Add("letters", "letters", hourly, missedAll))
	w.run()
	// An Enqueuer may not know the number of partitions before.
	counts(db, "it has joined", 1, "pgleases.schedule_groups")
	other := newWorker(db, schedule.WithPartitions(1))
	others := schedule.InTx(other.Scheduler, "mail", note)
	enqueuer := testkit.Must(schedule.NewEnqueuer(db.Pool, group))(t)
	inTx := func(put func(tx pgx.Tx) error) error { return pgx.BeginFunc(t.Context(), db.Pool, put) }
	want := int64(0)
	for _, put := range []struct {
		what string
		put  func() error
	}{
		{"Enqueue of an Enqueuer", func() error {
			_, err := schedule.JobsOf[string](enqueuer, "mail").Enqueue(t.Context(), "a")
			return err
		}},
		{"EnqueueTx of the owner", func() error {
			return inTx(func(tx pgx.Tx) error { _, err := mail.EnqueueTx(t.Context(), tx, "b"); return err })
		}},
		{"Trigger", func() error { _, err := other.Trigger(t.Context(), "letters"); return err }},
		{"a job that is replaced", func() error {
			_, later := others.Enqueue(t.Context(), "later", schedule.WithDelay(time.Hour), replacing("c"))
			_, now := others.Enqueue(t.Context(), "now", replacing("c"))
			return errors.Join(later, now)
		}},
		{"Enqueue of the owner", func() error { _, err := mail.Enqueue(t.Context(), "d"); return err }},
	} {
		testkit.OK(t, put.put())
		want++
		testkit.Until(t, put.what+" has run", func() bool { return int64(len(db.effects())) == want })
	}
	db.setClock(midnight.Add(90 * time.Minute)) // a tick has passed, and no poll has found it
	testkit.OK(t, others.Put(t.Context(), "letters", "other letters", hourly, missedAll))
	testkit.Until(t, "a schedule that is overdue when it is put has run", func() bool {
		return int64(len(db.effects())) == want+1
	})
}

// Of several jobs that are enqueued at the same time one notifies, and the others are found a
// little later.
func TestJobWithoutNotificationBeginsSoon(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDirectDatabase(t)
	w := newWorker(db, schedule.WithPartitions(1))
	w.Times().Poll = rarely
	w.Times().Silence = 2 * time.Second
	mail := schedule.InTx(w.Scheduler, "mail", note)
	w.run()
	id := testkit.Must(mail.Enqueue(t.Context(), "it has polled"))(t)
	w.outcome(id)
	now := one[time.Time](db, "SELECT clock_timestamp()")
	// As after a fifth of a second, because the notification of the job may be younger than that.
	db.exec("SELECT setval('pgleases.notified', 1)")
	db.exec("SELECT pgleases.notify('schedule/" + group + "')")
	testkit.Until(t, "it polls", func() bool {
		return db.sessions("query LIKE '%schedule_poll%' AND query_start > $1 AND state = 'idle'", now) > 0
	})
	db.exec(`INSERT INTO pgleases.jobs (group_name, key, partition, kind, name, trigger, args, priority, at, due)
		SELECT '` + group + `', 'k', 0, 'mail', '', 'job', '"quiet"', 1, now, now FROM public.test_clock`)
	testkit.Until(t, "it has run", func() bool { return len(db.effects()) == 2 })
}

// Another group of the same channel notifies all the time: a job still begins soon.
func TestNoGroupIsUntoldForAnother(t *testing.T) {
	t.Parallel()
	db := newDirectDatabase(t)
	w := newWorker(db, schedule.WithPartitions(1))
	w.Times().Poll = rarely
	mail := schedule.InTx(w.Scheduler, "mail", note)
	w.run()
	id := testkit.Must(mail.Enqueue(t.Context(), "it has polled"))(t)
	w.outcome(id)
	other := one[string](db, `SELECT 'group ' || n FROM generate_series(1, 1000) AS n
		WHERE pgleases.notify_channel('schedule/group ' || n) = pgleases.notify_channel('schedule/' || $1)
		LIMIT 1`, group)
	for n := range 3 { // one of which is in the same fifth of a second
		db.exec(fmt.Sprintf(`SELECT pgleases.notify('schedule/%s');
			SELECT pgleases.schedule_enqueue('%s', 1, '[{"key": "k", "kind": "mail", "trigger": "job", "args": "here", "priority": 1}]')`, other, group))
		testkit.Until(t, "it has run", func() bool { return len(db.effects()) == 2+n })
	}
}

// However many jobs are put, few notifications are sent: each has all commits of the server that send one wait. Those that are due later send none.
func TestFewNotificationsAreSent(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDirectDatabase(t)
	// It owns the partition all the time, also on a busy machine.
	w := newWorkerFor(db, 30*time.Second, schedule.WithPartitions(1))
	mine := schedule.InTx(w.Scheduler, "mail", note)
	w.run()
	first := testkit.Must(mine.Enqueue(t.Context(), "it owns the partition"))(t)
	w.outcome(first)
	conn := testkit.Must(pgx.Connect(t.Context(), db.url))(t)
	t.Cleanup(func() { testkit.OK(t, conn.Close(context.Background())) })
	channel := "pgleases_notify_" + one[string](db, "SELECT pgleases.notify_channel($1)::text", "schedule/"+group)
	testkit.Must(conn.Exec(t.Context(), "SET idle_session_timeout = 0; LISTEN "+channel))(t)
	enqueuer := testkit.Must(schedule.NewEnqueuer(db.Pool, group))(t)
	mail := schedule.JobsOf[string](enqueuer, "mail")
	heard := func(what string, least, most int, put func() error) {
		t.Helper()
		began, n := time.Now(), 0
		// Nothing is sent for 200 ms after what came before.
		for puts := 0; puts < 200 || time.Since(began) < 250*time.Millisecond; puts++ {
			testkit.OK(t, put())
		}
		most *= int(time.Since(began)/(200*time.Millisecond)) + 2
		testkit.Must(conn.Exec(t.Context(), "NOTIFY "+channel+", 'the end'"))(t)
		for note := new(pgconn.Notification); note.Payload != "the end"; n++ {
			note = testkit.Must(conn.WaitForNotification(t.Context()))(t)
		}
		if n--; n < least || n > most {
			t.Errorf("%d notifications of %s, not %d to %d", n, what, least, most)
		}
	}
	enqueue := func(opts ...schedule.JobOption) func() error {
		return func() error { return second(mail.Enqueue(t.Context(), "x", opts...)) }
	}
	heard("jobs", 1, 1, enqueue())
	heard("jobs of later", 0, 0, enqueue(schedule.WithDelay(time.Hour)))
}

// A poll makes blocked schedules due while they are edited elsewhere, whatever the default
// isolation level.
func TestPollUnderAnyTransactionDefault(t *testing.T) {
	t.Parallel()
	db := newDirectDatabase(t)
	db.exec(serializable)
	w, log := newLogged(db)
	k := schedule.InTx(w.Scheduler, "books", effect)
	testkit.OK(t, k.Put(t.Context(), "close", args{}, hourly))
	l := newLedger(db, "close")
	// So nothing moves to other partitions:
	db.exec("INSERT INTO pgleases.schedule_groups VALUES ('" + group + "', 4)")
	db.exec(`UPDATE pgleases.schedules SET blocked_reason = 'unknown', due = due + interval '1 hour',
		blocked_since = (SELECT now FROM public.test_clock)`)
	held := db.begin("SET TRANSACTION ISOLATION LEVEL READ COMMITTED; LOCK TABLE pgleases.schedules IN EXCLUSIVE MODE")
	w.run()
	db.blocked("a poll waits", "schedule_poll")
	testkit.Must(held.Exec(t.Context(), "UPDATE pgleases.schedules SET revision = revision + 1"))(t)
	testkit.OK(t, held.Commit(t.Context()))
	db.setClock(midnight.Add(time.Hour))
	l.settled(w.Scheduler)
	expect(t, log.count("poll failed"), 0, "failed polls")
}

// A function of the pool's configuration that ignores its context, as a BeforeConnect or DialFunc may, holds up a poll for a while, and the end of Run.
func TestHookThatHangsStopsNoPolls(t *testing.T) {
	t.Parallel()
	db := newDirectDatabase(t)
	w := newWorker(db)
	w.Times().PollLimit = 300 * time.Millisecond
	k := schedule.InTx(w.Scheduler, "books", effect)
	hung, let := make(chan struct{}, 2), make(chan struct{})
	defer close(let)
	hang := func() {
		db.polled()
		w.wire.Before("user\x00", func() { hung <- struct{}{}; <-let }) // in the middle of a connection attempt
		w.pool.Reset()
		db.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE datname = current_database() AND query LIKE '%schedule_poll%' AND pid <> pg_backend_pid()`)
		testkit.Receive(t, "it hangs", hung)
	}
	w.run()
	hang()
	w.outcome(testkit.Must(k.Enqueue(t.Context(), args{}))(t))
	hang()
	w.end()
}

// A hungPoll is a tracer that hangs in the second poll.
type hungPoll struct {
	polls   atomic.Int32
	hung    chan struct{}
	release chan struct{}
}

func (h *hungPoll) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if strings.Contains(data.SQL, "schedule_poll") && h.polls.Add(1) == 2 {
		close(h.hung)
		<-h.release
	}
	return ctx
}

func (h *hungPoll) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// A poll that hangs keeps its connection, and the polls after it have another. The end of Run closes
// that one, and the poll closes its own when it goes on.
func TestConnectionsOfHungPollsAreClosed(t *testing.T) {
	t.Parallel()
	db := newDirectDatabase(t)
	tracer := &hungPoll{hung: make(chan struct{}), release: make(chan struct{})}
	db.tracer = tracer
	w := newWorker(db)
	release := sync.OnceFunc(func() { close(tracer.release) })
	t.Cleanup(release)
	w.Times().PollLimit, w.Times().Overrun = time.Second, 50*time.Millisecond
	w.run()
	testkit.Receive(t, "a poll hangs", tracer.hung)
	testkit.Until(t, "other polls go on", func() bool { return tracer.polls.Load() > 3 })
	w.end()
	polls := func() int64 { return db.sessions("query LIKE '%schedule_poll%'") }
	testkit.Until(t, "only the hung poll has a connection", func() bool { return polls() == 1 })
	release()
	testkit.Until(t, "no poll has a connection", func() bool { return polls() == 0 })
}
