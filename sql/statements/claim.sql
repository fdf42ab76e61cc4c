-- claim.sql: claims the planning of leases that need a plan, for 100 ms plus 10 us for each partition. A claim
-- only saves work: if two clients plan the same lease, apply.sql writes one plan.
--
-- $1 text[]  leases
-- $2 int     lock timeout, milliseconds
--
-- One row: the leases claimed; the leases that need a plan too, but are locked by another statement.
SELECT claimed, locked FROM pgleases.claim($1::text[], $2::int)
