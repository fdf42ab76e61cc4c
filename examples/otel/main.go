// Command otel joins a lease, runs a schedule, and exports the Stats of both as OpenTelemetry
// metrics, here to standard output every five seconds:
//
//	DATABASE_URL=postgres://... go run .
package main

import (
	"context"
	"errors"
	"io"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/exporters/stdout/stdoutmetric"
	sdk "go.opentelemetry.io/otel/sdk/metric"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/pgleasesotel"
	"github.com/pgleases/pgleases/schedule"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	url := os.Getenv("DATABASE_URL")
	if url == "" {
		log.Fatal("DATABASE_URL is not set: set it to a database's URL, such as postgres://localhost/postgres")
	}
	if err := run(ctx, url, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, databaseURL string, out io.Writer) (err error) {
	exporter, err := stdoutmetric.New(stdoutmetric.WithPrettyPrint(), stdoutmetric.WithWriter(out))
	if err != nil {
		return err
	}
	provider := sdk.NewMeterProvider(sdk.WithReader(sdk.NewPeriodicReader(exporter, sdk.WithInterval(5*time.Second))))
	defer func() { err = errors.Join(err, provider.Shutdown(context.WithoutCancel(ctx))) }() // exports once more

	pool, err := pgxpool.New(ctx, databaseURL)
	if err != nil {
		return err
	}
	defer pool.Close()
	return pgleases.Run(ctx, pool, func(ctx context.Context, client *pgleases.Client) error {
		return work(ctx, client, pool, provider)
	})
}

// work joins a lease and runs a schedule until ctx ends, and observes both.
func work(ctx context.Context, client *pgleases.Client, pool *pgxpool.Pool, provider *sdk.MeterProvider) error {
	if _, err := client.Lease(ctx, "orders", 128); err != nil {
		return err
	}
	s, err := schedule.New(ctx, client, pool, "reports")
	if err != nil {
		return err
	}
	if _, err := pgleasesotel.Observe(provider, client); err != nil {
		return err
	}
	if _, err := pgleasesotel.ObserveSchedules(provider, s); err != nil {
		return err
	}
	report := schedule.InTx(s, "report", func(context.Context, pgx.Tx, schedule.Run[struct{}]) error { return nil })
	if err := report.Add("report", struct{}{}, schedule.Every(time.Second)); err != nil {
		return err
	}
	return s.Run(ctx)
}
