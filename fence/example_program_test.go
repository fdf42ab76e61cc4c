package fence_test

import (
	"context"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/fence"
)

// A whole program whose leases are in one database, and whose data are in another. The owner of a
// partition writes a row there each second, and a process that was frozen cannot. The other database
// needs a table beats (partition int, at timestamptz).
func Example() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	leases, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer leases.Close()
	data, err := pgxpool.New(ctx, os.Getenv("DATA_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer data.Close()
	err = pgleases.Run(ctx, leases, func(ctx context.Context, client *pgleases.Client) error {
		return beat(ctx, client, data)
	})
	if err != nil {
		log.Fatal(err)
	}
}

const fences = fence.Schema("pgleases")

// beat writes a row for each partition that this process owns, each second until ctx ends.
func beat(ctx context.Context, client *pgleases.Client, data *pgxpool.Pool) error {
	_, err := data.Exec(ctx, fences.SQL()) // or in a migration
	if err != nil {
		return err
	}
	lease, err := client.Lease(ctx, "beats", 4)
	if err != nil {
		return err
	}
	return lease.Run(ctx, func(ctx context.Context, p pgleases.Partition) error {
		for ctx.Err() == nil {
			err := writeBeat(p.Context(), data, lease, p)
			if err != nil {
				return err // Run logs it, and calls again after a pause
			}
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
			}
		}
		return nil
	})
}

// writeBeat writes a row, in a transaction that the fence refuses if it has seen a newer owner.
func writeBeat(ctx context.Context, data *pgxpool.Pool, lease *pgleases.Lease, p pgleases.Partition) error {
	return pgx.BeginFunc(ctx, data, func(tx pgx.Tx) error {
		err := fences.Check(ctx, tx, fence.Name(lease.Name(), p.Number), p.Epoch)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, "INSERT INTO beats VALUES ($1, now())", p.Number)
		return err
	})
}
