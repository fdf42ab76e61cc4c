// Package gocron runs the jobs of [gocron] once over several processes.
//
//	locker := leases.NewLocker(lock.New(client, pool), time.Minute)
//	scheduler, err := gocron.NewScheduler(gocron.WithDistributedLocker(locker))
//	if err != nil {
//		return err
//	}
//	locker.Attach(scheduler)
//
// An [Elector] runs all jobs on the process that owns partition 0 of a lease. A [Locker] lets each
// run go to the process that comes first.
//
// # How the Locker knows the run
//
// gocron passes the job's name to a Locker, and not the time of the run. A lock with that name only
// is free again when the job has ended. Then a process whose ticks come 0.7 s later runs the job
// again. So the Locker asks the attached scheduler for the job's times, and takes the last one that
// has passed. It puts this time into the lock's name, and keeps the lock after the run.
//
// A DurationJob begins when its process starts, so its times differ between processes. The Locker
// rounds them down to a multiple of the duration. Each process has exactly one tick in each such
// period, and the first of them runs. Other jobs have the same times in all processes, if these
// have the same time zone (gocron.WithLocation).
//
// # What is not promised
//
// Elector and Locker:
//
//   - No fence. gocron gives a job neither an epoch nor a context that ends when the ownership or
//     the lock is lost. A process that was frozen or cut off continues its job, and another process
//     may run it meanwhile. For writes in PostgreSQL, call Lease.Guard in the job's transaction.
//   - A tick that falls into a crash, a handoff or an outage of the database is not run later.
//     gocron has no record of ticks. Package schedule has one.
//
// The Locker:
//
//   - The record of a run is a lock, and ends with its client. After a crash or a Close of the
//     process that ran, a process whose tick comes later repeats the run. After a crash its attempt
//     waits for up to about the TTL, and gocron skips the ticks of that job in that process
//     meanwhile.
//   - Clocks that differ by more than the time that the lock is kept run a job twice. So does a
//     process that is late by more than that.
//   - Two runs of a job may overlap in two processes, if a run takes longer than the interval.
//   - Jobs that have other times in each process are refused: a DurationRandomJob, a CronJob with
//     @every, and each second or third day, week or month. With gocron.WithIntervalFromCompletion a
//     job runs once in each period at most, and two runs may be less than an interval apart.
//   - In singleton mode gocron drops the last run before gocron.WithStopAt, with and without a
//     Locker.
//   - A run that gocron queued (LimitModeWait) has lost its time: it counts as the run of the last
//     time that has passed. RunNow has no time either: each process that calls it runs the job.
//     WithStartImmediately gives cron jobs a first run of their own in each process.
//   - The name of a job is part of the lock, so it must be unique in a scheduler (gocron.WithName).
//
// The Elector:
//
//   - A job that runs while the lease moves continues on the old owner. Join the lease with
//     pgleases.WithHandoffDelay above the longest run, so that the next owner waits for its end.
//   - The next owner's ticks come at its own times. Around a handoff two runs may be less than an
//     interval apart, or almost two intervals.
//
// [gocron]: https://github.com/go-co-op/gocron
package gocron
