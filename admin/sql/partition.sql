-- partition.sql: one partition.
--
-- $1 text  lease
-- $2 int   partition
--
-- Its epoch; the sessions of its owner and its target; the client IDs of the last owner and of its home; when the ownership began, and when the
-- owner was asked to hand over. What there is none of is null.
SELECT p.epoch, p.owner, p.target, p.owner_id, p.home_id, p.owned_since, p.asked_at
FROM pgleases.partitions AS p
WHERE p.lease OPERATOR(pg_catalog.=) $1::pg_catalog.text AND p.partition OPERATOR(pg_catalog.=) $2::int
