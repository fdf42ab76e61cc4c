package leader_test

import (
	"context"
	"net/http"
	"net/http/httptest"
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

// A pod with the function of the page about Kubernetes is alive and ready, and ends in good order.
func TestProbesOfExampleOfLeader(t *testing.T) {
	t.Setenv("POD_NAME", "reports-0")
	pool := testkit.Pool(t, pgtest.MigratedDatabase(t))
	ctx, stop := context.WithCancel(t.Context())
	mux, leads, ended := http.NewServeMux(), make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- serveReports(ctx, pool, mux, func(ctx context.Context) {
			close(leads)
			<-ctx.Done()
		})
	}()
	testkit.Receive(t, "it leads", leads)
	for _, path := range []string{"/livez", "/readyz"} {
		answer := httptest.NewRecorder()
		mux.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, path, nil))
		if answer.Code != http.StatusOK {
			t.Errorf("%s: %d %s", path, answer.Code, answer.Body)
		}
	}
	stop()
	testkit.OK(t, testkit.Receive(t, "it ends", ended))
}
