// Package model checks the protocol of pgleases exhaustively. lease.pml is a model of the protocol
// in Promela, and lock.pml is a model of its named locks. Spin visits every state that the models
// can reach. Other tests try orders of events that their authors chose, or that chance produced.
// This package tries all orders, in a small world.
//
// # What is modeled
//
// The model has two or three processes, one or two partitions, the database's tables, time in
// ticks, and faults.
//
// It covers these operations:
//
//   - registration, with the incarnation of an ID that two processes share
//   - heartbeats, with the trust that they give, counted from before they were sent
//   - reads, and the handoff by release, including a release that its client gave up and that runs
//     late
//   - fences, which the database may run at any time
//   - plan and apply, in one step and in two
//   - eviction
//   - guarded transactions, of work that remembers every ownership that it ever had
//   - work that a handoff waits for
//   - closing
//   - the end of a process
//   - a crash of the database, which loses heartbeats and the boot marker
//   - one promotion of a standby that has any earlier state of the tables, and its acceptance
//
// Every answer may be late or lost, and every process may stop for any time between two steps.
//
// The promises are assertions, each marked PROMISE:
//
//   - No two clients show a partition at once, or work on it at once under an ownership that is
//     still valid.
//   - An epoch neither repeats nor falls, over crashes and promotions.
//   - No guarded transaction commits under an older epoch after a transaction under a newer one. No
//     client shows a partition while a transaction is open that was guarded under an older epoch.
//   - No session is evicted while its client trusts itself.
//
// With -DCOMPLETENESS, clients do what they have a reason to do, faults end at some point, and time
// passes when no process can act. Then every partition is shown by its owner within 3 TTL.
//
// The model of named locks has two processes that take one lock, exclusive or shared, wait, poll,
// give up and release. Messages may arrive late, and their answers may be lost. Heartbeats and
// trust are as above, and so are evictions, guards, a crash and a promotion. The promises: no two
// processes hold the lock at once, unless they share it; tokens rise; writes under guards are in
// the order of the tokens; and a lock is not held if its client no longer knows of it.
//
// # What is left out, and why that is sound
//
//   - A statement is one step. It is one autocommitted statement that takes its locks before it
//     decides, and skips rows that it cannot lock. Tests on a PostgreSQL server show that
//     PostgreSQL executes it so.
//   - A heartbeat is applied when it is sent. A delay on the way makes the session expire later,
//     but does not prolong the client's trust.
//   - The age of the server's run stands for every client's watch of the clock, which cannot be
//     longer. Steps of the clock are left out, because the cutoff of an eviction does not follow
//     them. Drift within the margin is left out too.
//   - A crash of the server, or a promotion, makes every session look expired. Only an eviction
//     checks whether a session has expired, and an expired session allows more behavior, not less.
//   - A generation is a flag, "not as last read". For safety, a client may read at any time,
//     whatever the flag says. Plans are arbitrary, because they decide only which client should get
//     a partition. Snapshot and apply are one step, because apply has no effect if the generation
//     changed; one configuration has them apart. A release to a live session does not change the
//     generation. The announcement that follows changes it, or the eviction if the announcement is
//     lost with the client.
//   - For safety, a process that ended is a process that takes no more steps.
//   - A session's first heartbeats and its joining are one step. A statement names one partition; a
//     statement for many partitions is modeled as one statement after the other. Only a read covers
//     all partitions.
//   - For safety, a rebalance delay or a restart grace is one of the arbitrary plans. One
//     configuration of completeness has both, and shows that every partition has an owner again
//     after their ends.
//   - HandoffDelay, drain timeouts, weights, fairness, dropped leases, notifications, and several
//     leases are not modeled. Neither is a second primary, because the library makes no promise
//     about it.
//   - The number of owner changes is bounded (MAXEPOCH), and so is the number of a process's
//     sessions (REREGISTERS). With TTL=2 and TRUST=2 the margin is shorter than a tick; with TTL=3
//     it is one tick. With TTL=1 everything expires at the same instant, and with OPERATIONS=2 two
//     answers are pending at a time. The search of three processes, two partitions and a promotion
//     ends only with these two settings.
//   - Of locks: a process has one acquisition at a time, so one bit distinguishes earlier ones by
//     their nonce. The application's pool, other names, and the order of more than two waiting
//     processes are left out. So are notifications, which are hints.
//   - With SYMMETRIC, states that differ only in a renaming of processes or partitions are visited
//     once.
//
// # How to run it
//
// The tests need spin and gcc. go test visits the smallest configuration of each model, and five
// mutants. go test -visit=most visits all configurations except the largest, in some minutes, and
// -visit=all visits the largest too. A mutant is the model with one rule of the protocol broken, by
// -D and the mutant's name. It must violate the promise that the rule is for. By hand:
//
//	spin -a -DPROMOTIONS=1 lease.pml && gcc -O2 -DSAFETY -DNOREDUCE -o pan pan.c && ./pan -E -m100000
//	spin -t -p -DPROMOTIONS=1 lease.pml # the events that led to a violation
//
// All states of these configurations were visited. The numbers are states.
//
// One partition, two processes:
//
//   - handoffs and evictions with a shared ID: 248,601
//   - new sessions: 469,074
//   - a database crash: 378,763
//   - pending work, three ownerships: 275,869
//   - late releases, three ownerships: 608,977
//   - guards and fences: 1,102,047
//   - overtaken plans: 657,518
//   - completeness after a crash: 892,125; with a rebalance delay and a restart grace: 1,373,448
//   - a promotion after a handoff: 4,317,436; with pending work: 8,644,248
//
// Two partitions: 393,957.
//
// Three processes, with SYMMETRIC:
//
//   - one partition: 459,138; over two ownerships: 1,751,399
//   - two partitions: 6,157,274
//   - two partitions and a promotion: 145,859,460
//
// Without SYMMETRIC there would be up to 6 times as many states, or 12 times with two partitions.
// The last configuration has a TTL of one tick and two pending answers at a time. It takes 20
// minutes and 6 GB.
package model
