package gocron_test

import (
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	leases "github.com/pgleases/pgleases/adapters/gocron"
	"github.com/pgleases/pgleases/lock"
)

// doc.go shows these lines.
var _ = func(client *pgleases.Client, pool *pgxpool.Pool) error {
	locker := leases.NewLocker(lock.New(client, pool), time.Minute)
	scheduler, err := gocron.NewScheduler(gocron.WithDistributedLocker(locker))
	if err != nil {
		return err
	}
	locker.Attach(scheduler)
	return nil
}
