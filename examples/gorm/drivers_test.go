package main

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/jmoiron/sqlx"
	_ "github.com/lib/pq"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
)

// A transaction of sqlx is refused under an older epoch, over pgx and over lib/pq.
func TestGuardRefusesFormerOwnerByAnyDriver(t *testing.T) {
	url := pgtest.MigratedDatabase(t)
	client := testkit.Must(pgleases.Open(t.Context(), url, pgleases.WithLogger(slog.New(slog.DiscardHandler))))(t)
	defer func() { testkit.OK(t, client.Close(context.Background())) }()
	lease := testkit.Must(client.Lease(t.Context(), "orders", 1))(t)
	testkit.OK(t, lease.Wait(t.Context()))
	owned, _ := lease.Partition(0)
	former := owned
	former.Epoch--
	for _, driver := range []string{"pgx", "postgres"} {
		db := testkit.Must(sqlx.ConnectContext(t.Context(), driver, url))(t)
		for p, want := range map[pgleases.Partition]error{owned: nil, former: pgleases.ErrNotOwner} {
			tx := testkit.Must(db.BeginTxx(t.Context(), nil))(t)
			err := lease.GuardSQL(t.Context(), tx.Tx, p)
			if !errors.Is(err, want) {
				t.Errorf("driver %s, epoch %d: %v, want %v", driver, p.Epoch, err, want)
			}
			testkit.OK(t, tx.Rollback())
		}
		testkit.OK(t, db.Close())
	}
}
