package clientgo_test

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"k8s.io/client-go/tools/leaderelection"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/adapters/clientgo"
)

// doc.go shows these lines.
var _ = func(ctx context.Context, pool *pgxpool.Pool, callbacks leaderelection.LeaderCallbacks) error {
	const renewDeadline, retryPeriod = 10 * time.Second, 2 * time.Second
	ttl, heartbeat := pgleases.WithTTL(15*time.Second), pgleases.WithHeartbeat(2*time.Second)
	client, err := pgleases.NewClient(ctx, pool, ttl, heartbeat)
	if err != nil {
		return err
	}
	election := &clientgo.Lock{Client: client, Name: "controller", Trust: renewDeadline + retryPeriod}
	leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
		Lock: election, LeaseDuration: 15 * time.Second, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod,
		Callbacks: callbacks, ReleaseOnCancel: true,
	})
	return client.Close(context.WithoutCancel(ctx))
}
