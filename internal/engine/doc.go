// Package engine is a client's state, and the one goroutine that owns it.
//
// # Parts
//
// The engine alone knows all parts. A part knows its own fields, and the clock readings and answers
// that it is given. It calls no other part: it returns what happened, and engine.go passes it on.
// So engine.go has, on one page each, what a heartbeat's answer means (heard) and the order of a
// Close (close, finished, finish).
//
//	client.go, lease.go    what other goroutines see: they send requests, and read what is published
//	tasks.go               the task table: what is done at the database, in which order, and when
//	begin.go               the statement of each task
//	connection.go          the client's own connection
//	session.go             the session that heartbeats keep alive
//	trust.go               until when the client may act as the owner of what it shows
//	watch.go               what the client has seen of the database's clock
//	server.go              whether the server is the one seen before, and accepted
//	expiry.go              when to check for expired sessions
//	members.go             joining and leaving leases; weights.go their weights
//	assignments.go         the life of an ownership, drains.go while it drains; readers see it in internal/owned
//	reads.go               what the database says is owned, compared with what the client has
//	releases.go            handing over, with fences and announcements
//	plans.go               planning leases for all of their members
//	closing.go             the client's end
//
// Two parts are packages of their own: internal/locks for named locks, internal/liveness for fast
// failover.
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
//	read: owned                 read: moves           two releases   read: a higher
//	           +---> serving -----------------> draining ----------> fencing ----------> fenced
//	                                               |                    |                   |
//	                                               +--------- release, loss, end -----------+
//	                                                                    |
//	                                                                    v
//	                                               over, while work on it goes on, then forgotten
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
//  3. tasks.go: the task "plan" is due. begin.go (beginPlan) takes a planning of plans.go, which
//     claims and reads the lease, and has the planner of the root package, rebalance.go, decide.
//     sql/statements/apply.sql writes targets, and gives free partitions to their owners.
//  4. A trigger of sql/schema/leases.sql notifies the owners. In one of them beginWait returns, and
//     engine.go (notified) makes all leases due to be read.
//  5. reads.go: compare returns that a partition is wanted elsewhere. assignments.withdraw takes it
//     out of Values, and asks for its work to end.
//  6. drains.go waits for the work. The end of the last pin wakes the engine.
//  7. releases.go: members.releasable, releases.next, and sql/statements/release.sql, which gives
//     the partition to its target with a higher epoch. The answer ends the ownership
//     (members.released), and the task "announce" notifies the new owner.
//  8. There, reads.go finds the partition among what is gained. assignments.serve shows it:
//     owned.Board stores a new snapshot, and Values returns it.
package engine
