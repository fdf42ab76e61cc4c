-- partition.sql: one partition.
--
-- $1 text  lease
-- $2 int   partition
--
-- Its epoch; the sessions of its owner and its target; the client IDs of the last owner and of its home; when the ownership began, and when the
-- owner was asked to hand over. What there is none of is null.
SELECT p.epoch, p.owner, p.target, p.owner_id, p.home_id, CASE WHEN p.owned_since IS NOT NULL THEN least(greatest(p.owned_since, '0001-01-02 UTC'), '9999-12-30 UTC') END,
       CASE WHEN p.asked_at IS NOT NULL THEN least(greatest(p.asked_at, '0001-01-02 UTC'), '9999-12-30 UTC') END
FROM pgleases.partitions AS p
WHERE p.lease OPERATOR(pg_catalog.=) $1::pg_catalog.text AND p.partition OPERATOR(pg_catalog.=) $2::int
