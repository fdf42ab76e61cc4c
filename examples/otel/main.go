// Command otel joins a lease and exports the client's Stats as OpenTelemetry metrics, here to standard output every five seconds:
//
//	DATABASE_URL=postgres://... go run .
//
// Take observe, in metrics.go, and give it the meter of your own provider.
package main

import (
	"context"
	"errors"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"go.opentelemetry.io/otel/exporters/stdout/stdoutmetric"
	sdk "go.opentelemetry.io/otel/sdk/metric"

	"github.com/pgleases/pgleases"
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

	client, err := pgleases.Open(ctx, databaseURL)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close(context.WithoutCancel(ctx))) }()
	if _, err := observe(provider.Meter("github.com/pgleases/pgleases"), client); err != nil {
		return err
	}
	if _, err := client.Lease(ctx, "orders", 128); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}
