package main

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"gorm.io/driver/postgres"
	"gorm.io/gorm"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
)

// Two processes ship all orders, and each order is shipped by one transaction.
func TestProgramShipsOrders(t *testing.T) {
	url := pgtest.Database(t)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	pool := testkit.Pool(t, url)
	for range 2 {
		go func() { ended <- run(ctx, url) }()
		testkit.Becomes(t, pool, "the table is there", true, "SELECT to_regclass('orders') IS NOT NULL")
	}
	testkit.Execute(t, pool, "INSERT INTO orders (customer) SELECT 'customer-' || n FROM generate_series(1, 100) AS n")
	testkit.Becomes(t, pool, "orders that are shipped", 100, "SELECT count(*)::int FROM orders WHERE shipped")
	stop()
	for range 2 {
		testkit.OK(t, <-ended)
	}
}

// A transaction of GORM is refused under an older epoch, in both of its modes.
func TestGuardRefusesFormerOwner(t *testing.T) {
	url := pgtest.MigratedDatabase(t)
	client := testkit.Must(pgleases.Open(t.Context(), url, pgleases.WithLogger(slog.New(slog.DiscardHandler))))(t)
	defer func() { testkit.OK(t, client.Close(context.Background())) }()
	lease := testkit.Must(client.Lease(t.Context(), "orders", 1))(t)
	testkit.OK(t, lease.Wait(t.Context()))
	p, owned := lease.Partition(0)
	if !owned {
		t.Fatal("it owns no partition")
	}
	former := p
	former.Epoch--
	for _, prepared := range []bool{false, true} {
		db := testkit.Must(gorm.Open(postgres.Open(url), &gorm.Config{PrepareStmt: prepared}))(t)
		for of, want := range map[pgleases.Partition]error{p: nil, former: pgleases.ErrNotOwner} {
			err := db.Transaction(func(tx *gorm.DB) error { return guard(t.Context(), tx, lease, of) })
			if !errors.Is(err, want) {
				t.Errorf("prepared %v, epoch %d: %v, want %v", prepared, of.Epoch, err, want)
			}
		}
		testkit.OK(t, guardless(db, lease, p))
		testkit.OK(t, testkit.Must(db.DB())(t).Close())
	}
}

// guardless checks that a guard outside of a transaction is an error.
func guardless(db *gorm.DB, lease *pgleases.Lease, p pgleases.Partition) error {
	if guard(context.Background(), db, lease, p) == nil {
		return errors.New("a guard without a transaction passed")
	}
	return nil
}
