// Package schedule runs schedules and jobs in an application of many processes: a schedule once for
// each of its ticks, a job once, each in a transaction of the application's database. [New] creates
// the tables, or [Migrate].
//
//	s, err := schedule.New(ctx, client, pool, "billing")
//	books := schedule.InTx(s, "books", func(ctx context.Context, tx pgx.Tx, r schedule.Run[Books]) error {
//		_, err := tx.Exec(ctx, closeSQL, r.From, r.At)
//		return err
//	})
//	err = books.Add("close", Books{}, schedule.Cron("0 2 * * *", "Europe/Berlin"), schedule.WithGrace(6*time.Hour))
//	err = s.Run(ctx) // in each process
//
// You enqueue the jobs of a kind in transactions of the application, too:
//
//	id, err := books.EnqueueTx(ctx, tx, Books{}, schedule.WithDelay(time.Minute), schedule.WithUnique("inv-7", schedule.Replace))
//
// # Promises
//
// Every tick of a schedule has exactly one [Outcome], which is written down: see
// [Scheduler.History]. Within the history, the ticks of all entries are the ticks of the rule,
// whatever crashed, and whichever process owned the schedule.
//
// What a handler writes in its transaction, the step of the schedule's cursor and the entry in the
// history are committed together, under the guard of the partition to which the schedule's key
// belongs. So the effects of a tick that succeeded are there once, and those of any other are not.
// A process that was frozen in a handler cannot commit once another owns the partition. Runs under
// one key never overlap, see [WithKey].
//
// The database's clock decides what is due: no run is early, and the clocks of the processes do not
// matter. A step of more than a minute is trusted after a minute; a clock that was set wrong for a
// moment does no harm. After a step back no tick runs twice: schedules continue when the clock is
// past their cursors.
//
// A run that fails runs again as the [WithMaxAttempts] of its kind says, in the process that owns
// the schedule then. Until it has its outcome its tick counts as under way: the cursor does not
// pass it.
//
// A run that kills its process again and again fails after the [WithMaxCrashes] of its kind. What
// only runs beside it does not: a crash suspect runs alone in its process. While it waits for that,
// no other run begins there.
//
// An outage or a deploy loses no tick: [WithMissed] and [WithGrace] say what becomes of late ones.
// Pauses and edits make no tick missed and run nothing. If a process does not know a kind, a zone
// or how to read arguments, or if only another version of the code declares a schedule, that is
// blocked until a process knows it. It is not late for that, BlockedReason says why, and it stops
// no other.
//
// A kind never has more runs under way than its [WithMaxConcurrent] allows, over all processes,
// whatever crashes: a run in a transaction has a row locked; any other has written itself into one,
// which is free once its owner has ended.
//
// A job, too, has one outcome, and runs as a tick does. A job that is enqueued in a transaction
// exists exactly if that is committed. [WithUnique] keeps two live jobs from having one key.
//
// # Limits of the promises
//
//   - A job begins some milliseconds after its commit, in any process, because the database
//     notifies them. Of several jobs that are enqueued within 0.2 s one notifies, and the others
//     may begin that much later. Through a connection pooler notifications do not arrive: then a
//     job begins within about a second, and so it does if a transaction that notified was rolled
//     back, or took long. If its transaction takes longer than 10 s from there to its commit, a job
//     begins within about a minute.
//   - Effects outside of the transaction come more often, or not. [InTx] may be called again for a
//     tick, if its transaction was broken off or its process crashed; so may [AtLeastOnce], with
//     the same [Run.IdempotencyKey]; with [AtMostOnce] the outcome of a tick may be unknown.
//   - An edit that gives a schedule another key while a handler is called outside of a transaction
//     moves the schedule to another owner at once: [AtLeastOnce] may be called beside the call that
//     goes on, and with [AtMostOnce] the outcome of that tick may be unknown. Pause the schedule
//     before, and resume it when the call has ended.
//   - Only a process that has heard the database's clock before doubts it. A process that starts
//     while the clock is wrong trusts it, and so do the calls that you make then: a new schedule,
//     or a new rule, begins at the time that it shows, what an edit cancels stays canceled, and a
//     job begins no earlier than it shows. [Scheduler.Resume] begins then, or not at once. A start,
//     an edit, or the end of a run while the clock is ahead may delay schedules by as much, and
//     lateness is computed from the wrong time.
//   - The history is not kept for ever: see [WithRetention]. The scheduler reads only its canceled
//     entries, while a run is under way.
//
// # In psql
//
// The views schedules_status and jobs_status show what each schedule and each job does, and why.
// Operators change them with [Manage], the command pgleases, or the dashboard: see
// docs/operations.md.
//
// # Locks
//
// The schedule's row is locked at the end of a run only, so that edits do not wait for handlers.
// Put schedules last in a transaction, in the order of their names: see [Kind.PutTx]. If
// transactions wait for each other anyway, the database ends one: a run then runs again.
//
// # Rules
//
// Rules say when a schedule ticks:
//
//	closing := schedule.Cron("0 2 * * *", "Europe/Berlin") // at times that the clocks of a place show
//	polling := schedule.Every(15 * time.Minute)            // at intervals of elapsed time
//
// A rule is a value without state, and its methods are pure functions: they read no clock.
// [Rule.Next] and [Rule.Preview] return the next ticks after one, [Rule.Due] those that are to run
// of the ticks that passed, and [Rule.Passed] how many passed. A rule is stored as its text, which
// [Parse] reads.
//
// # Clocks that are set forward and back
//
// If the clocks of a zone are set forward, a rule that names times that they leave out has one tick
// for all of them, at the instant at which the clocks jump. If they are set back, times come twice:
// a rule has its ticks the first time only. So a rule of once a day ticks once a day, in each zone,
// on each day. This holds for changes at midnight, of half an hour, of a whole day, and for good.
//
// A rule that names all 24 hours, for example 0 * * * *, follows the hours as they pass: it ticks
// in both of two hours that look the same, and has no tick for what is left out. A rule of 23 hours
// does not.
//
// A tick is an instant, the same for all processes. [Tick] also has what the clocks of the zone
// show, and both belong into what is stored: the zone data of hosts may differ, because places
// change their laws, and without the local time a host with other data would find the tick of the
// same local time again. With it, local times rise, whichever host computes them. A schedule
// follows new zone data after its next tick, or when a process starts that declares it.
//
// # Tour of the source
//
// A tick is due, until its history row is written. Each step calls the next. Polls and runs have
// goroutines of their own, whose results come back to the planner by channels. The records that all
// steps share (record, step, trial) are in schedule.go.
//
//	planner.go    loop: one goroutine for each Run. It alone knows the parts, and passes on what they
//	              return. poll: the time has come to ask
//	poll.go       question: which partitions, since when, and what to leave out; ask sends it on the
//	              connection of listener.go, where notifications arrive. SQL: functions/poll.sql
//	planner.go    answer: clock.go says whether the database's time is trusted, queue.replace takes
//	              the items
//	queue.go      next: the first item that may begin: due, its key free, its kind below its limit
//	planner.go    begin: a goroutine for the run. crashes.go notes once for each ownership.go that
//	              something runs in the partition
//	run.go        execute: attempts until there is an outcome, or the next poll has to find out
//	attempt.go    attempt: one transaction of tx.go, whose first round trip guards the partition and
//	              reads the record. SQL: schedule_open in functions/run.sql
//	decide.go     decide: from the record and the time, which ticks are missed or skipped, and which
//	              runs. It uses rule.go, cron.go, zone.go and missed.go, and no database
//	slots.go      takeSlot, for kinds with a limit
//	call.go       handle: calls the handler of kind.go in the transaction. For a handler outside of it this transaction only notes that it begins;
//	              outside.go calls the handler in a second attempt, and run.go (recordOutcome) writes
//	              the outcome in a transaction of its own
//	store.go      sendClose: the second round trip writes the step and the outcomes, and commits. SQL:
//	              schedule_tick_succeeded and schedule_close in functions/run.sql
//	attempt.go    if that fails: classify says what the error means, by the predicates of errors.go
//	run.go        patience: whether the attempt is repeated; else recordFailure writes the outcome
//	queue.go      end: the item is queued again for its next tick
//
// Beside that: declare.go stores what the code declares, edit.go what it puts, job.go enqueues
// jobs, manage.go has the changes of operators, history.go reads and trims the history, stats.go
// counts. scheduler.go opens a scheduler, options.go has its options, registry.go its kinds.
package schedule
