-- snapshot.sql: the input of a plan, in one snapshot: the named leases, and all leases that share a member with a named
-- lease that has more than one member. The only member of a lease gets all of it, so nothing is to be balanced.
--
-- $1 text[]   leases
-- $2 boolean  only the named leases
--
-- One row for each lease, by name: its generation; the number of its partitions; arrays of its live members, by ID,
-- incarnation and session, their weights and ceilings (0: no ceiling), the lease's generations when they joined, and whether an override drains or cordons them; whether an override pauses or freezes the
-- lease, whether a rebalance delay is under way, and how many partitions
-- had no owner after the last plan, because of ceilings; arrays of the pinned partitions, and of the client IDs that they are pinned to; arrays of the clients whose
-- partitions wait for them, by ID, with their weights, their ceilings (0: no ceiling), and the lease's generation when they went
-- away: a client that has joined at a higher one is back; then arrays of its holdings,
-- in no order. A holding is the set of partitions that have these values in common: the owner and the target (sessions;
-- 0: none), the last owner's client ID, and the preferred owner's client ID (empty: none). The last column is the
-- partitions of the holdings: numbers with commas between, a semicolon between two holdings.
SELECT name, generation, partitions, sessions, ids, incarnations, weights, ceilings, joined, drained, cordoned, paused, frozen, settling, unowned, pinned, pinned_to,
       awaited, awaited_weights, awaited_ceilings, awaited_generations,
       owners, targets, owner_ids, preferred_owner_ids, numbers
FROM pgleases.snapshot($1::text[], $2::boolean)
