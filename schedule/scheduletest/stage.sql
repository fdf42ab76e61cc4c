-- stage.sql: prepares a schema for tests, after the tables and functions of both packages. Its time
-- is that of the test, and the test decides which process owns the partitions.
CREATE TABLE pgleases.scheduletest (now pg_catalog.timestamptz NOT NULL);
INSERT INTO pgleases.scheduletest VALUES ('epoch');

CREATE OR REPLACE FUNCTION pgleases.schedule_clock() RETURNS pg_catalog.timestamptz
LANGUAGE sql STABLE AS $pgleases_body$ SELECT t.now FROM pgleases.scheduletest AS t $pgleases_body$;

-- Gives all partitions to a new process, and returns its epoch. The guard then passes for this
-- epoch only.
CREATE FUNCTION pgleases.scheduletest_own(group_name pg_catalog.text, partitions int) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    lease CONSTANT text := 'schedule/' || $1;
    epoch bigint;
BEGIN
    INSERT INTO pgleases.leases AS l (name, partitions, generation, created_generation, epoch_floor, plan_due_at, planned_at)
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
