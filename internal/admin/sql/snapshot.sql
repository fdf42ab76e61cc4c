-- snapshot.sql: the content of the tables of leases and clients, in one snapshot. It is sent without parameters, after
-- its settings, in one message that is one transaction: see Admin.readSnapshot. The settings set the search_path to
-- pg_catalog only, and the zone to UTC.
--
-- One text, JSON, as the type Snapshot. Partitions with the same owner, target, last owner and preferred owner are one
-- holding.
--
-- Clients may write any times, even infinite times and times that JSON cannot hold; the result has times within the
-- range of JSON. greatest and least ignore null. Of a refused lease, a number that none can have been is shown as 0, and
-- of metadata each value is a text, because JSON may be nested more deeply than a program reads. A lease has at most
-- 65,536 partitions. So one client's row neither hides all others, nor takes all memory.
WITH t AS MATERIALIZED (SELECT clock_timestamp() AS now),
known AS MATERIALIZED (
    SELECT c.*, least(greatest(extract(epoch FROM c.ttl) * 1000000000, -9e18), 9e18)::bigint AS lives,
           least(greatest((extract(epoch FROM t.now) - extract(epoch FROM c.expires_at) + extract(epoch FROM c.ttl)) * 1000000000, -9e18), 9e18)::bigint AS silent
    FROM pgleases.clients AS c CROSS JOIN t
)
SELECT json_build_object(
    'at', t.now,
    'schema_version', v.version,
    'min_code', v.min_code,
    'server', json_build_object('timeline', pgleases.timeline()::text, 'accepted_timeline', s.accepted_timeline::text, 'generation', s.generation,
                                'tables', pgleases.tables_number()::text, 'marked', EXISTS (SELECT FROM pgleases.present_marker)),
    'overrides', (
        SELECT coalesce(json_agg(json_build_object('verb', w.verb, 'lease', w.lease, 'partition', w.partition, 'client', w.client, 'actor', w.actor, 'reason', w.reason,
                   'since', least(greatest(w.since, '0001-01-02 UTC'), '9999-12-30 UTC'),
                   'until', CASE WHEN isfinite(w.until) THEN least(greatest(w.until, '0001-01-02 UTC'), '9999-12-30 UTC') END) ORDER BY w.since), '[]')
        FROM pgleases.overrides AS w WHERE w.until > t.now),
    'clients', (
        SELECT coalesce(json_agg(json_build_object(
                   'session', c.session::text, 'id', c.id, 'incarnation', c.incarnation, 'evicted', c.incarnation < 0,
                   'superseded', c.incarnation >= 0 AND coalesce(i.incarnation > c.incarnation, false),
                   'host', c.host, 'pid', c.pid, 'started', least(greatest(c.started_at, '0001-01-02 UTC'), '9999-12-30 UTC'),
                   'ttl_ns', c.lives, 'heartbeat_age_ns', c.silent, 'expired', c.silent > c.lives,
                   'refused_leases', (
                       SELECT coalesce(json_object_agg(r.key, CASE WHEN r.value::text ~ '^[0-9]{1,9}$' THEN r.value ELSE '0' END), '{}')
                       FROM jsonb_each(CASE jsonb_typeof(c.refused_leases) WHEN 'object' THEN c.refused_leases ELSE '{}' END) AS r),
                   'metadata', (SELECT coalesce(json_object_agg(m.key, m.value), '{}')
                                FROM jsonb_each_text(CASE jsonb_typeof(c.metadata) WHEN 'object' THEN c.metadata ELSE '{}' END) AS m),
                   'fast_failover', p.session IS NOT NULL) ORDER BY c.id, c.incarnation, c.session), '[]')
        FROM known AS c
        LEFT JOIN pgleases.identities AS i ON i.id = c.id
        LEFT JOIN pgleases.presences AS p ON p.session = c.session),
    'leases', (
        SELECT coalesce(json_agg(json_build_object(
                   'name', l.name, 'partitions', least(l.partitions, 65536), 'generation', l.generation,
                   'planned', least(greatest(l.planned_at, '0001-01-02 UTC'), '9999-12-30 UTC'),
                   'due', CASE WHEN isfinite(l.plan_due_at) THEN least(greatest(l.plan_due_at, '0001-01-02 UTC'), '9999-12-30 UTC') END,
                   'settles', CASE WHEN l.settles_at > t.now AND l.settling_since <= t.now + interval '1 second' THEN least(l.settles_at, '9999-12-30 UTC') END,
                   'awaited', coalesce((
                       SELECT json_agg(json_build_object('client', g.client, 'since', least(greatest(g.since, '0001-01-02 UTC'), '9999-12-30 UTC'),
                                  'until', least(g.until, '9999-12-30 UTC')) ORDER BY g.client)
                       FROM pgleases.graces AS g
                       WHERE g.lease = l.name AND g.until > t.now AND g.since <= t.now + interval '1 second'
                         AND NOT EXISTS (SELECT FROM pgleases.overrides AS w WHERE w.verb = 'drain' AND w.client = g.client)
                         AND NOT EXISTS (SELECT FROM pgleases.members AS n JOIN known AS c ON c.session = n.session
                                         WHERE n.lease = l.name AND c.id = g.client AND n.joined_generation > g.generation)), '[]'),
                   -- It is not missed: the last that happened to its members and partitions is that a member left in order.
                   'left', m.members IS NULL AND NOT EXISTS (SELECT FROM pgleases.partitions AS p WHERE p.lease = l.name AND p.owner IS NOT NULL)
                       AND coalesce((SELECT e.cause = 'left' FROM pgleases.events AS e
                                     WHERE e.lease = l.name AND e.cause IN ('given', 'handed over', 'left')
                                     ORDER BY e.at DESC, e.id DESC LIMIT 1), true),
                   'unowned', l.unowned, 'members', coalesce(m.members, '[]'), 'holdings', coalesce(h.holdings, '[]')) ORDER BY l.name), '[]')
        FROM pgleases.leases AS l
        LEFT JOIN ( -- without evicted sessions, whose rows the next check deletes
            SELECT m.lease, json_agg(json_build_object('session', m.session::text, 'client', c.id, 'weight', m.weight,
                       'max_partitions', coalesce(m.max_partitions, 0),
                       'restart_grace_ns', least(greatest(extract(epoch FROM m.restart_grace) * 1000000000, 0), 9e18)::bigint, 'rebalance_delay_ns', least(greatest(extract(epoch FROM m.rebalance_delay) * 1000000000, 0), 9e18)::bigint,
                       'joined', least(greatest(m.joined_at, '0001-01-02 UTC'), '9999-12-30 UTC')) ORDER BY c.id, m.session) AS members
            FROM pgleases.members AS m
            JOIN known AS c ON c.session = m.session
            GROUP BY m.lease
        ) AS m ON m.lease = l.name
        LEFT JOIN (
            SELECT p.lease, json_agg(json_build_object(
                       'owner_session', coalesce(p.owner, 0)::text, 'target_session', coalesce(p.target, 0)::text, 'owner', o.id, 'target', g.id,
                       'last_owner', p.owner_id, 'preferred_owner', p.preferred_owner_id,
                       'since', CASE WHEN p.since IS NOT NULL THEN least(greatest(p.since, '0001-01-02 UTC'), '9999-12-30 UTC') END,
                       'asked', CASE WHEN p.asked IS NOT NULL THEN least(greatest(p.asked, '0001-01-02 UTC'), '9999-12-30 UTC') END,
                       'partitions', (SELECT json_agg(json_build_array(lower(r), upper(r) - 1)) FROM unnest(p.numbers) AS r)) ORDER BY p.first) AS holdings
            FROM (SELECT p.lease, p.owner, p.target, p.owner_id, p.preferred_owner_id, min(p.owned_since) AS since, min(p.asked_at) AS asked,
                         min(p.partition) AS first, range_agg(int4range(p.partition, p.partition + 1)) AS numbers
                  FROM pgleases.partitions AS p
                  GROUP BY p.lease, p.owner, p.target, p.owner_id, p.preferred_owner_id) AS p
            LEFT JOIN known AS o ON o.session = p.owner
            LEFT JOIN known AS g ON g.session = p.target
            GROUP BY p.lease
        ) AS h ON h.lease = l.name
        WHERE l.partitions > 0)
)::text
FROM t CROSS JOIN pgleases.schema_version AS v CROSS JOIN pgleases.server AS s
