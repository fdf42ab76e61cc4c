// Package engine is a client's state, and the one goroutine that owns it.
//
// # Parts
//
// The engine alone knows all parts. A part is a type; its fields are its own. It is given clock
// readings and answers, calls no other part, and returns what happened. engine.go passes that on.
// So engine.go has, on one page each, what a heartbeat's answer means (heard) and the order of a
// Close (close, finished, finish). An answer that concerns one part only is handed to it in
// begin.go.
//
//	type        files                  what it knows
//	Client      client.go, lease.go,   what other goroutines see: they send requests, and read what
//	            stats.go, guard.go     is published; a guard runs in the caller's goroutine
//	engine      engine.go              the loop, and what one part's news means to the others
//	task        tasks.go, begin.go     what is done at the database: in which order and when; by
//	                                   which statement
//	connection  connection.go          the client's own connection; Conn in config.go is what it does
//	session     session.go             the session that heartbeats keep alive
//	trust       trust.go               until when the client may act as the owner of what it shows
//	watch       watch.go               what the client has seen of the database's clock
//	server      server.go              whether the server is the one seen before, and accepted
//	expiry      expiry.go              when to check for expired sessions
//	members     members.go, weights.go the client's memberships: joining, leaving, weights
//	            assignments.go         what a membership owns: the life of an ownership
//	            drains.go              what drains, of all memberships
//	            reads.go               what the database says is owned, compared with that
//	releases    releases.go            what one statement hands over and announces; fences
//	plans       plans.go               leases that ask for a plan, and how one is made
//	closing     closing.go             the client's end
//
// Two parts are packages of their own: internal/locks for named locks, internal/liveness for fast
// failover. What readers see is internal/owned. The statements are internal/store.
//
// # The life of a membership
//
//	         Join                  answer
//	(none) --------> joins ------------------------> member
//	                   | ^                             |
//	             Leave | | evicted, removed            | Leave, Close
//	                   v +-----------------------------+------+
//	                  left <------ last release ----- leaves <+
//	                   |  --- answer to its join --->
//	                   v
//	                 (none)
//
// # The life of an assignment
//
//	                                                       a guarded transaction was
//	   gained in a read           wanted elsewhere, left,  open at two releases        read: epoch raised
//	------------------> serving ------------------> draining -------------> fencing ---------> fenced
//	   gained, and moving           trust lost         |                       |                  |
//	-------------------------------------------------> |                       |                  |
//	                       |                           |                       |                  |
//	                       | read: not owned           +-- released, or gone in the database -----+
//	                       v                                                   v
//	                      over, while work on it goes on; then it is forgotten
//
// The ownership itself, as readers know it, ends when it is released, lost, or overdue; at once if
// the trust is lost. The assignment then drains on: the database has it until it is released.
//
// # The order of a Close
//
//  1. close: every lease leaves. Its partitions are out of Values, their work is asked to end.
//  2. Work ends; each partition is released, the last ones together with the lease. With the ctx of
//     Close (hurry), work that goes on loses its ownership.
//  3. Locks are given back. Plans that others would have to make are made.
//  4. The task "end the session" removes the session's row.
//  5. finish: what is left ends with the reason, then the connection closes, then Done.
//
// # A tour: a plan is due, until another client's Values changes
//
//  1. tasks.go: the heartbeat is due. begin.go (beginHeartbeat) sends it.
//  2. engine.go (heard): the answer prolongs the trust, and members.heard returns a lease that asks
//     for a plan. plans.asked notes it.
//  3. tasks.go: the task "plan" is due. begin.go (beginPlan) takes a planning of plans.go. It
//     claims and reads the lease, and calls Config.Plan: replan.go and rebalance.go of the root
//     package decide. The function apply of sql/schema/plans.sql writes targets, gives free
//     partitions to their owners, and notifies the owners.
//  4. In one of them beginWait returns, and engine.go (notified) makes all leases due to be read.
//  5. reads.go: compare returns that a partition is wanted elsewhere. assignments.withdraw takes it
//     out of Values, and asks for its work to end.
//  6. drains.go waits for the work. The end of the last pin wakes the engine.
//  7. releases.go: members.releasable, releases.next, and the function release of
//     sql/schema/leases.sql, which gives the partition to its target with a higher epoch. The
//     answer ends the ownership (members.released), and the task "announce" notifies the new owner.
//  8. There, reads.go finds the partition among what is gained. assignments.serve shows it:
//     owned.Board stores a new snapshot, and Values returns it.
//
// If the owner crashed instead, nobody is asked: its session expires, expiry.go makes a heartbeat
// early and "evict" due in a client that has watched the clock for long enough, the function evict
// of sql/schema/expiry.sql removes the session, and its leases ask for a plan. Step 3 gives its
// partitions away at once.
package engine
