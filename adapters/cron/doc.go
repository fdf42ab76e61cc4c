// Package cron runs each job of [robfig/cron] on one of several processes.
//
//	lease, err := client.Lease(ctx, "cron", 64)
//	if err != nil {
//		return err
//	}
//	report := cron.NewChain(leases.OnOwner(lease, "report")).Then(cron.FuncJob(makeReport))
//	_, err = c.AddJob("*/5 * * * *", report)
//
// All processes add all jobs. A job runs on the process that owns the job's partition, which is
// Lease.PartitionFor of its name. So the jobs are shared among the processes.
//
// While a job runs, a Hold keeps the partition. A handoff waits for the job's end. The Hold
// contains all partitions that the process owns, so the move of any of them waits for the jobs that
// began before it. pgleases.WithDrainTimeout limits the wait.
//
// # What is not promised
//
//   - No fence with OnOwner. A [cron.Job] has neither an epoch nor a context. It does not end when
//     its process is frozen or cut off past its trust deadline, and another process may run it
//     meanwhile. Use [Job] instead: it passes both, for Lease.Guard.
//   - A tick that falls into a crash, a handoff or an outage of the database is not run later. Cron
//     has no record of ticks. Package schedule has one.
//   - A tick may run twice, if a partition moves just then and the clocks of the two processes
//     differ.
//   - Entries with @every have other times in each process, counted from its start. Around a
//     handoff two runs may be less than an interval apart, or almost two intervals.
//   - Jobs of one process may overlap as cron allows: add cron.SkipIfStillRunning to the chain.
//
// [robfig/cron]: https://github.com/robfig/cron
package cron
