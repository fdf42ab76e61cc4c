package leader_test

import (
	"context"
	"testing"

	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/testkit/clients"
	"github.com/pgleases/pgleases/leader"
)

// The work of the example's program, which the example itself does not run.
func TestProgramOfExampleReports(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t, pgtest.MigratedDatabase(t))
	testkit.Execute(t, pool, "CREATE TABLE reports (made timestamptz)")
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	client := clients.New(t, pool)
	go func() {
		ended <- leader.Run(ctx, client, "reports", leader.Callbacks{
			OnStartedLeading: func(ctx context.Context) { makeReports(ctx, pool) },
		})
	}()
	testkit.Becomes(t, pool, "a report is made", 1, "SELECT count(*) FROM reports WHERE made <= now()")
	stop()
	if err := testkit.Receive(t, "it ends", ended); err == nil {
		t.Error("Run returned no error for a context that was canceled")
	}
}
