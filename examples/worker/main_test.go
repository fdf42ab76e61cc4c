package main

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
)

func TestTwoWorkersShipEachOrderOnceDuringAClose(t *testing.T) {
	const count = 200 // orders before one is closed, and as many afterwards
	url := pgtest.Database(t)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()

	// They start together: creating the tables must bear that. There are no orders before both own their share.
	workers := make(map[string]*worker)
	for n := range 2 {
		id := fmt.Sprintf("worker-%d", n+1)
		workers[id] = start(ctx, url, 0, id)
	}
	conn := testkit.Must(pgx.Connect(ctx, url))(t)
	defer conn.Close(ctx)

	eventually(ctx, t, conn, "tables", `SELECT to_regclass('pgleases_example.shipments') IS NOT NULL`)
	eventually(ctx, t, conn, "the lease", `SELECT to_regclass('pgleases.status') IS NOT NULL`)
	eventually(ctx, t, conn, "both workers own half", `
		SELECT count(*) = 128 AND count(DISTINCT owner) = 2 AND min(n) = 64 FROM (
			SELECT owner, count(*) OVER (PARTITION BY owner) AS n FROM pgleases.status WHERE owner IS NOT NULL) AS owned`)
	addOrders := func() {
		t.Helper()
		_, err := conn.Exec(ctx, `INSERT INTO pgleases_example.orders (customer)
			SELECT 'customer-' || n % 50 FROM generate_series(1, $1) AS n`, count)
		testkit.OK(t, err)
	}
	addOrders()
	eventually(ctx, t, conn, "both workers are at it", `
		SELECT count(DISTINCT worker) = 2 FROM pgleases_example.shipments`)
	addOrders() // so that some are left when the first worker closes
	workers["worker-1"].stop(t)
	eventually(ctx, t, conn, "all orders are shipped", `
		SELECT NOT EXISTS (SELECT FROM pgleases_example.orders WHERE shipped_at IS NULL)`)
	workers["worker-2"].stop(t)

	for what, query := range map[string]string{
		"orders shipped once": `SELECT count(*) = 400 FROM (SELECT FROM pgleases_example.shipments
			GROUP BY order_id HAVING count(*) = 1) AS once`,
		"a worker at each partition at a time": `SELECT count(*) = 0 FROM (
			SELECT s.epoch < max(s.epoch) OVER (PARTITION BY o.partition ORDER BY s.at) AS late
			FROM pgleases_example.shipments AS s JOIN pgleases_example.orders AS o ON o.id = s.order_id) AS all_of_them WHERE late`,
		"sequence of each customer's orders": `SELECT count(*) = 0 FROM (
			SELECT o.id < max(o.id) OVER (PARTITION BY o.customer ORDER BY s.at) AS late
			FROM pgleases_example.shipments AS s JOIN pgleases_example.orders AS o ON o.id = s.order_id) AS all_of_them WHERE late`,
		"clients gone":    `SELECT count(*) = 0 FROM pgleases.clients`,
		"partitions free": `SELECT count(*) = 128 FROM pgleases.partitions WHERE owner IS NULL`,
	} {
		var holds bool
		if err := conn.QueryRow(ctx, query).Scan(&holds); err != nil || !holds {
			t.Errorf("%s: it is so: %v, %v: %s", what, holds, err, query)
		}
	}
}

// A worker is a run of the program in a goroutine.
type worker struct {
	id     string
	cancel context.CancelFunc
	ended  chan error
}

func start(ctx context.Context, url string, count int, id string) *worker {
	ctx, cancel := context.WithCancel(ctx)
	w := &worker{id, cancel, make(chan error, 1)}
	go func() {
		err := run(ctx, url, count, pgleases.WithClientID(id), pgleases.WithTTL(time.Minute),
			pgleases.WithHeartbeat(200*time.Millisecond)) // no machine is so busy that it loses its trust
		if err != nil {
			slog.Error("worker ended", "worker", id, "error", err)
		}
		w.ended <- err
	}()
	return w
}

// stop ends it as a signal does, and waits.
func (w *worker) stop(t *testing.T) {
	t.Helper()
	w.cancel()
	if err := <-w.ended; err != nil {
		t.Errorf("%s: %v", w.id, err)
	}
}

// eventually waits until the query says true.
func eventually(ctx context.Context, t *testing.T, conn *pgx.Conn, what, query string) {
	t.Helper()
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	for {
		var holds bool
		if err := conn.QueryRow(ctx, query).Scan(&holds); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if holds {
			return
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			t.Fatalf("%s: not in time: %s", what, query)
		}
	}
}
