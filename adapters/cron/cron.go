package cron

import (
	"context"

	"github.com/robfig/cron/v3"

	"github.com/pgleases/pgleases"
)

// OnOwner returns a wrapper that runs a job only if this process owns the partition of the job's
// name. Otherwise the tick is skipped. The partition stays while the job runs.
func OnOwner(lease *pgleases.Lease, name string) cron.JobWrapper {
	return func(job cron.Job) cron.Job {
		return Job(lease, name, func(context.Context, pgleases.Partition) { job.Run() })
	}
}

// Job returns a job that does the same, and calls fn with the partition under its epoch, for
// Lease.Guard. fn's context ends if the ownership ends.
func Job(lease *pgleases.Lease, name string, fn func(ctx context.Context, p pgleases.Partition)) cron.Job {
	number := lease.PartitionFor(name)
	return cron.FuncJob(func() {
		hold := lease.Hold(context.Background())
		defer hold.Release()
		if p, owned := hold.Partition(number); owned {
			fn(p.Context(), p)
		}
	})
}
