package lock_test

import (
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
