// Package model checks the protocol of pgleases exhaustively: lease.pml is a model of it in Promela, lock.pml one of its named locks, and the
// tests have Spin visit every state that the models can reach. Other tests try orders of events that somebody thought of, or that chance
// brought; this one tries all, in a small world.
//
// # What is modelled
//
// Two or three processes, one or two partitions, the database's tables, time in ticks, and faults.
// Registration with the incarnation of an ID that two processes share; heartbeats, with the trust that they earn counted
// from before they were sent; reads, handoff by release, also one that its client gave up and that runs late; fences, which the database runs at any time; plan and
// apply in one step and apart; eviction; guarded transactions of work that remembers any ownership it ever had; work
// that a handoff waits for; closing; the end of a process; a crash of the database, which loses heartbeats and the boot marker; and
// one promotion of a standby that is any earlier state of the tables, with settling. Every answer may be late or lost, and every
// process may stop for any time between any two steps.
//
// The promises are assertions, each marked PROMISE: no two clients show a partition, or work on it under a living
// ownership, at once; an epoch neither repeats nor falls, over crashes and promotions; no guarded transaction commits under
// an older epoch after one under a newer, and nothing is shown while one is open that was guarded under an older; no session is evicted whose client trusts itself. With -DCOMPLETENESS, clients do
// what they have a reason to do, faults end at some point, time goes on when nobody has anything left to do, and then
// every partition is shown by its owner within three TTL.
//
// Of named locks: two processes that take one lock, alone or shared, wait, look, give up and release; messages that arrive late, or whose
// answers are lost; heartbeats and trust as above; evictions, guards, a crash and a promotion. The promises: no two hold it at
// once, unless they share it; tokens rise; writes under guards are in the order of the tokens; and nothing takes the lock of which its
// client knows nothing any more.
//
// # What is left out, and why that is sound
//
//   - A statement is one step: it is one autocommitted statement that takes its locks before it decides, and skips
//     what it cannot lock. That PostgreSQL does so is for the tests on a PostgreSQL to show.
//   - A heartbeat is applied as it is sent: a longer way makes the session expire later and its client trust itself no longer.
//   - The run's age stands for every client's watch of its clock, which cannot be longer. Clocks that step are left out: the
//     cutoff of an eviction does not follow them. So is drift within the margin.
//   - A crash of the server, or a promotion, makes every session look expired. Nothing but an eviction asks for
//     that, and to be expired allows more than not to be.
//   - Generations are a flag, "not as last read", and with safety a client may read at any time whatever they say. Plans are
//     arbitrary, as they decide no more than who shall have a partition. As apply writes nothing where the generation changed,
//     plan and apply are one step, except in the configuration that has them apart. A release to a living session does not change the
//     generation; the announcement that follows does, or, where that is lost with the client, the eviction.
//   - With safety, the death of a process is its taking no more steps.
//   - A session's first heartbeats and its joining are one step; statements name one partition, and a statement for
//     many is those for one, one after the other. Only a read is of all.
//   - HandoffDelay, drain timeouts, weights, fairness, dropped leases, notifications, and several leases are not
//     modelled. Neither is a second primary, which is not promised.
//   - Changes of owner are bounded (MAXEPOCH), and so are a process's sessions (REREGISTERS). With TTL=2 and TRUST=2 the
//     margin is shorter than a tick; with TTL=3 it is one. With TTL=1 all that expires does so at one instant, and with
//     OPERATIONS=2 two answers are under way at a time: only so could three processes, two partitions and a promotion be searched
//     to the end.
//   - Of locks: a process has one acquisition at a time, so a bit tells those of before by their nonce. The application's pool, other names, and
//     the order of more than two that wait are left out; so are notifications, which are hints.
//   - With SYMMETRIC, states that differ only in which process, or which partition, is which are visited once.
//
// # How to run it
//
// It needs spin and gcc. go test visits the smallest configuration of each and five mutants, go test -visit=most all but the
// largest, in some minutes, and -visit=all those too. A mutant is the model with one rule of the protocol broken, by -D and its
// name, and must violate the promise that the rule is for. By hand:
//
//	spin -a -DPROMOTIONS=1 lease.pml && gcc -O2 -DSAFETY -DNOREDUCE -o pan pan.c && ./pan -E -m100000
//	spin -t -p -DPROMOTIONS=1 lease.pml # the events that led to a violation
//
// States of the configurations, all of which were visited. At one partition and two processes: handoffs and evictions with
// a shared ID 248,601; new sessions 469,074; a database crash 378,763; work in hand 275,869 and late releases 608,977, both
// with three ownerships; guards and fences 1,102,047; overtaken plans 657,518; completeness after a crash 892,125; a promotion after a handoff
// 4,317,436, with work in hand 8,644,248. Two partitions 393,957. Three processes 459,138, over two ownerships 1,751,399,
// with two partitions 6,157,274, and with a promotion too 145,859,460, these four with SYMMETRIC: without, it would be
// up to six times as many, twelve with two partitions. The last has a TTL of one tick and two answers under way at a time, and takes 20 minutes and 6 GB.
package model
