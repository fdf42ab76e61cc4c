-- partition.sql: one partition. The search_path must be pg_catalog only, and the zone UTC.
--
-- $1 text  lease
-- $2 int   partition
--
-- JSON, as the type Explanation; the sessions of its owner and of its target, 0 if there is no such session.
SELECT json_build_object('lease', p.lease, 'partition', p.partition, 'epoch', p.epoch::text, 'last_owner', p.owner_id, 'preferred_owner', p.preferred_owner_id,
           'since', CASE WHEN p.owned_since IS NOT NULL THEN least(greatest(p.owned_since, '0001-01-02 UTC'), '9999-12-30 UTC') END,
           'asked', CASE WHEN p.asked_at IS NOT NULL THEN least(greatest(p.asked_at, '0001-01-02 UTC'), '9999-12-30 UTC') END),
       coalesce(p.owner, 0), coalesce(p.target, 0)
FROM pgleases.partitions AS p
WHERE p.lease = $1::text AND p.partition = $2::int
