-- dryrun.sql: what a plan needs to know of the leases that an override concerns, and of all that share a member with them, as plan.sql tells it.
--
-- $1 text  the lease; null: those of the client
-- $2 text  the client
SELECT name, generation, partitions, sessions, ids, incarnations, weights, drained, cordoned, paused, frozen, pinned, pinned_to,
       owners, targets, owner_ids, preferred_owner_ids, numbers
FROM pgleases.snapshot(pgleases.leases_of($1::pg_catalog.text, $2::pg_catalog.text), false)
