-- schema.sql: the tables and views, with their comments. It runs first, functions.sql after it. Idempotent: what exists stays
-- as it is.
--
-- Types, operators and functions are named with their schema, pg_catalog: an operator or a type by the same name in a schema on
-- the search_path would else take their place, whatever it does. See functions.sql.
--
-- Each table that is logged has a primary key or another replica identity: a publication FOR ALL
-- TABLES, as of change data capture or a blue/green upgrade, would have the server refuse its
-- updates.
--
-- Text columns collate "C": compared byte by byte, so that the database sorts names and IDs as Go does.

DO $pgleases_body$
BEGIN
    CREATE SCHEMA IF NOT EXISTS pgleases;
EXCEPTION WHEN insufficient_privilege THEN
    NULL; -- a role without the right to create schemas may still fill one that was made for it
END
$pgleases_body$;

CREATE TABLE IF NOT EXISTS pgleases.schema_version (
    version  int NOT NULL,
    min_code int NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS schema_version_one_row ON pgleases.schema_version ((true));
ALTER TABLE pgleases.schema_version REPLICA IDENTITY FULL;
COMMENT ON TABLE pgleases.schema_version IS 'One row: which schema this is, and which code can serve it.';
COMMENT ON COLUMN pgleases.schema_version.version IS 'Version of these tables. Migrations only add.';
COMMENT ON COLUMN pgleases.schema_version.min_code IS 'The oldest code that can run here, by the schema version for which it was written.';

-- Every heartbeat updates expires_at. No index may contain it, or the update would not be HOT. Half of every page stays free
-- for the new row versions.
CREATE TABLE IF NOT EXISTS pgleases.clients (
    session     bigint PRIMARY KEY,
    id          pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    incarnation bigint NOT NULL,
    expires_at  pg_catalog.timestamptz NOT NULL,
    ttl         interval NOT NULL,
    host        pg_catalog.text NOT NULL,
    pid         int NOT NULL,
    started_at  pg_catalog.timestamptz NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.5, autovacuum_vacuum_threshold = 1000);
COMMENT ON TABLE pgleases.clients IS 'The living sessions: one row for each run of a client, renewed by its heartbeat.';
COMMENT ON COLUMN pgleases.clients.session IS '63 random bits drawn by the client; a restart is a new session.';
COMMENT ON COLUMN pgleases.clients.id IS 'The client''s ID, as the application chose it.';
COMMENT ON COLUMN pgleases.clients.incarnation IS 'Number of the process among those with this ID: each new process draws a higher one, and only the highest may own. Negative: an operator has revoked the session, and no heartbeat renews it.';
COMMENT ON COLUMN pgleases.clients.expires_at IS 'Last heartbeat plus TTL. After it, a client that has watched the clock for a TTL may evict the session.';
COMMENT ON COLUMN pgleases.clients.ttl IS 'How long the session stays alive without a heartbeat.';
COMMENT ON COLUMN pgleases.clients.host IS 'The host on which its process runs.';
COMMENT ON COLUMN pgleases.clients.pid IS 'The process ID there.';
COMMENT ON COLUMN pgleases.clients.started_at IS 'When the client was opened, by its own clock.';

CREATE TABLE IF NOT EXISTS pgleases.identities (
    id          pg_catalog.text COLLATE pg_catalog."C" PRIMARY KEY,
    incarnation bigint NOT NULL,
    process     bigint NOT NULL,
    used_at     pg_catalog.timestamptz NOT NULL
);
COMMENT ON TABLE pgleases.identities IS 'The newest process under each client ID. A row whose ID had no session for a day is deleted.';
COMMENT ON COLUMN pgleases.identities.id IS 'The client''s ID.';
COMMENT ON COLUMN pgleases.identities.incarnation IS 'The highest incarnation under this ID.';
COMMENT ON COLUMN pgleases.identities.process IS 'Number of the client that drew the incarnation, so that its repeated registration draws no second one. The lowest 24 bits count the clients of one program; the other bits are random, and the same for the whole program.';
COMMENT ON COLUMN pgleases.identities.used_at IS 'When a session under this ID was last registered, ended or evicted.';

CREATE TABLE IF NOT EXISTS pgleases.leases (
    name               pg_catalog.text COLLATE pg_catalog."C" PRIMARY KEY,
    partitions         int NOT NULL,
    generation         bigint NOT NULL,
    created_generation bigint NOT NULL,
    epoch_floor        bigint NOT NULL,
    next_check_at      pg_catalog.timestamptz NOT NULL,
    planned_at         pg_catalog.timestamptz NOT NULL,
    changed            pg_catalog.xid8 NOT NULL DEFAULT '0',
    next_partitions    int NOT NULL DEFAULT 0,
    next_until         pg_catalog.timestamptz NOT NULL DEFAULT '-infinity'
) WITH (fillfactor = 50);
COMMENT ON TABLE pgleases.leases IS 'The leases. A dropped lease keeps its row, with 0 partitions, for its epoch floor.';
COMMENT ON COLUMN pgleases.leases.name IS 'The lease''s name.';
COMMENT ON COLUMN pgleases.leases.partitions IS 'Number of partitions, which are numbered from 0; 0: the lease was dropped.';
COMMENT ON COLUMN pgleases.leases.generation IS 'Rises with every change of its members, owners or targets.';
COMMENT ON COLUMN pgleases.leases.created_generation IS 'The generation at which the lease was made, or made again after a drop.';
COMMENT ON COLUMN pgleases.leases.epoch_floor IS 'The highest epoch before the lease was dropped; new epochs are above it.';
COMMENT ON COLUMN pgleases.leases.next_check_at IS 'When a plan of this lease is due; infinity: no plan is due.';
COMMENT ON COLUMN pgleases.leases.planned_at IS 'When a plan was last claimed or applied.';
COMMENT ON COLUMN pgleases.leases.next_partitions IS 'Of a lease that was dropped: until next_until it may be made again with this number of partitions only.';
COMMENT ON COLUMN pgleases.leases.next_until IS '24 hours after the last drop; -infinity: there was none.';
COMMENT ON COLUMN pgleases.leases.changed IS 'The transaction that last changed the row. Heartbeats of members return their leases only after a change.';

CREATE TABLE IF NOT EXISTS pgleases.members (
    lease       pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    session     bigint NOT NULL,
    weight      int NOT NULL,
    joined_at   pg_catalog.timestamptz NOT NULL,
    join_number bigint NOT NULL,
    PRIMARY KEY (lease, session)
);
CREATE INDEX IF NOT EXISTS members_session ON pgleases.members (session, lease);
COMMENT ON TABLE pgleases.members IS 'The members: one row for each session and lease that it joined.';
COMMENT ON COLUMN pgleases.members.lease IS 'The lease''s name.';
COMMENT ON COLUMN pgleases.members.session IS 'The session that joined; a living member while it has a row in clients.';
COMMENT ON COLUMN pgleases.members.weight IS 'Its share relative to the other members, as the application set it; 0: it shall own nothing. Where an override drains the client or pauses the lease, it counts as 0.';
COMMENT ON COLUMN pgleases.members.joined_at IS 'When it joined.';
COMMENT ON COLUMN pgleases.members.join_number IS 'Number of the last join among those of its session. A leave names it: one that comes late ends no later membership.';

-- No foreign keys on owner and target: ON DELETE SET NULL would wait for a user's guarded transaction.
CREATE TABLE IF NOT EXISTS pgleases.partitions (
    lease       pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    partition   int NOT NULL,
    owner       bigint,
    target      bigint,
    epoch       bigint NOT NULL,
    owner_id    pg_catalog.text COLLATE pg_catalog."C",
    preferred_owner_id     pg_catalog.text COLLATE pg_catalog."C",
    owned_since pg_catalog.timestamptz,
    asked_at    pg_catalog.timestamptz,
    PRIMARY KEY (lease, partition)
) WITH (fillfactor = 70);
CREATE INDEX IF NOT EXISTS partitions_owner ON pgleases.partitions (owner);
COMMENT ON TABLE pgleases.partitions IS 'The partitions of every lease, each with its owner and its target.';
COMMENT ON COLUMN pgleases.partitions.lease IS 'The lease''s name.';
COMMENT ON COLUMN pgleases.partitions.partition IS 'The partition''s number, from 0.';
COMMENT ON COLUMN pgleases.partitions.owner IS 'The session that owns it; null: none.';
COMMENT ON COLUMN pgleases.partitions.target IS 'The session that shall own it. Where that is not the owner, the owner is asked to hand over.';
COMMENT ON COLUMN pgleases.partitions.epoch IS 'Fencing token: rises at every change of owner, and never repeats.';
COMMENT ON COLUMN pgleases.partitions.owner_id IS 'The client ID of the owner, or of the last one.';
COMMENT ON COLUMN pgleases.partitions.preferred_owner_id IS 'The client ID to which the partition returns: it was the owner when that client went away. Null: none, or it has returned.';
COMMENT ON COLUMN pgleases.partitions.owned_since IS 'When this ownership began.';
COMMENT ON COLUMN pgleases.partitions.asked_at IS 'When the owner was asked to hand over; null: it is not asked.';

CREATE TABLE IF NOT EXISTS pgleases.server (
    accepted_timeline bigint NOT NULL,
    generation        bigint NOT NULL,
    next_check_at     pg_catalog.timestamptz NOT NULL,
    sessions          bigint NOT NULL DEFAULT 1,
    unwatched         interval NOT NULL DEFAULT '0',
    checks            bigint NOT NULL DEFAULT 0,
    left_behind       bigint[] NOT NULL DEFAULT '{}'
) WITH (fillfactor = 10);
CREATE UNIQUE INDEX IF NOT EXISTS server_one_row ON pgleases.server ((true));
ALTER TABLE pgleases.server REPLICA IDENTITY FULL;
COMMENT ON TABLE pgleases.server IS 'One row: the server on which these tables are, and when the next check for expired sessions is due.';
COMMENT ON COLUMN pgleases.server.accepted_timeline IS 'The accepted server and timeline, as the function timeline names them. While they are others, after a promotion or in a copy, no partition changes its owner.';
COMMENT ON COLUMN pgleases.server.generation IS 'The server generation: new epochs are at least this number times 2^32, and no lower epoch passes a guard; rises when a server is accepted.';
COMMENT ON COLUMN pgleases.server.next_check_at IS 'When the next check for expired sessions is due: no session can have expired before.';
COMMENT ON COLUMN pgleases.server.sessions IS 'Number of sessions at the last check. Where there are many, only some of them look for the next one early.';
COMMENT ON COLUMN pgleases.server.unwatched IS 'The shortest TTL of the sessions that had expired at the last check and stayed, because the client that made the check had not watched the clock for so long; 0: none. For a client that has, a check is due.';
COMMENT ON COLUMN pgleases.server.checks IS 'Number of checks for expired sessions. It chooses the part of the tables in which the last one looks for orphans.';
COMMENT ON COLUMN pgleases.server.left_behind IS 'Sessions that were evicted and may have rows in members still. The next check removes these rows.';

-- The named locks of package lock. A row goes when nobody holds or awaits it, so the table is small and its rows are many: the
-- threshold has it vacuumed whatever its size at the time. No foreign key on session, which would have every acquisition lock its row.
CREATE TABLE IF NOT EXISTS pgleases.locks (
    name    pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    ticket  bigint NOT NULL,
    session bigint NOT NULL,
    nonce   bigint NOT NULL,
    shared  boolean NOT NULL,
    token   bigint,
    since   pg_catalog.timestamptz NOT NULL,
    PRIMARY KEY (name, ticket)
) WITH (autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_scale_factor = 0);
CREATE INDEX IF NOT EXISTS locks_session ON pgleases.locks (session, nonce);
COMMENT ON TABLE pgleases.locks IS 'The named locks: one row for each session that holds or awaits one. A name without a row is free.';
COMMENT ON COLUMN pgleases.locks.name IS 'The lock''s name.';
COMMENT ON COLUMN pgleases.locks.ticket IS 'Place in the queue of this name. Who holds the lock comes before who waits.';
COMMENT ON COLUMN pgleases.locks.session IS 'The session that holds or awaits it; dead once it has no row in clients.';
COMMENT ON COLUMN pgleases.locks.nonce IS 'Random number of this acquisition, drawn by the client.';
COMMENT ON COLUMN pgleases.locks.shared IS 'Whether it is held, or awaited, together with other sessions that share it.';
COMMENT ON COLUMN pgleases.locks.token IS 'Fencing token: rises with every acquisition, and never repeats. Null: the session waits.';
COMMENT ON COLUMN pgleases.locks.since IS 'Since when the session holds the lock, or waits for it.';

-- Not a column of clients: who looks out reads these rows, of which there are none without fast failover.
CREATE TABLE IF NOT EXISTS pgleases.presences (
    session  bigint PRIMARY KEY,
    presence bigint NOT NULL,
    pid      int NOT NULL DEFAULT pg_catalog.pg_backend_pid()
);
COMMENT ON TABLE pgleases.presences IS 'The sessions of clients with fast failover. A row whose session has gone is deleted when the next client connects.';
COMMENT ON COLUMN pgleases.presences.session IS 'The session.';
COMMENT ON COLUMN pgleases.presences.presence IS 'Key of the advisory lock that the client''s connection holds: where nobody holds it, that connection has ended.';
COMMENT ON COLUMN pgleases.presences.pid IS 'The server''s process of that connection. Another process that holds or awaits the lock is a stranger''s.';

-- For people: no statement of the protocol reads it. Its rows are written by the statements that do what they tell, and one of
-- them tells of all partitions that went from one client to another. Ordered by transaction: what a transaction writes is seen when it
-- commits, which may be later than what has a higher id.
CREATE TABLE IF NOT EXISTS pgleases.events (
    tx         pg_catalog.xid8 NOT NULL DEFAULT pg_catalog.pg_current_xact_id(),
    id         bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    at         pg_catalog.timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    lease      pg_catalog.text COLLATE pg_catalog."C",
    cause      pg_catalog.text NOT NULL,
    actor      pg_catalog.text,
    reason     pg_catalog.text,
    from_id    pg_catalog.text COLLATE pg_catalog."C",
    to_id      pg_catalog.text COLLATE pg_catalog."C",
    partitions pg_catalog.int4multirange,
    generation bigint,
    PRIMARY KEY (tx, id)
);
COMMENT ON TABLE pgleases.events IS 'What happened to members and partitions, and why. What is older than events_kept is deleted.';
COMMENT ON COLUMN pgleases.events.tx IS 'The transaction that wrote it. Whoever follows the events reads on from the last (tx, id), and only what is below pg_snapshot_xmin: nothing is written there any more.';
COMMENT ON COLUMN pgleases.events.id IS 'Number of the event.';
COMMENT ON COLUMN pgleases.events.at IS 'When it was written.';
COMMENT ON COLUMN pgleases.events.lease IS 'The lease''s name; null: it is about all leases.';
COMMENT ON COLUMN pgleases.events.cause IS 'What happened: joined, left, evicted, handed over (by the owner), given (by a plan: nobody living owned it), accepted (a promoted server), dropped; or the name of an operator''s verb.';
COMMENT ON COLUMN pgleases.events.actor IS 'Who asked for it; null: the protocol did it by itself.';
COMMENT ON COLUMN pgleases.events.reason IS 'Why, in the words of the actor.';
COMMENT ON COLUMN pgleases.events.from_id IS 'Client ID of who owned the partitions, or had last; of who left or was evicted.';
COMMENT ON COLUMN pgleases.events.to_id IS 'Client ID of who owns the partitions from then on, null: nobody; of who joined.';
COMMENT ON COLUMN pgleases.events.partitions IS 'The partitions concerned, as ranges.';
COMMENT ON COLUMN pgleases.events.generation IS 'The lease''s generation before it.';

-- What operators want. A plan of a lease obeys the overrides that concern it. Not columns of other tables: what clients write would
-- take them away. Clients may read it; the functions for operators write it.
CREATE TABLE IF NOT EXISTS pgleases.overrides (
    verb      pg_catalog.text NOT NULL,
    lease     pg_catalog.text COLLATE pg_catalog."C",
    partition int,
    client    pg_catalog.text COLLATE pg_catalog."C",
    until     pg_catalog.timestamptz NOT NULL,
    since     pg_catalog.timestamptz NOT NULL,
    actor     pg_catalog.text NOT NULL,
    reason    pg_catalog.text NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS overrides_once ON pgleases.overrides (verb, coalesce(lease, ''), coalesce(partition, -1), (CASE WHEN partition IS NULL THEN coalesce(client, '') ELSE '' END));
CREATE INDEX IF NOT EXISTS overrides_client ON pgleases.overrides (client);
CREATE INDEX IF NOT EXISTS overrides_lease ON pgleases.overrides (lease);
ALTER TABLE pgleases.overrides REPLICA IDENTITY FULL;
COMMENT ON TABLE pgleases.overrides IS 'What operators want, until they take it back. Written by the functions drain, cordon, pause, freeze, pin and their opposites alone.';
COMMENT ON COLUMN pgleases.overrides.verb IS 'drain or cordon, of a client; pause or freeze, of a lease; pin, of a partition to a client.';
COMMENT ON COLUMN pgleases.overrides.lease IS 'The lease that it is about; null: all.';
COMMENT ON COLUMN pgleases.overrides.partition IS 'The partition that it is about; null: all.';
COMMENT ON COLUMN pgleases.overrides.client IS 'The ID of the client that it is about, whichever process has it; null: all.';
COMMENT ON COLUMN pgleases.overrides.until IS 'When it ends by itself: the next check for expired sessions deletes it. infinity: never.';
COMMENT ON COLUMN pgleases.overrides.since IS 'When it was last written.';
COMMENT ON COLUMN pgleases.overrides.actor IS 'Who wants it.';
COMMENT ON COLUMN pgleases.overrides.reason IS 'Why.';

CREATE TABLE IF NOT EXISTS pgleases.events_kept (
    age interval NOT NULL CHECK (age OPERATOR(pg_catalog.>=) interval '0')
);
CREATE UNIQUE INDEX IF NOT EXISTS events_kept_one_row ON pgleases.events_kept ((true));
ALTER TABLE pgleases.events_kept REPLICA IDENTITY FULL;
COMMENT ON TABLE pgleases.events_kept IS 'One row: how long events are kept. Change it with UPDATE.';
COMMENT ON COLUMN pgleases.events_kept.age IS 'Older events are deleted, 1,000 at each check for expired sessions.';
INSERT INTO pgleases.events_kept (age) VALUES ('30 days') ON CONFLICT DO NOTHING;

CREATE SEQUENCE IF NOT EXISTS pgleases.lock_tokens;
COMMENT ON SEQUENCE pgleases.lock_tokens IS 'The low part of the locks'' tokens; the server generation is the high part.';

-- Unlogged, because a crash or a promotion empties such a table: where it is empty, heartbeats may be lost, which wait for
-- no flush. A crash of one backend changes neither the server's start time nor its timeline.
CREATE UNLOGGED TABLE IF NOT EXISTS pgleases.boot_marker (
    marker bigint NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS boot_marker_one_row ON pgleases.boot_marker ((true));
COMMENT ON TABLE pgleases.boot_marker IS 'At most one row: a random number that is gone after a crash or a promotion.';
COMMENT ON COLUMN pgleases.boot_marker.marker IS 'Drawn by the first client whose heartbeat finds none.';

CREATE OR REPLACE VIEW pgleases.status AS
SELECT p.lease,
       p.partition,
       CASE WHEN p.owner IS NOT NULL THEN p.owner_id END AS owner,
       p.epoch,
       p.owned_since AS since,
       CASE WHEN (p.target OPERATOR(pg_catalog.=) p.owner) IS NOT TRUE THEN t.id END AS moving_to,
       p.asked_at AS draining_since
FROM pgleases.partitions AS p
LEFT JOIN pgleases.clients AS t ON t.session OPERATOR(pg_catalog.=) p.target;
COMMENT ON VIEW pgleases.status IS 'Every partition: its owner, since when, and where it moves.';
COMMENT ON COLUMN pgleases.status.lease IS 'The lease''s name.';
COMMENT ON COLUMN pgleases.status.partition IS 'The partition''s number, from 0.';
COMMENT ON COLUMN pgleases.status.owner IS 'The client ID of the owner; null: none.';
COMMENT ON COLUMN pgleases.status.epoch IS 'The fencing token of this ownership.';
COMMENT ON COLUMN pgleases.status.since IS 'When this ownership began.';
COMMENT ON COLUMN pgleases.status.moving_to IS 'The client ID of the target, where that is not the owner.';
COMMENT ON COLUMN pgleases.status.draining_since IS 'When the owner was asked to hand over.';

CREATE OR REPLACE VIEW pgleases.members_status AS
SELECT m.lease,
       c.id AS client,
       pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) (c.expires_at OPERATOR(pg_catalog.-) c.ttl) AS heartbeat_age,
       (SELECT pg_catalog.count(*) FROM pgleases.partitions AS p
        WHERE p.lease OPERATOR(pg_catalog.=) m.lease AND p.owner OPERATOR(pg_catalog.=) m.session) AS owned,
       CASE WHEN (pg_catalog.sum(e.weight) OVER (PARTITION BY m.lease)) OPERATOR(pg_catalog.>) 0::bigint
            THEN pg_catalog.round((l.partitions OPERATOR(pg_catalog.*) e.weight)::numeric
                                  OPERATOR(pg_catalog./) (pg_catalog.sum(e.weight) OVER (PARTITION BY m.lease))::numeric, 2)
            ELSE 0 END AS share,
       m.weight,
       c.host,
       c.pid,
       c.session,
       w.verbs AS overrides
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
COMMENT ON VIEW pgleases.members_status IS 'Every living member of every lease: its last heartbeat, how many partitions it owns, and how many it should.';
COMMENT ON COLUMN pgleases.members_status.lease IS 'The lease''s name.';
COMMENT ON COLUMN pgleases.members_status.client IS 'The client ID.';
COMMENT ON COLUMN pgleases.members_status.heartbeat_age IS 'Time since its last heartbeat; above the TTL it may be evicted.';
COMMENT ON COLUMN pgleases.members_status.owned IS 'How many partitions it owns.';
COMMENT ON COLUMN pgleases.members_status.share IS 'How many partitions it should own by its weight: none where it is drained, or the lease is paused. A cordon, a freeze and pins keep it from that.';
COMMENT ON COLUMN pgleases.members_status.weight IS 'Its weight.';
COMMENT ON COLUMN pgleases.members_status.host IS 'The host on which its process runs.';
COMMENT ON COLUMN pgleases.members_status.pid IS 'The process ID there.';
COMMENT ON COLUMN pgleases.members_status.session IS 'Its session.';
COMMENT ON COLUMN pgleases.members_status.overrides IS 'The overrides about this client and about this lease, other than pins; null: none.';

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
       l.session
FROM pgleases.locks AS l
LEFT JOIN pgleases.clients AS c ON c.session OPERATOR(pg_catalog.=) l.session;
COMMENT ON VIEW pgleases.locks_status IS 'Every named lock that somebody holds or awaits: a row for each of them.';
COMMENT ON COLUMN pgleases.locks_status.name IS 'The lock''s name.';
COMMENT ON COLUMN pgleases.locks_status.client IS 'The client ID; null: it was evicted, and the row goes soon, or when a guarded transaction ends.';
COMMENT ON COLUMN pgleases.locks_status.state IS 'holds or waits.';
COMMENT ON COLUMN pgleases.locks_status.shared IS 'Whether it holds it, or wants it, together with others that share it.';
COMMENT ON COLUMN pgleases.locks_status.place IS 'Its place among all that hold or await this lock, from 1.';
COMMENT ON COLUMN pgleases.locks_status.token IS 'The fencing token of this acquisition; null: it waits.';
COMMENT ON COLUMN pgleases.locks_status.since IS 'Since when it holds the lock, or waits.';
COMMENT ON COLUMN pgleases.locks_status.heartbeat_age IS 'Time since its client''s last heartbeat; above the TTL it may be evicted.';
COMMENT ON COLUMN pgleases.locks_status.expires_in IS 'Time until its client may be evicted, if no heartbeat comes.';
COMMENT ON COLUMN pgleases.locks_status.host IS 'The host on which its process runs.';
COMMENT ON COLUMN pgleases.locks_status.pid IS 'The process ID there.';
COMMENT ON COLUMN pgleases.locks_status.session IS 'Its session.';
