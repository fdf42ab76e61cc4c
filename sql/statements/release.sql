-- release.sql: the owner gives up partitions on which its work has ended, and leaves leases. Each partition goes to its
-- target at once, under the next epoch. If the target no longer exists, or is the session that leaves, the partition
-- gets no owner, and a plan is due unless the partition waits for a client, the lease is paused, or has no member with
-- a weight. If the target is the owner itself, a new ownership begins. An ownership of an
-- earlier server generation is renewed, unless the session leaves the lease: the owner stays, so that no other client waits for the end of the owner's work.
-- Repeated after a lost answer it changes no row, because it names epochs.
--
-- A session that leaves a lease may have made the plan without itself. Then its partitions go to the successors of that
-- plan, unless the lease has changed since, and no other plan is due.
--
-- The new owners in a lease that is left are notified here, because a leave always raises the generation, and keeps
-- others from the lease until it commits. announce.sql informs the other new owners afterwards. If it is lost with the
-- client, the eviction of the client's session informs them.
--
-- $1 bigint  session
-- $2 text[], $3 int[], $4 bigint[]  lease, partition and epoch of each release
-- $5 bigint[] its successor (session; 0: its target)
-- $6 text[], $7 bigint[]  leases that it leaves, and their generations as the plan of the successors read them (0: no
-- such plan)
-- $8 text[]  of these: to be left now; if the session still owns a partition there, it stays a member, with weight 0
-- $9 text[]  of these: to which the client comes back. Its partitions wait for it, if it has a restart grace there
-- $10 bigint  number of the session's last join: a late message does not end a membership that a later join began
-- $11 int    lock timeout, milliseconds
-- $12 text   channel to notify; empty: do not notify
--
-- One row of arrays: the partitions released, with new owner (0: none) and epoch; those still owned under the given
-- epoch, because a guarded transaction is open on them, or because the server is not accepted; the leases left; the leases that need a plan now.
SELECT released_leases, released_partitions, owners, new_epochs, busy_leases, busy_partitions, left_leases, to_plan
FROM pgleases.release($1::bigint, $2::text[], $3::int[], $4::bigint[], $5::bigint[], $6::text[], $7::bigint[], $8::text[],
                      $9::text[], $10::bigint, $11::int, $12::text)
