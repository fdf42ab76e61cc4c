-- snapshot.sql: all that stands in the tables of leases and clients, in one snapshot. It is sent without parameters, after settings of its
-- own, in one message that is one transaction: see Admin.read. These have the search_path be pg_catalog alone.
--
-- One text, JSON. Times are microseconds, points in time since 1970. Partitions with the same owner, target, last owner and home are one
-- holding; their numbers are a multirange.
--
-- Clients may write any times, also infinite ones and such as a bigint does not hold: whoever looks is told less extreme ones. greatest and
-- least pass over null.
WITH t AS MATERIALIZED (SELECT clock_timestamp() AS now)
SELECT json_build_object(
    'at', (extract(epoch FROM t.now) * 1000000)::bigint,
    'version', v.version,
    'min_code', v.min_code,
    'timeline', pgleases.timeline(),
    'settled', s.timeline,
    'era', s.era,
    'marked', EXISTS (SELECT FROM pgleases.server_mark),
    'wishes', (
        SELECT coalesce(json_agg(json_build_object('verb', w.verb, 'lease', w.lease, 'partition', w.partition, 'client', w.client, 'actor', w.actor, 'reason', w.reason,
                   'since', (extract(epoch FROM w.since) * 1000000)::bigint,
                   'until', CASE WHEN isfinite(w.until) THEN least(extract(epoch FROM w.until) * 1000000, 9e18)::bigint END) ORDER BY w.since), '[]')
        FROM pgleases.wishes AS w),
    'clients', (
        SELECT coalesce(json_agg(json_build_object(
                   'session', c.session, 'id', c.id, 'incarnation', c.incarnation, 'superseded', coalesce(i.incarnation > c.incarnation, false),
                   'host', c.host, 'pid', c.pid, 'started', least(greatest(extract(epoch FROM c.started_at) * 1000000, -9e18), 9e18)::bigint,
                   'ttl', least(greatest(extract(epoch FROM c.ttl) * 1000000, -9e15), 9e15)::bigint,
                   'silent', least(greatest((extract(epoch FROM t.now) - extract(epoch FROM c.expires_at) + extract(epoch FROM c.ttl)) * 1000000, -9e15), 9e15)::bigint,
                   'fast', p.session IS NOT NULL) ORDER BY c.id, c.incarnation, c.session), '[]')
        FROM pgleases.clients AS c
        LEFT JOIN pgleases.identities AS i ON i.id = c.id
        LEFT JOIN pgleases.presences AS p ON p.session = c.session),
    'leases', (
        SELECT coalesce(json_agg(json_build_object(
                   'name', l.name, 'partitions', l.partitions, 'generation', l.generation,
                   'planned', least(greatest(extract(epoch FROM l.planned_at) * 1000000, -9e18), 9e18)::bigint,
                   'due', CASE WHEN isfinite(l.next_check_at) THEN least(greatest(extract(epoch FROM l.next_check_at) * 1000000, -9e18), 9e18)::bigint END,
                   'members', coalesce(m.members, '[]'), 'holdings', coalesce(h.holdings, '[]')) ORDER BY l.name), '[]')
        FROM pgleases.leases AS l
        LEFT JOIN (
            SELECT m.lease, json_agg(json_build_object('session', m.session, 'weight', m.weight,
                       'joined', least(greatest(extract(epoch FROM m.joined_at) * 1000000, -9e18), 9e18)::bigint)) AS members
            FROM pgleases.members AS m
            GROUP BY m.lease
        ) AS m ON m.lease = l.name
        LEFT JOIN (
            SELECT p.lease, json_agg(json_build_object('owner', p.owner, 'target', p.target, 'owner_id', p.owner_id, 'home_id', p.home_id,
                       'since', CASE WHEN p.since IS NOT NULL THEN least(greatest(extract(epoch FROM p.since) * 1000000, -9e18), 9e18)::bigint END,
                       'asked', CASE WHEN p.asked IS NOT NULL THEN least(greatest(extract(epoch FROM p.asked) * 1000000, -9e18), 9e18)::bigint END,
                       'numbers', p.numbers::text)) AS holdings
            FROM (SELECT p.lease, p.owner, p.target, p.owner_id, p.home_id, min(p.owned_since) AS since, min(p.asked_at) AS asked,
                         range_agg(int4range(p.partition, p.partition + 1)) AS numbers
                  FROM pgleases.partitions AS p
                  GROUP BY p.lease, p.owner, p.target, p.owner_id, p.home_id) AS p
            GROUP BY p.lease
        ) AS h ON h.lease = l.name
        WHERE l.partitions > 0)
)::text
FROM t CROSS JOIN pgleases.schema_version AS v CROSS JOIN pgleases.server AS s
