// Package pgleases shares partitioned work among the live processes of an application, using the
// PostgreSQL database that the application already has.
//
// A lease has a name and a fixed number of partitions. Each process opens one client and joins the
// lease. Each then owns some of the partitions. No partition has two owners, and the shares are
// even. When a process starts, stops, crashes or freezes, partitions move. You decide what a
// partition stands for. It can be the customers that hash to it, a queue, a shard or a timetable.
// A lease with one partition elects a leader.
//
// A program opens a client with [Run], joins a lease, and works on what it owns:
//
//	err := pgleases.Run(ctx, pool, func(ctx context.Context, client *pgleases.Client) error {
//		lease, err := client.Lease(ctx, "demo", 4)
//		if err != nil {
//			return err
//		}
//		return lease.Run(ctx, func(ctx context.Context, p pgleases.Partition) error {
//			log.Printf("I own partition %d", p.Number)
//			<-ctx.Done() // your work goes here, until ctx ends
//			return nil
//		})
//	})
//
// # Words
//
//   - A client is the part of one process in all leases of a schema ([Client]). It has an ID.
//   - A session is one run of a client. A client begins a new session when it restarts, and when it
//     comes back after it was evicted.
//   - A lease is a name with partitions numbered from 0 ([Lease]). The number of partitions is fixed
//     when the lease is created.
//   - A member is a session that has joined a lease. The owner of a partition is the member that
//     owns it now.
//   - The epoch of a partition is a number that rises whenever its owner changes, and never repeats.
//     Other systems call it a fencing token. A [Partition] is a partition's number under one epoch,
//     that is, one ownership.
//   - A heartbeat is the statement that keeps a session alive. The TTL is how long a session lives
//     without one.
//   - The trust deadline is the time until which a client may act as owner without another
//     heartbeat. It is earlier than the time when another client may take over.
//   - In a handoff, a plan asks the owner for a partition. Any client may make the plan. It writes
//     the next owner, the target, into the partition's row. The owner reads that, ends its work,
//     and releases the partition to the target. Until then the partition drains.
//
// # What is promised
//
// At no instant do the Values of two clients contain the same partition. This holds when clients
// join and close, when processes are killed or freeze, when the network is cut, and when the
// database restarts. If a client was cut off or frozen past its trust deadline, the first call of
// [Lease.Values] returns an empty slice, however long the process stood still, because it reads the
// clock. Contexts are canceled a moment later, when the client's goroutine runs again.
//
// A transaction that has passed [Lease.Guard] commits before the next owner can pass Guard, or it
// does not commit at all. Guard refuses work that began under an earlier ownership, even if the
// same client owns the partition again.
//
// A partition of a live client moves only after the work on it has ended. A partition of a closed
// client has a new owner at once. A partition of a crashed client has a new owner about a TTL after
// the client's last heartbeat, provided that a surviving client has watched the database's clock
// for a TTL. Each member owns less than one partition more or less than its share by weight. A
// change moves the fewest partitions that restore these shares.
//
// # What is not promised
//
//   - Work is not done exactly once. A process may crash after it did something and before it
//     recorded that.
//   - A resource that checks neither Guard nor the epoch is not protected. A process may freeze
//     between reading Values and a write to that resource. No lease can prevent this. Write in a
//     guarded transaction, or let the resource keep the highest epoch of each partition, and refuse
//     a lower one.
//   - While two primaries accept writes, a partition may have two owners.
//   - If a virtual machine is suspended and its clocks stand still meanwhile, Values may be wrong
//     when it continues. Guard refuses even then.
//   - Two copies of one running process, for example of a snapshot that is started twice, own the
//     same partitions until their heartbeats detect each other. That usually takes two heartbeats.
//     Guard passes for both copies until then.
//
// # Three ways to work
//
// They differ in how a handoff knows that the work has ended.
//
// [Lease.Run] is the one to take unless you have a reason not to. It calls a function for each owned
// partition, in a goroutine of its own. The function's context is canceled when the partition is to
// move, so take no new item then. You may finish an item in hand under [Partition.Context], which
// ends only with the ownership. The partition moves when the function has returned. Run calls the
// function again for a partition only after the previous call has returned.
//
// [Lease.Hold] keeps what the client owns now, and is for batches. A partition moves when no open
// hold contains it. Take a hold, work on a batch, release the hold, and take the next one, which no
// longer contains the partitions that are to move. A handoff does not cancel [Hold.Context]. Only
// the end of an ownership does.
//
// [Lease.Values], in a loop with [Lease.Changed], is for short passes that may be repeated. The
// library cannot know when a loop has finished with the slice. So a partition that is to move first
// leaves Values, and moves after [WithHandoffDelay], 1 s by default. Set the delay to more than one
// pass of the loop takes. Only partitions that were read with Values or Owns wait for the delay,
// even if they were read for a log line. Others move at once.
//
// By default a handoff waits for Hold and Run as long as they take, and logs a warning after 30 s.
// [WithDrainTimeout] sets a limit. If trust is lost, an ownership ends early, even if work on it
// still runs. [context.Cause] returns why a context ended: [ErrHandoff], [ErrTrustLost],
// [ErrDrainTimeout], [ErrSuperseded], [ErrEvicted], [ErrClosed].
//
// If a new owner has to load the state of a partition, [WithRebalanceDelay] and [WithRestartGrace]
// keep partitions where they are while you deploy. [WithMaxPartitions] bounds how many a client gets
// when others are away.
//
// Let a loop end with its lease. Check [Lease.Err] before each pass, or wait for [Lease.Done]. A
// lease ends when you leave it, and when its client is closed, superseded or evicted. From then on
// Changed returns a closed channel, so a loop that waits only for Changed would spin.
//
// # Guard
//
// Call [Lease.Guard] in the transaction that writes, before the writes, with the Partition under
// which the work began. Guard locks the partition's row until that transaction ends. A takeover
// waits for this lock. Other transactions of the owner do not, even if they call Guard too. If the
// partition has another owner, Guard returns [ErrNotOwner]. Then roll back, and leave the work to
// the new owner. [Lease.GuardSQL] is for database/sql. Other languages call the SQL function, which
// raises SQLSTATE PL001:
//
//	SELECT pgleases.guard('orders', 7, 12)  -- lease, partition, epoch
//
// Guard also lowers idle_in_transaction_session_timeout for the transaction to the trust that is
// left, so that a process that freezes in the transaction does not keep the partition. Guard does
// not bound a statement that runs on.
//
// # Partitions of keys
//
// [Lease.PartitionFor] and the SQL function pgleases.partition_for(key, partitions) map a key to a
// partition in the same way. They take the first 8 bytes of the SHA-256 of the key's UTF-8 as a
// big-endian number without its sign bit, modulo the number of partitions. The function is
// immutable, so you can use it in a generated column or an index. This mapping will not change.
//
//	key          128 partitions  1000 partitions
//	""                       20              844
//	a                        74              442
//	customer-42              53              661
//	Grüße                    58              266
//
// Create ten times as many partitions as you will have processes, because with few partitions the
// shares are coarse. docs/changing-n.md has the steps to change the number later. Take all of them,
// because a frozen process that still uses the old number may come back.
//
// # Identity
//
// A client's ID is unique among the live clients ([WithClientID]). If a second process opens a
// client under the same ID, the first client ends with [ErrSuperseded], and its partitions go to
// the second client as its work ends. A client that restarts under its own ID gets its partitions
// back. So an ID that outlives the process, for example the name of a StatefulSet's pod, keeps
// partitions where they are. The default ID is new with every start.
//
// # Closing
//
// Stop your loops, then call [Client.Close]. It hands over what is free and leaves, so that the
// other clients need not wait for the TTL. Its context bounds only the wait for work in Holds and
// Run. If the context has ended already, for example after [os/signal.NotifyContext], Close still
// releases what is free, and partitions in work move a TTL after the last heartbeat. [Lease.Leave]
// leaves one lease. There, partitions in work move when their work ends. Both calls wait for work,
// even for a Run callback that makes the call. So call them from elsewhere, or with the callback's
// context, which they end.
//
// # TTL and heartbeat
//
// A client loses its partitions if no heartbeat succeeds for the TTL less a margin. The margin is
// 5% of the TTL and at least 100 ms. The last heartbeat may be one interval old when an outage of
// the database begins, and attempts to connect again are up to half an interval apart. So an outage
// that is shorter than TTL - margin - 1.5 heartbeats costs no partition. With the defaults (6 s and
// 2 s) that is 2.7 s. A longer TTL survives longer outages, but the partitions of a crashed process
// wait longer. Choose a TTL above the longest restart or failover of your database plus a
// heartbeat, if that wait is acceptable. See [WithTTL] and [WithHeartbeat].
//
// If the database fails over to asynchronous standbys, give all clients the same TTL. The clients
// accept the new server after they have watched it for the longest TTL that it knows. A client with
// a longer TTL, whose registration the standby missed, could still trust itself then. If you return
// to an old primary, and all clients are new, call pgleases.new_server_generation there first.
// Otherwise they cannot know that higher epochs existed.
//
// # Connections and poolers
//
// A client has one connection of its own beside those of the pool, so an exhausted pool costs no
// lease. The connection goes where the pool's connections go, or where [WithConnConfig] says. The
// client works through PgBouncer in transaction mode without any setting. The client detects that
// notifications do not arrive there, and then sees changes at its next heartbeat. If a
// WithConnConfig leads past the pooler, notifications arrive.
//
// Guard runs on a connection of your own pool, which may need a setting behind a pooler. The page
// docs/pgbouncer.md has it, and a setting of PgBouncer without which a restart of the database for
// one second costs the partitions of all clients behind it.
//
// # Tables, rights and status
//
// The tables are in the schema pgleases, or in the schema given to [WithSchema]. NewClient creates
// missing tables. To create them yourself, run [Migrate] or the DDL that [Schema] returns, and open
// clients [WithoutMigration]. A role that owns no tables can run a client with the rights in
// sql/grants/application.sql. Each table and column has a comment.
//
// Three views are for people. pgleases.status shows every partition with its owner, its epoch and
// where it moves. pgleases.members_status shows every member with the age of its last heartbeat,
// how many partitions it owns and how many it should own. pgleases.locks_status shows every named
// lock of package lock with its holders and the clients that wait for it. [Client.Stats] has such
// numbers of one client, for metrics and health checks.
package pgleases
