// Package schedule runs what is to run again and again, and what is to run once later, in an application of many processes: each tick of a schedule
// once, and each job, whoever lives, in a transaction of the application's database. The tables are made by [New], or by [Migrate].
//
//	s, err := schedule.New(ctx, client, pool, "billing")
//	books := schedule.InTx(s, "books", func(ctx context.Context, tx pgx.Tx, r schedule.Run[Books]) error {
//		_, err := tx.Exec(ctx, closeSQL, r.From, r.At)
//		return err
//	})
//	err = books.Add("close", Books{}, schedule.Cron("0 2 * * *", "Europe/Berlin"), schedule.WithGrace(6*time.Hour))
//	err = s.Run(ctx) // in each process
//
// A kind's jobs are put in transactions of the application's, too:
//
//	id, err := books.EnqueueTx(ctx, tx, Books{}, schedule.WithDelay(time.Minute), schedule.WithUnique("inv-7", schedule.Replace))
//
// # What is promised
//
// Every tick of a schedule has exactly one [Outcome], which is written down: see [Scheduler.History]. Within the history, the ticks of all entries are the ticks
// of the rule, whatever crashed, and whoever owned the schedule.
//
// What a handler writes in its transaction, the step of the schedule's cursor and the entry in the history are committed together, under the guard of the
// partition to which the schedule's key belongs. So the effects of a tick that is done are there once, and those of any other are not there. A process that was
// frozen in a handler cannot commit once another owns the partition. Runs under one [Key] never overlap.
//
// The database's clock decides what is due: no run is early, and the clocks of the processes may show anything. A step of more than a
// minute is believed after a minute; a clock that was set wrong for a moment does no harm. After a step back nothing runs twice: schedules
// go on when the clock is past their cursors.
//
// A run that fails is tried again as its kind's [WithMaxAttempts] says, by whoever owns the schedule then. Until it has its outcome its tick counts as under way: the cursor
// does not pass it.
//
// A run that kills its process, again and again, is dead after its kind's [WithMaxCrashes]. What only runs beside it is not: what is suspected
// runs alone in its process. While it waits for that, nothing else begins there.
//
// An outage or a deploy loses no tick: [Missed] and [WithGrace] say what becomes of late ones. Pauses and edits make no tick missed and run nothing. What a process
// does not know (a kind, a zone, arguments that do not parse, a schedule that only another version of the code declares) waits for one that does,
// is not late for it, says why in [Schedule].BlockedReason, and stops nobody.
//
// No more runs of a kind are under way than its [WithMaxConcurrent] allows, over all processes, whatever crashes: a run in a transaction has a row
// locked, and any other has written itself into one, which is free once its owner is no more.
//
// A job, too, has one outcome, and runs as a tick does. One that is put in a transaction is there exactly if that is committed. [WithUnique] keeps
// two of one key from living at once.
//
// # In psql
//
// The views schedules_status and jobs_status tell what each schedule and each job does, and why. Operators change them with [Manage], the
// command pgleases, or the dashboard: see docs/operations.md.
//
// # What is not promised
//
//   - A job that is put begins some milliseconds after its commit, in whichever process: the database tells them. Of several that are put within a fifth of a second one is
//     told of, and the others may begin that much later. Through a connection pooler nobody is told: a job begins within about a second, and so it does where a transaction that
//     told of it was rolled back, or took long. It is found later, within about a minute, if its transaction takes longer than ten seconds from there to its commit.
//   - Effects outside of the transaction come more often, or not: choose with [InTx] in mind that it may be called again for a tick, when its transaction was broken off or
//     its process died; [AtLeastOnce], with the same [Run.IdempotencyKey] each time; or [AtMostOnce], where a tick may be lost, and has that outcome.
//   - An edit that gives a schedule another [Key] while a handler is called outside of a transaction has another owner take the schedule over at once: [AtLeastOnce] may be called
//     beside the call that goes on, and with [AtMostOnce] that tick may be lost. Pause the schedule before, and resume it when the call has ended.
//   - The database's clock is doubted by processes that know it. One that starts while it is wrong believes it, and so does what is called then: a new
//     schedule, or a new rule, begins at the time that it shows, what an edit cancels stays canceled, and a job that is put, also for an instant that has
//     not come, begins no earlier than it shows. [Scheduler.Resume] begins then, or not at once. A start, an edit, or the end of a run while the clock is
//     ahead may put schedules off by as much, and what is late, or has waited, is told by the wrong time.
//   - The history is not kept for good: see [WithRetention]. No entry is read by the scheduler but canceled ones, while a run is under way.
//
// # Locks
//
// The schedule's row is locked at the end of a run only, so that edits do not wait for handlers. Put schedules last in a transaction, in the order of their
// names: see [Kind.PutTx]. Where transactions wait for each other all the same, the database ends one: a run is then tried again.
//
// # Rules
//
// Rules say when a schedule ticks:
//
//	closing := schedule.Cron("0 2 * * *", "Europe/Berlin") // at times that the clocks of a place show
//	polling := schedule.Every(15 * time.Minute)            // at intervals of elapsed time
//
// A rule is a value without state, and its methods are pure functions: they look at no clock. [Rule.Next] and [Rule.Preview] tell the next
// ticks after one, [Rule.Due] which of those that have passed are to be run, and [Rule.Passed] how many have passed. A rule
// is stored as its text, and [Parse] makes it again.
//
// # Clocks that are set forward and back
//
// Where the clocks of a zone are set forward, what they leave out is made up for: a rule that names such times has one tick for all of them, at
// the instant at which the clocks jump. Where they are set back, times come twice: a rule has its ticks the first time only. So a rule of once a
// day ticks once a day, in each zone, on each day. This holds for changes at midnight, of half an hour, of a whole day, and for good.
//
// A rule that names all 24 hours, such as 0 * * * *, follows the hours as they pass: it ticks in both of two hours that look the same, and has nothing
// to make up for. A rule of 23 hours does not.
//
// # What a tick is
//
// A tick is an instant, the same for all processes. [Tick] has beside it what the clocks of the zone show, and both belong into what
// is stored: the zone data of hosts may differ, as places change their laws, and without the local time a host with other data would find the tick of
// the same local time again. With it, local times rise, whoever computes them. A schedule follows new zone data after its next tick, or when a
// process starts that declares it.
package schedule
