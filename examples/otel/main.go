// Command otel joins a lease, runs a schedule, and exports the Stats of both as OpenTelemetry
// metrics, here to standard output every five seconds:
//
//	DATABASE_URL=postgres://... go run .
//
// Take observe and observeSchedules, in metrics.go, and give them the meter of your own provider.
package main

import (
	"context"
	"errors"
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
	"github.com/pgleases/pgleases/schedule"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	url := os.Getenv("DATABASE_URL")
	if url == "" {
		log.Fatal("DATABASE_URL is not set: set it to a database's URL, such as postgres://localhost/postgres")
	}
	if err := run(ctx, url); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, databaseURL string) (err error) {
	exporter, err := stdoutmetric.New(stdoutmetric.WithPrettyPrint())
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
	client, err := pgleases.NewClient(ctx, pool)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close(context.WithoutCancel(ctx))) }()
	meter := provider.Meter("github.com/pgleases/pgleases")
	if _, err := observe(meter, client); err != nil {
		return err
	}
	if _, err := client.Lease(ctx, "orders", 128); err != nil {
		return err
	}
	s, err := schedule.New(ctx, client, pool, "reports")
	if err != nil {
		return err
	}
	if _, err := observeSchedules(meter, s); err != nil {
		return err
	}
	report := schedule.InTx(s, "report", func(context.Context, pgx.Tx, schedule.Run[struct{}]) error { return nil })
	if err := report.Add("report", struct{}{}, schedule.Every(time.Second)); err != nil {
		return err
	}
	if err := s.Run(ctx); ctx.Err() == nil {
		return err
	}
	return nil
}
