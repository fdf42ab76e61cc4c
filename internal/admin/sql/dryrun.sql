-- dryrun.sql: the inputs of a plan for the leases that an override concerns, and for all leases that share a member
-- with them. The columns are those of snapshot.sql. Their casts are for programs whose pools read binary arrays.
--
-- $1 text  the lease; null: the leases of the client
-- $2 text  the client
SELECT name, generation, partitions, sessions::text, ids, incarnations::text, weights::text, ceilings::text, joined::text, drained::text, cordoned::text, paused, frozen, settling, unowned,
       pinned::text, pinned_to, awaited, awaited_weights::text, awaited_ceilings::text, awaited_generations::text, owners::text, targets::text, owner_ids, preferred_owner_ids, numbers
FROM pgleases.snapshot(pgleases.leases_of($1::pg_catalog.text, $2::pg_catalog.text), false)
