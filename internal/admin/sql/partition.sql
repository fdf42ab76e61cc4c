-- partition.sql: one partition. The search_path must be pg_catalog only, and the zone UTC.
--
-- $1 text  lease
-- $2 int   partition
--
-- JSON, as the type Explanation, with the time when it got or lost its owner; the sessions of its owner and of its target, 0 if there is no such session.
SELECT json_build_object('lease', p.lease, 'partition', p.partition, 'epoch', p.epoch::text, 'owner', o.id, 'target', g.id, 'last_owner', p.owner_id, 'preferred_owner', p.preferred_owner_id,
           'since', (SELECT least(greatest(t.at, '0001-01-02 UTC'), '9999-12-30 UTC') FROM (SELECT CASE
               WHEN o.session IS NOT NULL THEN p.owned_since
               WHEN p.owner IS NULL THEN (SELECT e.at FROM pgleases.events AS e WHERE e.lease = p.lease AND e.cause IN ('handed over', 'given') AND e.partitions @> p.partition ORDER BY e.tx DESC, e.id DESC LIMIT 1)
               ELSE (SELECT e.at FROM pgleases.events AS e WHERE e.cause = 'evicted' AND e.from_id = p.owner_id ORDER BY e.tx DESC, e.id DESC LIMIT 1) END AS at) AS t WHERE t.at IS NOT NULL),
           'asked', CASE WHEN p.asked_at IS NOT NULL THEN least(greatest(p.asked_at, '0001-01-02 UTC'), '9999-12-30 UTC') END), coalesce(p.owner, 0), coalesce(p.target, 0)
FROM pgleases.partitions AS p LEFT JOIN pgleases.clients AS o ON o.session = p.owner LEFT JOIN pgleases.clients AS g ON g.session = p.target WHERE p.lease = $1::text AND p.partition = $2::int
