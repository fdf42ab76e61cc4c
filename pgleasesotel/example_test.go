package pgleasesotel_test

import (
	"context"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/sdk/metric"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/pgleasesotel"
)

// A whole program: it works on the partitions of a lease, and has its numbers collected. Give the
// provider a reader, such as a periodic one with an exporter.
func Example() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	provider := metric.NewMeterProvider()
	defer func() { _ = provider.Shutdown(context.WithoutCancel(ctx)) }() // exports once more
	err = pgleases.Run(ctx, pool, func(ctx context.Context, client *pgleases.Client) error {
		if _, err := pgleasesotel.Observe(provider, client); err != nil {
			return err
		}
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
