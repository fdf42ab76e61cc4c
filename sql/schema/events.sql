-- events.sql: what happened, and why.

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
COMMENT ON COLUMN pgleases.events.cause IS 'What happened: joined, left, evicted, handed over (by the owner), given (by a plan: no live client owned it), accepted (a promoted server), dropped; or the name of an operator''s verb.';
COMMENT ON COLUMN pgleases.events.actor IS 'Who asked for it; null: the protocol did it by itself.';
COMMENT ON COLUMN pgleases.events.reason IS 'Why, in the words of the actor.';
COMMENT ON COLUMN pgleases.events.from_id IS 'Client ID of who owned the partitions, or had last; of who left or was evicted.';
COMMENT ON COLUMN pgleases.events.to_id IS 'Client ID of who owns the partitions from then on, null: nobody; of who joined.';
COMMENT ON COLUMN pgleases.events.partitions IS 'The partitions concerned, as ranges.';
COMMENT ON COLUMN pgleases.events.generation IS 'The lease''s generation before it.';

CREATE TABLE IF NOT EXISTS pgleases.events_kept (
    age interval NOT NULL CHECK (age OPERATOR(pg_catalog.>=) interval '0')
);
CREATE UNIQUE INDEX IF NOT EXISTS events_kept_one_row ON pgleases.events_kept ((true));
ALTER TABLE pgleases.events_kept REPLICA IDENTITY FULL;
COMMENT ON TABLE pgleases.events_kept IS 'One row: how long events are kept. Change it with UPDATE.';
COMMENT ON COLUMN pgleases.events_kept.age IS 'Older events are deleted, 1,000 at each check for expired sessions.';
INSERT INTO pgleases.events_kept (age) VALUES ('30 days') ON CONFLICT DO NOTHING;

-- With the rights of its owner, as clients may not delete events; so it takes no argument. It looks at the first event alone where none is old.
-- An event that is dated ahead was written by a clock that was: it would keep those behind it until then, and their number would have no bound.
-- One of a transaction that is yet to come is of another server, of which this database is a dump: the first number is given to it, as it is the
-- older one.
CREATE OR REPLACE FUNCTION pgleases.trim_events() RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $pgleases_body$
DECLARE
    age CONSTANT interval := (SELECT least(k.age, interval '1000 years') FROM pgleases.events_kept AS k); -- there is no time 10,000 years ago
    old CONSTANT timestamptz := clock_timestamp() - age;
    ahead CONSTANT timestamptz := clock_timestamp() + age + interval '1 day';
BEGIN
    UPDATE pgleases.events AS e SET tx = '0'
    WHERE e.ctid = ANY (ARRAY(
        SELECT f.ctid FROM pgleases.events AS f
        WHERE f.tx > greatest(pg_snapshot_xmax(pg_current_snapshot()), pg_current_xact_id())
          AND NOT EXISTS (SELECT FROM pgleases.events AS o WHERE o.tx = '0' AND o.id = f.id)
        ORDER BY f.tx DESC, f.id DESC LIMIT 1000 FOR UPDATE OF f SKIP LOCKED));
    IF (SELECT e.at < old OR e.at > ahead FROM pgleases.events AS e ORDER BY e.tx, e.id LIMIT 1) THEN
        DELETE FROM pgleases.events AS e
        WHERE e.ctid = ANY (ARRAY(
            SELECT o.ctid FROM (SELECT f.ctid, f.at FROM pgleases.events AS f ORDER BY f.tx, f.id LIMIT 1000 FOR UPDATE SKIP LOCKED) AS o
            WHERE o.at < old OR o.at > ahead));
    END IF;
END
$pgleases_body$;
REVOKE EXECUTE ON FUNCTION pgleases.trim_events() FROM PUBLIC;
COMMENT ON FUNCTION pgleases.trim_events() IS 'Deletes some events that are older than events_kept says. Checks for expired sessions call it.';
