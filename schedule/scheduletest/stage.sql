-- stage.sql: makes a schema one for tests, after the tables and functions of both packages: its time is the test's, and the test says
-- which process owns the partitions.
CREATE TABLE pgleases.scheduletest (now pg_catalog.timestamptz NOT NULL);
INSERT INTO pgleases.scheduletest VALUES ('epoch');

CREATE OR REPLACE FUNCTION pgleases.schedule_clock() RETURNS pg_catalog.timestamptz
LANGUAGE sql STABLE AS $pgleases_body$ SELECT t.now FROM pgleases.scheduletest AS t $pgleases_body$;

-- Gives all partitions to a new process, and returns its epoch, which the guard passes from now on, and no other.
CREATE FUNCTION pgleases.scheduletest_own(group_name pg_catalog.text, partitions int) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    lease CONSTANT text := 'schedule/' || $1;
    epoch bigint;
BEGIN
    INSERT INTO pgleases.leases AS l (name, partitions, generation, created_generation, epoch_floor, next_check_at, planned_at)
    VALUES (lease, $2, 1, 1, 0, 'infinity', pgleases.schedule_clock())
    ON CONFLICT ON CONSTRAINT leases_pkey DO UPDATE SET partitions = $2, generation = l.generation + 1
    RETURNING l.generation INTO epoch;
    DELETE FROM pgleases.clients;
    INSERT INTO pgleases.clients (session, id, incarnation, expires_at, ttl, host, pid, started_at)
    VALUES (epoch, 'scheduletest', epoch, 'infinity', interval '1 hour', 'scheduletest', 1, pgleases.schedule_clock());
    DELETE FROM pgleases.partitions;
    INSERT INTO pgleases.partitions (lease, partition, owner, target, epoch, owner_id, owned_since)
    SELECT lease, n, epoch, epoch, epoch, 'scheduletest', pgleases.schedule_clock() FROM generate_series(0, $2 - 1) AS n;
    RETURN epoch;
END
$pgleases_body$;

-- See due.sql.
CREATE FUNCTION pgleases.scheduletest_due(group_name pg_catalog.text, schedules bigint[], jobs bigint[])
RETURNS TABLE (next_us bigint, id bigint, due_us bigint, job boolean, priority int, partition int, key pg_catalog.text, kind pg_catalog.text,
    crashes int, state pg_catalog.text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $pgleases_body$
DECLARE
    now CONSTANT timestamptz := pgleases.schedule_clock();
BEGIN
    RETURN QUERY
    SELECT n.us, d.id, (extract(epoch FROM d.due) * 1000000)::bigint, coalesce(d.job, false), coalesce(d.priority, 0), coalesce(d.partition, 0),
        coalesce(d.key::text, ''), coalesce(d.kind::text, ''), coalesce(d.crashes, 0), coalesce(d.state, '')
    FROM (SELECT (extract(epoch FROM least(
              (SELECT min(s.due) FROM pgleases.schedules AS s WHERE s.group_name = $1 AND s.due > now AND s.due < 'infinity'),
              (SELECT min(j.due) FROM pgleases.jobs AS j WHERE j.group_name = $1 AND j.due > now AND j.due < 'infinity'))) * 1000000)::bigint AS us) AS n
    LEFT JOIN (
        SELECT s.id, false AS job, 1 AS priority, s.partition, s.key, s.kind, s.due, (s.trying ->> 'crashes')::int AS crashes,
            concat_ws(' ', s.due, s.revision, s.cursor) AS state
        FROM pgleases.schedules AS s WHERE s.group_name = $1 AND s.due <= now AND s.id <> ALL ($2)
        UNION ALL
        SELECT j.id, true, j.priority, j.partition, j.key, j.kind, j.due, (j.trying ->> 'crashes')::int, concat_ws(' ', j.due, j.revision)
        FROM pgleases.jobs AS j WHERE j.group_name = $1 AND j.due <= now AND j.id <> ALL ($3)
        ORDER BY priority DESC, due, job, id LIMIT 1
    ) AS d ON true;
END
$pgleases_body$;
