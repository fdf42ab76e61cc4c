// Package schedule runs schedules and jobs in an application of many processes. A schedule has a
// rule, for example each night at two, and each tick of the rule runs once over all processes. A
// job is enqueued, and runs as soon as it can or at a time that you choose.
//
//	s, err := schedule.New(ctx, client, pool, "billing") // creates missing tables
//	books := schedule.InTx(s, "books", func(ctx context.Context, tx pgx.Tx, r schedule.Run[Books]) error {
//		_, err := tx.Exec(ctx, "INSERT INTO closings VALUES ($1, $2)", r.Args.Ledger, r.At)
//		return err // the row and the outcome of the tick commit together, or neither does
//	})
//	err = books.Add("close", Books{"main"}, schedule.Cron("0 2 * * *", "Europe/Berlin"))
//	err = s.Run(ctx) // in each process, until ctx ends
//
// A [Kind] is a handler with a name. You can also enqueue jobs of a kind, in the transactions of
// your application. If such a transaction is rolled back, the job never existed:
//
//	id, err := books.EnqueueTx(ctx, tx, Books{"main"}, schedule.WithDelay(time.Minute))
//
// [InTx] is for work in this database. [AtLeastOnce] and [AtMostOnce] are for effects elsewhere.
// By default a run has one attempt, and [WithMaxAttempts] gives it more. The pages
// docs/schedule.md and docs/jobs.md explain all this, and have whole programs.
//
// # Promises
//
// Every tick of a schedule gets exactly one [Outcome], which the history records.
// [Scheduler.History] returns it. Added up, the entries of a schedule are the ticks of its rule.
// This holds whatever crashed, and whichever process owned the schedule.
//
// The database commits three things together, under the guard of the key's partition. These are
// what the handler writes in its transaction, the step of the schedule's cursor, and the entry in
// the history. So the effects of a tick that succeeded exist once, and the effects of any other
// tick do not exist. A process that was frozen in a handler cannot commit after another process
// owns the partition. Runs under one key do not overlap, but for what [WithKey] says.
//
// The database's clock decides what is due. No run begins early, and the clocks of the processes
// do not matter. If the database's clock steps by more than a minute, the scheduler trusts the
// new time after a minute. So a clock that is wrong for a moment does no harm. After a step back
// no tick runs twice: schedules continue when the clock has passed their cursors.
//
// A run that failed runs again as the [WithMaxAttempts] of its kind says, in the process that
// owns the schedule then. Until the tick has its outcome it counts as under way, and the cursor
// stays before it.
//
// If processes crash while they execute a run, the run fails after the [WithMaxCrashes] of its
// kind. Runs beside it do not fail for that, because a crash suspect runs alone in its process.
// While the suspect waits for that, no other run begins there.
//
// No tick is lost in an outage or a deploy. [WithMissed] and [WithGrace] decide about late ones.
// A pause or an edit runs no tick, and makes none missed. A schedule or job is blocked while its
// process does not know its kind or zone, cannot read its arguments, or runs code that does not
// declare the schedule. Blocked time does not count as lateness, Why gives the cause, and other
// schedules continue.
//
// A kind never has more runs under way than its [WithMaxConcurrent] allows, over all processes,
// whatever crashed. A run in a transaction locks the row of a slot. Any other run writes itself
// into the row until it ends, or until the ownership of its partition ends.
//
// A job, too, has one outcome, and runs as a tick does. A job that is enqueued in a transaction
// exists if that transaction is committed, and not otherwise. [WithUnique] prevents two live jobs
// with one unique key.
//
// # Limits of the promises
//
//   - A job begins some milliseconds after its commit, in any process, because the database
//     notifies the processes. Of several jobs that are enqueued within 200 ms one notifies, and
//     the others may begin up to 200 ms later. Through a connection pooler notifications do not
//     arrive, and a job begins within about 1 s. The same holds after a transaction that notified
//     and was rolled back, or took long. If more than 10 s pass between the enqueueing and its
//     commit, the job begins within about a minute.
//   - Effects outside of the transaction may happen more than once, or not at all. [InTx] may be
//     called again for a tick if its transaction was broken off or its process crashed.
//     [AtLeastOnce] may be called again with the same [Run.IdempotencyKey]. With [AtMostOnce] the
//     outcome of a tick may be unknown.
//   - An edit of a schedule's key moves the schedule to another owner at once, even if a handler
//     is being called outside of a transaction. Then [AtLeastOnce] may be called beside that
//     call, and with [AtMostOnce] the outcome of the tick may be unknown. Pause the schedule
//     before such an edit, and resume it when the call has ended.
//   - A process doubts the database's clock only if it has read that clock before. A process that
//     starts while the clock is wrong trusts it, and so do the calls that you make then. A new
//     schedule or rule begins at the wrong time, an edit cancels ticks by it, and a job begins no
//     earlier than it. After [Scheduler.Resume] a schedule may begin late. A start, an edit, or
//     the end of a run while the clock is ahead may delay schedules by as much, and lateness is
//     computed from the wrong time.
//   - The history is kept for as long as [WithRetention] says. The scheduler itself reads only
//     the canceled entries of schedules that have a run under way.
//
// # In psql
//
// The views schedules_status and jobs_status show the state of each schedule and job, with its
// cause. Operators change schedules and jobs with [Manage], the command pgleases, or the
// dashboard. The page docs/schedule-operations.md describes that.
//
// # Locks
//
// A run locks its schedule's row only when it ends, so edits do not wait for handlers. If an edit
// has locked the row for longer, the run is rolled back, and runs again when the row is free.
// Call [Kind.PutTx] last in a transaction, and in the order of the names. If transactions
// deadlock anyway, the database ends one of them. If that was a run, it runs again.
//
// # Rules
//
// A rule says when a schedule ticks:
//
//	closing := schedule.Cron("0 2 * * *", "Europe/Berlin") // at times that the clocks of a place show
//	polling := schedule.Every(15 * time.Minute)            // at intervals of elapsed time
//
// A rule is a value without state, and its methods are pure functions that read no clock.
// [Rule.Next] and [Rule.Preview] return the next ticks. The database stores a rule as its text,
// which [Parse] reads.
//
// # Clocks that are set forward and back
//
// If the clocks of a zone are set forward, all times that they leave out have one tick together,
// at the instant of the change. If the clocks are set back, times come twice, and a rule ticks
// the first time only. So a daily rule ticks once a day, in each zone, on each day. This also
// holds for changes at midnight, of half an hour, of a whole day, and for permanent changes.
//
// A rule that names all 24 hours, for example 0 * * * *, or whose minutes begin with *, for
// example */15 8-18 * * *, follows elapsed time, as in cron. It ticks in both of two hours that
// look the same, and has no tick for times that are left out.
//
// A tick is an instant, the same for all processes. A [Tick] also has the local time that the
// clocks of the zone show, and both must be stored. The zone data of hosts may differ, because
// places change their laws. Without the local time, a host with other data would compute the tick
// of the same local time again. With the local time, ticks have rising local times, whichever
// host computes them. A schedule uses new zone data after its next tick, or when a process starts
// that declares it.
package schedule
