package main

import (
	"context"
	"net"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
)

// docs/service.md shows this part of a service that loads something before it takes requests.

// A catalog has the prices, which requests need.
type catalog struct {
	prices atomic.Pointer[map[string]int] // nil until they are loaded
}

// load loads the prices, which makes the process ready, and waits until ctx ends.
func (c *catalog) load(ctx context.Context, pool *pgxpool.Pool) error {
	rows, err := pool.Query(ctx, "SELECT name, price FROM products")
	if err != nil {
		return err
	}
	prices := make(map[string]int)
	var name string
	var price int
	_, err = pgx.ForEachRow(rows, []any{&name, &price}, func() error {
		prices[name] = price
		return nil
	})
	if err != nil {
		return err
	}
	c.prices.Store(&prices)
	<-ctx.Done()
	return nil
}

// ready answers the probe for readiness.
func (c *catalog) ready(w http.ResponseWriter, _ *http.Request) {
	if c.prices.Load() == nil {
		http.Error(w, "the prices are not loaded yet", http.StatusServiceUnavailable)
	}
}

// While the prices are locked, the process answers and is not ready.
func TestReadinessComesAfterLoading(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t, pgtest.EmptyDatabase(t))
	testkit.Execute(t, pool, "CREATE TABLE products (name text PRIMARY KEY, price int NOT NULL)")
	testkit.Execute(t, pool, "INSERT INTO products VALUES ('tea', 3)")
	locked := testkit.Must(pool.Begin(t.Context()))(t)
	defer func() { _ = locked.Rollback(context.Background()) }()
	testkit.Must(locked.Exec(t.Context(), "LOCK TABLE products"))(t)
	var c catalog
	mux := http.NewServeMux()
	mux.HandleFunc("GET /readyz", c.ready)
	server, listener := &http.Server{Handler: mux}, testkit.Must(net.Listen("tcp", "localhost:0"))(t)
	s := &service{t: t, address: listener.Addr().String(), ended: make(chan error, 1)}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go func() {
		s.ended <- together(ctx, func(ctx context.Context) error { return c.load(ctx, pool) },
			func(ctx context.Context) error { return serve(ctx, server, listener) })
	}()
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	testkit.Becomes(t, pool, "it loads", 1,
		"SELECT count(*) FROM pg_locks WHERE relation = 'products'::regclass AND NOT granted")
	if status := s.get("/readyz"); status != http.StatusServiceUnavailable {
		t.Errorf("the probe returned %d", status)
	}
	testkit.OK(t, locked.Rollback(t.Context()))
	testkit.Until(t, "it is ready", func() bool { return s.get("/readyz") == http.StatusOK })
	if price := (*c.prices.Load())["tea"]; price != 3 {
		t.Errorf("the price is %d", price)
	}
	stop()
	testkit.OK(t, testkit.Receive(t, "it ends", s.ended))
}
