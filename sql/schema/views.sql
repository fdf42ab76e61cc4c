-- views.sql: what people read.

CREATE OR REPLACE VIEW pgleases.status AS
SELECT p.lease,
       p.partition,
       CASE WHEN p.owner IS NOT NULL THEN p.owner_id END AS owner,
       p.epoch,
       p.owned_since AS since,
       CASE WHEN (p.target OPERATOR(pg_catalog.=) p.owner) IS NOT TRUE THEN t.id END AS moving_to,
       p.asked_at AS draining_since,
       CASE WHEN p.owner IS NULL THEN g.client END AS waits_for,
       CASE WHEN p.owner IS NULL THEN g.until END AS waits_until
FROM pgleases.partitions AS p
LEFT JOIN pgleases.clients AS t ON t.session OPERATOR(pg_catalog.=) p.target
LEFT JOIN pgleases.graces AS g ON g.lease OPERATOR(pg_catalog.=) p.lease AND g.client OPERATOR(pg_catalog.=) p.owner_id
                              AND g.until OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp()
                              AND NOT EXISTS (SELECT FROM pgleases.members AS m JOIN pgleases.clients AS c ON c.session OPERATOR(pg_catalog.=) m.session
                                              WHERE m.lease OPERATOR(pg_catalog.=) g.lease AND c.id OPERATOR(pg_catalog.=) g.client
                                                AND m.joined_generation OPERATOR(pg_catalog.>) g.generation);
COMMENT ON VIEW pgleases.status IS 'Every partition, with its owner, since when it has that owner, and where it moves.';
COMMENT ON COLUMN pgleases.status.lease IS 'The lease''s name.';
COMMENT ON COLUMN pgleases.status.partition IS 'The partition''s number, from 0.';
COMMENT ON COLUMN pgleases.status.owner IS 'The client ID of the owner, even if it has crashed or was evicted, until a plan gives the partition to another client. It is null if there is no owner.';
COMMENT ON COLUMN pgleases.status.epoch IS 'The fencing token of this ownership.';
COMMENT ON COLUMN pgleases.status.since IS 'When this ownership began.';
COMMENT ON COLUMN pgleases.status.moving_to IS 'The client ID of the target, if that is not the owner.';
COMMENT ON COLUMN pgleases.status.draining_since IS 'When the owner was asked to hand over.';
COMMENT ON COLUMN pgleases.status.waits_for IS 'The client ID for whose return it waits. It is null if it has an owner, or waits for no client.';
COMMENT ON COLUMN pgleases.status.waits_until IS 'Until when it waits.';

CREATE OR REPLACE VIEW pgleases.members_status AS
SELECT m.lease,
       c.id AS client,
       pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) (c.expires_at OPERATOR(pg_catalog.-) c.ttl) AS heartbeat_age,
       (SELECT pg_catalog.count(*) FROM pgleases.partitions AS p
        WHERE p.lease OPERATOR(pg_catalog.=) m.lease AND p.owner OPERATOR(pg_catalog.=) m.session) AS owned,
       CASE WHEN (pg_catalog.sum(e.weight) OVER (PARTITION BY m.lease)) OPERATOR(pg_catalog.>) 0::bigint
            THEN least(pg_catalog.round((l.partitions OPERATOR(pg_catalog.*) e.weight)::numeric
                                        OPERATOR(pg_catalog./) (pg_catalog.sum(e.weight) OVER (PARTITION BY m.lease))::numeric, 2), m.max_partitions::numeric)
            ELSE 0 END AS share,
       m.weight,
       c.host,
       c.pid,
       c.session,
       w.verbs AS overrides,
       c.metadata
FROM pgleases.members AS m
JOIN pgleases.clients AS c ON c.session OPERATOR(pg_catalog.=) m.session
JOIN pgleases.leases AS l ON l.name OPERATOR(pg_catalog.=) m.lease
CROSS JOIN LATERAL (
    SELECT pg_catalog.array_agg(w.verb ORDER BY w.verb) AS verbs,
           coalesce(pg_catalog.bool_or(w.verb OPERATOR(pg_catalog.=) ANY ('{drain,pause}'::pg_catalog.text[])), false) AS idle
    FROM pgleases.overrides AS w
    WHERE w.partition IS NULL AND (w.client OPERATOR(pg_catalog.=) c.id OR w.lease OPERATOR(pg_catalog.=) l.name)
) AS w
CROSS JOIN LATERAL (
    SELECT CASE WHEN w.idle OR c.incarnation OPERATOR(pg_catalog.<) 0 THEN 0 ELSE m.weight END AS weight
) AS e;
COMMENT ON VIEW pgleases.members_status IS 'Every live member of every lease, with its last heartbeat, how many partitions it owns, and how many it should own.';
COMMENT ON COLUMN pgleases.members_status.lease IS 'The lease''s name.';
COMMENT ON COLUMN pgleases.members_status.client IS 'The client ID.';
COMMENT ON COLUMN pgleases.members_status.heartbeat_age IS 'Time since its last heartbeat. Above the TTL it may be evicted.';
COMMENT ON COLUMN pgleases.members_status.owned IS 'How many partitions it owns.';
COMMENT ON COLUMN pgleases.members_status.share IS 'How many partitions it should own by its weight: 0 if it is drained or the lease is paused. It is not above the member''s ceiling. A cordon, a freeze, pins, and ceilings of other members may cause it to own another number.';
COMMENT ON COLUMN pgleases.members_status.weight IS 'Its weight.';
COMMENT ON COLUMN pgleases.members_status.host IS 'The host of its process.';
COMMENT ON COLUMN pgleases.members_status.pid IS 'The process ID on that host.';
COMMENT ON COLUMN pgleases.members_status.session IS 'Its session.';
COMMENT ON COLUMN pgleases.members_status.overrides IS 'The overrides that concern this client or this lease, except pins. It is null if there is no override.';
COMMENT ON COLUMN pgleases.members_status.metadata IS 'Data of the application about this client.';

CREATE OR REPLACE VIEW pgleases.locks_status AS
SELECT l.name,
       c.id AS client,
       CASE WHEN l.token IS NULL THEN 'waits' ELSE 'holds' END AS state,
       l.shared,
       pg_catalog.row_number() OVER (PARTITION BY l.name ORDER BY l.ticket) AS place,
       l.token,
       l.since,
       pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) (c.expires_at OPERATOR(pg_catalog.-) c.ttl) AS heartbeat_age,
       c.expires_at OPERATOR(pg_catalog.-) pg_catalog.clock_timestamp() AS expires_in,
       c.host,
       c.pid,
       l.session,
       l.token IS NOT NULL AND coalesce(l.name OPERATOR(pg_catalog.=) ANY (c.lost_locks), false) AS lost
FROM pgleases.locks AS l
LEFT JOIN pgleases.clients AS c ON c.session OPERATOR(pg_catalog.=) l.session;
COMMENT ON VIEW pgleases.locks_status IS 'Every named lock that is held or awaited, with one row for each session that holds or awaits it.';
COMMENT ON COLUMN pgleases.locks_status.name IS 'The lock''s name.';
COMMENT ON COLUMN pgleases.locks_status.client IS 'The client ID. It is null if the session was evicted, and the row is deleted soon, or when a guarded transaction ends.';
COMMENT ON COLUMN pgleases.locks_status.state IS 'holds or waits.';
COMMENT ON COLUMN pgleases.locks_status.shared IS 'Whether the session shares the lock, or waits to share it, with other sessions.';
COMMENT ON COLUMN pgleases.locks_status.place IS 'Its place among all sessions that hold or await this lock, from 1.';
COMMENT ON COLUMN pgleases.locks_status.token IS 'The fencing token of this acquisition. It is null if it waits.';
COMMENT ON COLUMN pgleases.locks_status.since IS 'Since when it holds the lock, or waits.';
COMMENT ON COLUMN pgleases.locks_status.heartbeat_age IS 'Time since its client''s last heartbeat. Above the TTL it may be evicted.';
COMMENT ON COLUMN pgleases.locks_status.expires_in IS 'Time until its client may be evicted, if no further heartbeat arrives.';
COMMENT ON COLUMN pgleases.locks_status.host IS 'The host of its process.';
COMMENT ON COLUMN pgleases.locks_status.pid IS 'The process ID on that host.';
COMMENT ON COLUMN pgleases.locks_status.session IS 'Its session.';
COMMENT ON COLUMN pgleases.locks_status.lost IS 'Whether the client has lost the lock, and has not released it. Its work may go on, so the lock stays with it.';
