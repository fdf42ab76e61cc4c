// Package engine is a client's state, and the one goroutine that owns it.
//
// # Parts
//
// The engine alone knows all parts. A part is a type, and no other part writes its fields. It
// receives clock readings and answers, calls no other part, and returns what happened. engine.go
// passes that on. A statement runs in a goroutine of its operation, which alone uses what the
// operation was given, such as a planning, until its answer is back in the engine's goroutine. So
// engine.go shows, on one page each, what a heartbeat's answer means (heard) and the order of a
// Close (close, finished, finish). An answer that concerns only one part is passed to it in
// begin.go.
//
//	type        files                  what it knows
//	Client      client.go, lease.go,   the view of other goroutines: they send requests, and read what
//	            stats.go, guard.go     is published; a guard runs in the caller's goroutine
//	engine      engine.go              the loop, and what one part's news means to the others
//	task        tasks.go, begin.go     the statements: in which order and when each is sent; which
//	                                   statement each task sends
//	connection  connection.go          the client's own connection; Conn in config.go has its methods
//	session     session.go             the session that heartbeats keep alive
//	trust       trust.go               until when the client may act as the owner of what it shows
//	watch       watch.go               the client's observations of the database's clock
//	server      server.go              whether the server is the one seen before, and accepted
//	expiry      expiry.go              when to check for expired sessions
//	members     members.go, weights.go the client's memberships: joining, leaving, weights
//	            agenda.go              which of them are to be joined, read, left or counted
//	            assignments.go         what a membership owns: the life of an ownership
//	            drains.go              the draining assignments of all memberships
//	            reads.go               the ownerships in the database, compared with those in memory
//	            unowned.go             partitions that no member may own, because of their ceilings
//	releases    releases.go            what one statement hands over and announces; fences
//	plans       plans.go               leases that need a plan, and the making of a plan
//	lookups     owners.go              applications that ask who owns partitions
//	closing     closing.go             the client's end
//
// Two parts are packages of their own: internal/locks for named locks, internal/liveness for fast
// failover. Package internal/owned is what readers see. The statements are in internal/store.
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
// The row of a partition keeps an evicted session as its owner until a plan gives the partition
// away.
//
// The ownership ends when it is released, lost, or overdue, and at once if the trust is lost: its
// contexts are canceled. It left Values when it began to drain. After an end without a release the
// assignment continues to drain, because the database has it until it is released. Pins stay until
// their work ends, and hold the release back until the drain timeout has passed.
//
// # The order of a Close
//
//  1. close: the client leaves every lease. Its partitions are removed from Values, and their work
//     is asked to end.
//  2. Work ends. Each partition is released, the last ones together with the lease. When the ctx of
//     Close ends (hurry), work that continues loses its ownership. If the client is to come back, and
//     has a restart grace, the releases name no successors, and the partitions wait for it.
//  3. Beside step 2, locks are released as their holders end, and the client makes the plans that
//     others would have to make. The next step waits for these, for the last membership, and for
//     the announcements (closeStages).
//  4. The task "end the session" removes the session's row.
//  5. finish: what is left ends with the reason, then the connection closes, then Done.
//
// # Words with a second meaning
//
//   - The generation of a lease counts its changes. A plan is not written if the generation is not
//     the one that it has read. Heartbeats, reads and look-ups of owners have it without the joins,
//     which change no owner and no target. The server generation is the upper half of new epochs,
//     and rises when a promoted server is accepted.
//   - The incarnation of a client is the number of its process among those with its ID. A server
//     incarnation, a variable run in the code, is a server's timeline, start and boot marker. A
//     watch of the clock counts within one.
//   - To fence, in this package, is to raise the epoch of an owner's own partition, so that no further
//     transaction passes a guard while a release waits for those that have. Package fence keeps out
//     former owners.
//   - An evicted client has lost its session after a TTL, and registers again. A client that an
//     operator has evicted ends (ErrEvicted); its session is revoked in the database.
//
// # Why two clients never own one partition
//
//  1. A row of the table partitions has one owner. Only apply (plans.sql) and release (leases.sql)
//     change it. They exclude each other on one lease: apply locks the lease's row FOR UPDATE,
//     release at least FOR KEY SHARE. A session that releases is not evicted meanwhile.
//  2. An owner removes the partition from the Board, so no new Hold or callback begins. It waits
//     until no pin is left (releasableAt), or until the drain timeout has ended the ownership. If
//     somebody has read Values, and the client is not closing, it also waits for the handoff delay,
//     because a loop over Values holds no pin. Then it sends the release, which names the epoch, so
//     that a late one has no effect.
//  3. A client trusts itself for TTL - margin, counted from just before it sends a heartbeat
//     (config.go, trust.go). The database counts the whole TTL from when it executed the heartbeat.
//  4. Another client evicts the session only after it has watched the database's clock for that TTL
//     (watch.go, expiry.sql). Then apply gives its partitions away. internal/liveness has the
//     argument for fast failover.
//  5. A promoted server may have lost handoffs. It gives no partition before a client has watched
//     its clock for the longest TTL of all sessions (server.go, accept.sql). On another server a
//     client prolongs its trust only when it has read again all that it owns, and its locks
//     (heardServer).
//  6. All of this holds on one set of tables. A watch, and the trust in what is owned, end
//     when the client meets others (meetsOthers in server.go, heard in engine.go): see below.
//  7. What a frozen process does between Values and a write is for Guard.
//
// TestNoTwoClientsEverShowAPartition (histories_test.go) plays all of this under faults. It fails
// if step 2, 3, 4 or 6 is left out. Tests of one step: TestTrustEndsAMarginBeforeTheTTL (3,
// trust_test.go), TestCutoffEvictsOnlySessionsSilentForATTL (4, watch_test.go),
// TestOtherTablesHaveNoTwoOwners (6, tables_test.go), and in the module proof
// TestAPromotedStandbyKeepsOneOwner (5) and TestRestoreStepsKeepOneOwner (6).
//
// # Other tables
//
// A dump contains every row, so rows cannot show that they were restored. The function
// tables_number of sql/schema/server.sql hashes what a dump does not restore: the database's OID,
// and the transaction that wrote the row of the table installation. The number is a part of the
// timeline, so the timeline that a dump's row of server accepts is never that of the restored
// tables: no partition is given, no session evicted and no lock granted there until it was accepted
// (step 5), whoever comes first. The boot marker of a dump is void for the same reason
// (present_marker), so each watch begins again, and the first heartbeat gets a whole answer, with
// the number. A heartbeat after that costs no more, because its marker is valid only in the tables
// that it was written in.
//
//	what happens                        the number changes because of       who refuses meanwhile
//	a dump in another database,         the database's OID, the writing     the row of server
//	  in this or another cluster        transaction
//	pg_restore --clean, data only       the writing transaction             the row of server
//	CREATE DATABASE with a template     the database's OID                  the row of server
//	DROP SCHEMA, DROP DATABASE, and     the random number                   clients that were on the
//	  installed again                                                       former tables
//	TRUNCATE                            the trigger emptied                 the row of server
//	a schema renamed, and back          another schema has another; with    clients that met the other
//	                                    the number stays if it was away
//	                                    alone: that was an outage
//	a connection string, a pooler       as the tables that it leads to      clients that were on the
//	  that lead elsewhere                                                   former tables
//	a promotion, pg_upgrade, VACUUM     it stays the same                   step 5
//	  FULL
//
// New tables, and tables that others had accepted, need the clients: accepted counts there for
// those who were never elsewhere. A client that comes from other tables behaves as if it had seen
// the server generation of the moment when it last heard from them. A generation is the time of
// its acceptance. So tables that were accepted earlier are rejected (reject.sql), because their
// clients have not waited there for the trust that was earned elsewhere. Tables that were accepted
// later did wait, and are left alone, so that a client which returns late disturbs no other. The
// next generation is above what the client has seen, also if the clocks differ. So epochs, tokens
// of locks, and the epochs that schedules and consumers record continue above those of the former
// tables.
//
// What remains: a process that starts on new tables has no memory. It owns at once, beside a client
// that has not noticed yet, and under low epochs until that client connects. And two sets of tables
// that are used at the same time do not exclude each other's clients. docs/restore.md has the
// order of steps that prevents both.
//
// # A tour: from a plan that is due to another client's Values
//
//  1. tasks.go: the heartbeat is due. begin.go (beginHeartbeat) sends it.
//  2. engine.go (heard): the answer prolongs the trust (earnTrust), which every reader checks
//     against the clock (owned.Validity). members.heard returns a lease that needs a plan, and
//     plans.heard notes it.
//  3. tasks.go: the task "plan" is due. begin.go (beginPlan) takes a planning of plans.go. It
//     claims and reads the lease, and calls Config.Plan, which is replan.go and rebalance.go of the
//     root package. The function apply of sql/schema/plans.sql writes targets, gives free
//     partitions to their targets, and notifies the owners.
//  4. In an owner Conn.Wait returns, and begin.go (beginWait) calls engine.go (notified), which
//     makes all leases due to be read. With many leases it makes a heartbeat due instead, because
//     the answer to a heartbeat says which leases have changed: if a lease has another generation,
//     members.heard makes it due. Without notifications, the next regular heartbeat does that.
//  5. reads.go: compare returns that a partition is wanted elsewhere. assignments.withdraw removes
//     it from Values, and asks for its work to end.
//  6. assignments.go: releasableAt holds back a pinned partition. drains.go limits and logs this
//     wait. The end of the last pin (unpin in internal/owned) wakes the engine.
//  7. releases.go: members.releasable, nextRelease, and the function release of
//     sql/schema/leases.sql, which gives the partition to its target with a higher epoch. The
//     answer ends the ownership (members.released), and the task "announce" notifies the new owner.
//  8. In the new owner, woken in the same way, reads.go finds the partition among the gained ones.
//     assignments.publish shows it: owned.Board stores a new snapshot, and Values returns it.
//
// If the owner has crashed, no owner is asked:
//
//  1. Its rows stay, and its session expires a TTL after its last heartbeat. The server ends its
//     open transactions when it notices that the connections are gone. For those that have passed
//     Lease.Guard, their idle timeout is a limit.
//  2. The answers to the heartbeats of other clients say when the next check for expired sessions
//     is due. expiry.go then makes a heartbeat early, in large fleets only in some clients. Above 100
//     clients it does not, because one of them sends a heartbeat soon anyway.
//  3. If that heartbeat confirms that the check is due, the task "evict" follows. Its function
//     evict of sql/schema/expiry.sql needs a watch of the dead session's whole TTL. It removes the
//     session from clients, so that no guard passes, then from members, and makes plans of its
//     leases due.
//  4. A plan gives the partitions away as in step 3 of the tour, but at once, under the next epoch,
//     and without asking. The function apply notifies the new owners. A partition that a guarded
//     transaction has locked is left over, and tried again soon.
//  5. Each new owner reads the lease, and shows the partitions as in step 8.
//
// # Tests
//
// inWorld (world_test.go) runs whole clients in simulated time on internal/fakestore. An oracle
// (oracle_test.go) checks what clients show whenever a lease changes. Test files of package
// engine_test use the world. Those of package engine test one part without it, see idleEngine
// (assignments_test.go). A test in the world writes its case with these:
//
//	w.start, p.mustJoin    open a client, and join a lease with it
//	p.owning               joins a lease, and waits until the client owns all of it
//	w.inject               decides what happens to a statement: a delay, an error, a lost answer
//	w.db.Edit, w.db.Look   change and read the tables
//	w.evict, p.kill        remove a client's session; end a client without a message
//	w.within               waits for a condition, and ends the test after a limit
//	w.logged               returns how often a text was logged; then it forgets all lines until now
//	shows                  returns the partitions that readers of a lease see
package engine
