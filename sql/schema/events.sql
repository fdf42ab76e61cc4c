-- events.sql: what happened, and why.

-- For people, and for look-ups of owners, which read what has changed: see the function owners. The statements that do
-- the work write its rows, and one row covers all partitions that went from one client to another. Ordered by
-- transaction: a transaction's rows become visible when it commits, which may be later than rows with a higher id.
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
    row_id     bigint,
    rows       int,
    name       pg_catalog.text COLLATE pg_catalog."C",
    args       pg_catalog.jsonb,
    PRIMARY KEY (tx, id),
    -- Clients may write events, but no actor. So what an operator is said to have done has passed through a verb.
    CONSTRAINT events_actor CHECK (actor IS NOT NULL OR cause OPERATOR(pg_catalog.=) ANY ('{joined,left,evicted,handed over,given,over ceilings,awaited,accepted,new generation,no live client}'::pg_catalog.text[]))
);
COMMENT ON TABLE pgleases.events IS 'Changes of members and partitions, and what operators did, with the reasons. Rows older than events_kept are deleted.';
COMMENT ON COLUMN pgleases.events.tx IS 'The transaction that wrote the event. To follow the events, read on from the last (tx, id), and only below pg_snapshot_xmin: no more rows are written there.';
COMMENT ON COLUMN pgleases.events.id IS 'Number of the event.';
COMMENT ON COLUMN pgleases.events.at IS 'When the event was written.';
COMMENT ON COLUMN pgleases.events.lease IS 'The lease''s name. It is null if the event concerns all leases.';
COMMENT ON COLUMN pgleases.events.cause IS 'The change: joined, left, evicted, handed over (by the owner), given (by a plan, because it had no live owner), over ceilings (a plan leaves another number of partitions without an owner than before, because all members are at their ceilings), awaited (a client with a restart grace has left or was evicted, and its partitions wait for it), accepted (by the clients, a promoted server), new generation (of the server, which new_server_generation() has requested), no live client (the first client after a time in which none lived has evicted those before), dropped; replaced, replaces (of the new lease); or an operator''s verb, for example drain, of a consumer row skipped, and of a schedule schedule paused.';
COMMENT ON COLUMN pgleases.events.actor IS 'The operator that asked for it, or ordered the override that has expired. It is null if the protocol did it automatically.';
COMMENT ON COLUMN pgleases.events.reason IS 'The reason, as the actor gave it. Of an eviction: the host and pid of the process. Of an accepted server and of a new generation: which server generation begins. Of no live client: the last heartbeat before that time, and when the next session was registered.';
COMMENT ON COLUMN pgleases.events.from_id IS 'Client ID of the owner before; or of the client that left, was evicted or is awaited.';
COMMENT ON COLUMN pgleases.events.to_id IS 'Client ID of the owner after (null: no owner); or of the client that joined.';
COMMENT ON COLUMN pgleases.events.partitions IS 'The partitions concerned, as ranges.';
COMMENT ON COLUMN pgleases.events.generation IS 'The lease''s generation before the event. Of an accepted server and of a new generation, the server generation that begins.';
COMMENT ON COLUMN pgleases.events.row_id IS 'Of a verb on one row of a consumer, the ID of the row; of a verb that canceled or enqueued one job, the ID of that job.';
COMMENT ON COLUMN pgleases.events.rows IS 'Of a verb on rows of a consumer, how many were changed; of a verb on jobs, how many were canceled or enqueued.';
COMMENT ON COLUMN pgleases.events.name IS 'Of a verb on schedules or jobs: the name of the schedule or job, or empty for a job without a name, and for the jobs of a kind. It is null for all other events.';
COMMENT ON COLUMN pgleases.events.args IS 'Of a verb on schedules or jobs: what else it was given, for example the range of a backfill.';
CREATE INDEX IF NOT EXISTS events_by_lease ON pgleases.events (lease, at);
CREATE INDEX IF NOT EXISTS events_by_time ON pgleases.events (at);
-- A question for the joins of a month skips the moves, which are nearly all events.
CREATE INDEX IF NOT EXISTS events_by_rare_cause ON pgleases.events (cause, at)
    WHERE cause OPERATOR(pg_catalog.<>) ALL ('{given,handed over}'::pg_catalog.text[]);
-- This finds the changes of one schedule by operators, among all that happened to the lease of its group.
CREATE INDEX IF NOT EXISTS events_by_name ON pgleases.events (lease, name, at) WHERE name IS NOT NULL;
CREATE INDEX IF NOT EXISTS events_of_operators ON pgleases.events (lease, tx, id) WHERE actor IS NOT NULL;

CREATE TABLE IF NOT EXISTS pgleases.events_kept (
    age interval NOT NULL CHECK (age OPERATOR(pg_catalog.>=) interval '0'),
    trimmed pg_catalog.xid8 NOT NULL DEFAULT '0'
);
CREATE UNIQUE INDEX IF NOT EXISTS events_kept_one_row ON pgleases.events_kept ((true));
ALTER TABLE pgleases.events_kept REPLICA IDENTITY FULL;
COMMENT ON TABLE pgleases.events_kept IS 'This table has one row, which says how long events are kept. Change the age with UPDATE.';
COMMENT ON COLUMN pgleases.events_kept.age IS 'Older events are deleted, 1,000 at each check for expired sessions. Do not delete events by hand: look-ups of owners would not know of it.';
COMMENT ON COLUMN pgleases.events_kept.trimmed IS 'The last transaction whose events were deleted. Look-ups of owners that need events from before it read all owners.';
INSERT INTO pgleases.events_kept (age) VALUES ('30 days') ON CONFLICT DO NOTHING;

-- The function has the rights of its owner, because clients may not delete events; so it takes no argument. If no event
-- is old, it reads only the first event.
--
-- An event that is dated in the future was written under a wrong clock. It would keep the events after it until its
-- date, and their number would have no bound. An event of a future transaction was written on another server, and this
-- database is a dump of that one. It gets transaction number 0, because it is older than the events of this server.
CREATE OR REPLACE FUNCTION pgleases.trim_events() RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $pgleases_body$
DECLARE
    age CONSTANT interval := (SELECT least(k.age, interval '1000 years') FROM pgleases.events_kept AS k); -- timestamptz cannot represent a time 10,000 years ago
    old CONSTANT timestamptz := clock_timestamp() - age;
    ahead CONSTANT timestamptz := clock_timestamp() + age + interval '1 day';
    present CONSTANT xid8 := greatest(pg_snapshot_xmax(pg_current_snapshot()), pg_current_xact_id());
BEGIN
    -- Compared with this statement's own snapshot, because events may have been written since the one of present.
    UPDATE pgleases.events AS e SET tx = '0'
    WHERE e.ctid = ANY (ARRAY(
        SELECT f.ctid FROM pgleases.events AS f
        WHERE f.tx > greatest(pg_snapshot_xmax(pg_current_snapshot()), pg_current_xact_id())
          AND NOT EXISTS (SELECT FROM pgleases.events AS o WHERE o.tx = '0' AND o.id = f.id)
        ORDER BY f.tx DESC, f.id DESC LIMIT 1000 FOR UPDATE OF f SKIP LOCKED));
    IF (SELECT e.at < old OR e.at > ahead FROM pgleases.events AS e ORDER BY e.tx, e.id LIMIT 1) THEN
        WITH trimmed AS (
            DELETE FROM pgleases.events AS e
            WHERE e.ctid = ANY (ARRAY(
                SELECT o.ctid FROM (SELECT f.ctid, f.at FROM pgleases.events AS f ORDER BY f.tx, f.id LIMIT 1000 FOR UPDATE SKIP LOCKED) AS o
                WHERE o.at < old OR o.at > ahead))
            RETURNING e.tx
        )
        UPDATE pgleases.events_kept AS k SET trimmed = t.tx
        FROM (SELECT t.tx FROM trimmed AS t WHERE t.tx <= present ORDER BY t.tx DESC LIMIT 1) AS t
        WHERE k.trimmed < t.tx OR k.trimmed > present;
    END IF;
END
$pgleases_body$;
REVOKE EXECUTE ON FUNCTION pgleases.trim_events() FROM PUBLIC;
COMMENT ON FUNCTION pgleases.trim_events() IS 'Deletes some of the events that are older than events_kept. Checks for expired sessions call it.';
