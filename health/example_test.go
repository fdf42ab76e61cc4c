package health_test

import (
	"context"
	"log"
	"net/http"
	"os"
	"os/signal"
	"syscall"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/health"
)

// A whole program: it works on the partitions of a lease, and serves the probes of Kubernetes at
// port 8080.
func Example() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	err = pgleases.Run(ctx, pool, func(ctx context.Context, client *pgleases.Client) error {
		mux := http.NewServeMux()
		mux.Handle("/livez", health.Liveness(client))
		mux.Handle("/readyz", health.Readiness(client))
		go func() { log.Print(http.ListenAndServe(":8080", mux)) }()

		lease, err := client.Lease(ctx, "orders", 64)
		if err != nil {
			return err
		}
		return lease.Run(ctx, func(ctx context.Context, p pgleases.Partition) error {
			<-ctx.Done() // your work goes here, until ctx ends
			return nil
		})
	})
	if err != nil {
		log.Fatal(err)
	}
}
