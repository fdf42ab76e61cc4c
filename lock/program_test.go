package lock_test

import (
	"context"
	"testing"

	"github.com/pgleases/pgleases/internal/testkit"
)

// The work of the program in the example, which the example itself does not run: the report is made
// by the process that gets the lock, and by no other one meanwhile.
func TestProgramOfReportExample(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	one, two := newWorker(t, url), newWorker(t, url)
	testkit.Execute(t, one.pool, "CREATE TABLE orders (id bigint PRIMARY KEY, amount int)")
	testkit.Execute(t, one.pool, "CREATE TABLE reports (made timestamptz, total bigint)")
	testkit.Execute(t, one.pool, "INSERT INTO orders SELECT n, 2 FROM generate_series(1, 2001) AS n")
	const reports = "SELECT coalesce(string_agg(total::text, ' '), 'none') FROM reports"
	held := one.held(one.TryAcquire, "report")
	testkit.OK(t, report(t.Context(), two.Locks, two.pool))
	expect(t, testkit.Value[string](t, one.pool, reports), "none", "reports while another process has the lock")
	release(t, held)
	testkit.OK(t, report(t.Context(), two.Locks, two.pool))
	expect(t, testkit.Value[string](t, one.pool, reports), "4002", "reports")
	testkit.OK(t, report(t.Context(), one.Locks, one.pool))
	expect(t, testkit.Value[string](t, one.pool, reports), "4002 4002", "reports of a later call")
}

// Without a limit for the release, the program would wait until the database is back.
func TestReportEndsWhileTheDatabaseIsAway(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	url := direct(t)
	a := newWorker(t, url)
	db := testkit.Pool(t, url)
	testkit.Execute(t, db, "CREATE TABLE orders (id bigint PRIMARY KEY, amount int)")
	tx := testkit.Must(db.Begin(t.Context()))(t) // the report waits in its query
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	testkit.Must(tx.Exec(t.Context(), "LOCK TABLE orders"))(t)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- report(ctx, a.Locks, a.pool) }()
	const waiting = "SELECT count(*) FROM pg_locks WHERE relation = 'orders'::regclass AND NOT granted"
	testkit.Becomes(t, db, "it works", 1, waiting)
	a.own.Cut()
	a.app.Cut()
	stop()                                                                             // as SIGTERM does
	wraps(t, "report", testkit.Receive(t, "it ends", ended), context.DeadlineExceeded) // of the release
}
