package leader_test

import (
	"context"
	"net/http"
	"os"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/health"
	"github.com/pgleases/pgleases/leader"
)

// docs/kubernetes.md shows this function word for word.

// serveReports leads when it can, until ctx ends. It adds the probes to mux, which the caller serves.
func serveReports(ctx context.Context, pool *pgxpool.Pool, mux *http.ServeMux, lead func(context.Context)) error {
	return pgleases.Run(ctx, pool, func(ctx context.Context, client *pgleases.Client) error {
		mux.Handle("/livez", health.Liveness(client))
		mux.Handle("/readyz", health.Readiness(client))
		// Load here what lead needs. The pod is ready after leader.Run has joined the lease.
		return leader.Run(ctx, client, "reports", leader.Callbacks{OnStartedLeading: lead})
	}, pgleases.WithClientID(os.Getenv("POD_NAME")))
}
