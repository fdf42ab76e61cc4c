-- plan.sql: what a plan needs to know, in one snapshot: of the leases named, and of all that share a member with them.
--
-- $1 text[]   leases
-- $2 boolean  of these alone
--
-- One row for each lease, by name: its generation; the number of its partitions; arrays of its live members, by ID, incarnation and
-- session, and of whether an override drains or cordons them; whether an override pauses or freezes the lease; arrays of the
-- partitions that are pinned, and of the client IDs to which; then arrays of its holdings, in no order. A holding is the partitions that have these in common: the owner and the target
-- (sessions; 0: none), the last owner's client ID, and the client ID to which they return (empty: none). Last the partitions themselves:
-- numbers with commas between, a semicolon between two holdings.
SELECT name, generation, partitions, sessions, ids, incarnations, weights, drained, cordoned, paused, frozen, pinned, pinned_to,
       owners, targets, owner_ids, preferred_owner_ids, numbers
FROM pgleases.snapshot($1::text[], $2::boolean)
