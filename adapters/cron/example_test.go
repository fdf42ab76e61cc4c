package cron_test

import (
	"context"

	"github.com/robfig/cron/v3"

	"github.com/pgleases/pgleases"
	leases "github.com/pgleases/pgleases/adapters/cron"
)

// doc.go shows these lines.
var _ = func(ctx context.Context, client *pgleases.Client, c *cron.Cron, makeReport func()) error {
	lease, err := client.Lease(ctx, "cron", 64)
	if err != nil {
		return err
	}
	report := cron.NewChain(leases.OnOwner(lease, "report")).Then(cron.FuncJob(makeReport))
	_, err = c.AddJob("*/5 * * * *", report)
	return err
}
