// Command kubernetes is the program of worker.yaml, which sets POD_NAME and DATABASE_URL: a worker
// with the probes of a pod. See docs/kubernetes.md.
package main

import (
	"context"
	"errors"
	"log"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/health"
)

const (
	address      = ":8080"          // of the probes
	drainTimeout = 15 * time.Second // for work to end
	closeTimeout = 10 * time.Second // that pgleases.Run has for the handoff
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	// The error is context.Canceled if SIGTERM came before there was a client.
	if err := run(ctx); err != nil && !errors.Is(err, context.Canceled) {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer pool.Close()
	mux := http.NewServeMux()
	server := &http.Server{Addr: address, Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	go func() { log.Println("probes:", server.ListenAndServe()) }()
	defer server.Close()
	return serve(ctx, pool, mux, func(ctx context.Context, p pgleases.Partition) error {
		log.Printf("partition %d begins", p.Number) // the application's work
		<-ctx.Done()
		return nil
	})
}

// A worker works on one partition until its context ends.
type worker func(context.Context, pgleases.Partition) error

// serve works until ctx ends.
func serve(ctx context.Context, pool *pgxpool.Pool, mux *http.ServeMux, work worker) error {
	// Behind PgBouncer, add pgleases.WithConnConfig(direct): docs/pgbouncer.md has the lines for it.
	return pgleases.Run(ctx, pool, func(ctx context.Context, client *pgleases.Client) error {
		mux.Handle("/livez", health.Liveness(client))
		mux.Handle("/readyz", health.Readiness(client))
		lease, err := client.Lease(ctx, "orders", 128, pgleases.WithDrainTimeout(drainTimeout))
		if err != nil {
			return err
		}
		return lease.Run(ctx, work) // until SIGTERM, or until a newer process has this ID; and until work has ended
	}, pgleases.WithClientID(os.Getenv("POD_NAME")))
}
