// Package pgleases shares partitioned work among the live processes of an application, using the
// PostgreSQL database that the application already has.
//
// A lease has a name and a fixed number of partitions. Each process opens one client and joins the
// lease; each then owns some of the partitions. No partition has two owners, and the shares are
// even. When a process starts, stops, crashes or freezes, partitions move. What a partition stands
// for is up to you: the customers that hash to it, a queue, a shard, a time-table. A lease with one
// partition elects a leader.
//
// # Words
//
//   - Client: one process's part in all leases of a schema ([Client]). It has an ID.
//   - Session: one run of a client. A restart is a new session, and so is coming back after an
//     eviction.
//   - Lease: a name and partitions numbered from 0 ([Lease]). The number is fixed when the lease is
//     made.
//   - Member: a session that joined a lease. Owner: the member that a partition belongs to now.
//   - Epoch: a number that rises with every change of a partition's owner and never repeats; a
//     fencing token. A [Partition] is a number under one epoch: one ownership.
//   - Heartbeat: the statement with which a session stays alive. TTL: how long it lives without
//     one.
//   - Trust deadline: until when a client believes what it knows, if no further heartbeat succeeds.
//     It lies before the instant at which another client may take over.
//   - Handoff: the owner is asked for a partition, ends its work, and releases it to the next
//     owner. In between the partition drains.
//
// # What is promised
//
// At no instant do the Values of two clients contain the same partition. This holds through joins,
// closes, kill -9, frozen processes, cut networks and restarts of the database. A client that was
// cut off or frozen past its trust deadline says so on the first call, because the call reads the
// clock: [Lease.Values] is empty then, however long the process slept.
//
// A transaction that passed [Lease.Guard] commits before the next owner's Guard passes, or not at
// all. Work that began under an earlier ownership is refused, also when the same client owns the
// partition again.
//
// A partition of a living client moves only after the work on it has ended. A partition of a closed
// client is owned again at once, that of a crashed one about a TTL after its last heartbeat,
// provided that a survivor has watched the database's clock for a TTL. The shares are within one
// partition of what the weights say. A change moves as few partitions as restore that.
//
// # What is not promised
//
//   - Exactly-once work. A process may crash after it did something and before it recorded that.
//   - Exclusion at a resource that checks neither Guard nor the epoch. A process may freeze between
//     reading Values and a write to that resource. No lease can prevent this. Have the resource
//     refuse epochs lower than the highest seen, or do the write in a guarded transaction.
//   - Exclusion while two primaries accept writes.
//   - Values after a suspend or a pause of the virtual machine during which the clocks stood still.
//     Guard holds even then.
//   - Exclusion between two copies of one running process, as of a snapshot that is started twice,
//     until their heartbeats find each other: two heartbeats as a rule. Guard passes for both until
//     then.
//
// # Three ways to work
//
// They differ in what a handoff waits for.
//
// [Lease.Values], in a loop with [Lease.Changed], is the simplest. The library cannot tell when a
// loop is done with the slice, so a partition leaves [WithHandoffDelay] after it left Values, 1 s
// by default. Set that to more than one pass of the loop takes. Reading Values or Owns causes the
// delay, also for a log line; a partition that was not read leaves at once.
//
// [Lease.Hold] pins what is owned now. A partition leaves when no open hold contains it. Take a
// hold, do a batch, release it, take the next: the next no longer contains what is wanted
// elsewhere. [Hold.Context] is not canceled by a handoff, only when an ownership ends.
//
// [Lease.Run] calls a function for each owned partition, in a goroutine of its own. Its context is
// canceled when the partition is wanted elsewhere: take no new item then. An item in hand may be
// finished under [Partition.Context], which ends only with the ownership. The partition leaves when
// the function returned. Run calls fn again for a partition only when the call before has returned.
//
// By default a handoff waits for Hold and Run as long as they take, and says so in the log after
// 30 s; [WithDrainTimeout] sets a limit. An ownership ends early, whatever still runs, when trust
// is lost. [context.Cause] says why a context ended: [ErrHandoff], [ErrTrustLost],
// [ErrDrainTimeout], [ErrSuperseded], [ErrEvicted], [ErrClosed].
//
// A loop ends with its lease: look at [Lease.Err] before each pass, or wait for [Lease.Done]. A
// lease ends when it is left, and when its client is closed or superseded. Changed is a closed
// channel from then on: a loop that waits for it alone would spin.
//
// # Guard
//
// Call [Lease.Guard] in the transaction that writes, before the writes, with the Partition under
// which the work began. It locks the partition's row until that transaction ends, so that a
// takeover waits for it, and nothing else does. If the partition has another owner, it returns
// [ErrNotOwner]: roll back, and leave the work to the new owner. [Lease.GuardSQL] does the same for
// database/sql. Other languages call the SQL function, which raises SQLSTATE PL001:
//
//	SELECT pgleases.guard('orders', 7, 4294967298)  -- lease, partition, epoch
//
// Guard also lowers idle_in_transaction_session_timeout for the transaction to the trust that is
// left: a process that freezes inside it does not keep the partition. It does not bound a statement
// that runs on.
//
// # Partitions of keys
//
// [Lease.PartitionFor] and the SQL function pgleases.partition_for(key, partitions) map a key to a
// partition in the same way: the first 8 bytes of the SHA-256 of the key's UTF-8, as a big-endian
// number without its sign bit, modulo the number of partitions. The function is immutable and may
// stand in a generated column or an index. This mapping will not change.
//
//	key          128 partitions  1000 partitions
//	""                       20              844
//	a                        74              442
//	customer-42              53              661
//	Grüße                    58              266
//
// Take some times more partitions than there will ever be processes: with few, the shares are
// coarse. To change the number later, stop all members, drop the lease with pgleases drop
// --partitions, and join with the new number.
//
// # Identity
//
// A client's ID is unique among the live clients ([WithClientID]). If a second process opens a
// client under the same ID, the first one ends with [ErrSuperseded], and its partitions go to the
// second as its work ends. A client that restarts under its own ID gets its own partitions back, so
// an ID that outlives the process, such as the name of a StatefulSet's pod, keeps partitions where
// they are. The default ID is new with every start.
//
// # Closing
//
// Stop your loops, then call [Client.Close]. It hands over what is free and leaves, so that the
// others need not wait for the TTL. Its context bounds only the wait for work in Holds and Run.
// When that has ended already, as after [os/signal.NotifyContext], what is free is still released;
// what is in work moves a TTL after the last heartbeat. [Lease.Leave] does the same for one lease,
// except that what is in work leaves when the work ends. Both wait for work, also for the Run
// callback that calls them: call them from elsewhere, or with the callback's context, which they
// end.
//
// # TTL and heartbeat
//
// A client loses its partitions when no heartbeat succeeded for the TTL less a margin, which is a
// twentieth of the TTL and at least 100 ms. The last heartbeat may be one interval old when an
// outage of the database begins, and attempts to connect again are up to half an interval apart: an
// outage that is shorter than TTL - margin - 1.5 heartbeats costs nothing; with the defaults (6 s
// and 2 s) that is 2.7 s. A longer TTL survives more, but the partitions of a crashed process wait
// longer. Choose a TTL above the longest restart or failover of your database plus a heartbeat, if
// that wait is acceptable. See [WithTTL] and [WithHeartbeat].
//
// Give all clients the same TTL where the database fails over to asynchronous standbys. The new
// server is accepted when it was watched for the longest TTL that it knows; a client with a longer
// one, whose registration the standby missed, could still trust itself then. If you return to an
// old primary, and all clients are new, call pgleases.new_server_generation there first: otherwise
// they cannot know that there were higher epochs.
//
// # Connections and poolers
//
// A client has one connection of its own, outside the pool's slots: a pool that is exhausted costs
// no lease. It goes where the pool's connections go, or where [WithConnConfig] says. It works
// through PgBouncer in transaction mode without any setting. Notifications do not arrive there,
// which the client finds out; it then sees changes at its next heartbeat. A WithConnConfig that
// leads past the pooler makes them arrive. Guard runs on your own pool's connection, so that one
// needs what your pooler needs; for PgBouncer before 1.24 that is default_query_exec_mode=exec.
// After a restart of the database PgBouncer tries a new connection only every server_login_retry,
// 15 s by default: lower it to less than the TTL less two heartbeats, else a restart of a second
// costs every lease behind it.
//
// # Tables, rights and status
//
// The tables are in the schema pgleases, or the one given to [WithSchema]. NewClient makes them
// where they are missing; to make them yourself, run [Migrate] or the DDL that [Schema] returns,
// and open clients [WithoutMigration]. A role that owns nothing can run a client with the rights in
// sql/grants/application.sql. Each table and column has a comment.
//
// Three views are for people: pgleases.status has every partition with its owner, epoch and where
// it is going; pgleases.members_status has every member with the age of its last heartbeat, what it
// owns and what it should own; pgleases.locks_status has every named lock of package lock, with who
// holds it and who waits. [Client.Stats] has the same of one client, for metrics and health
// checks.
package pgleases
