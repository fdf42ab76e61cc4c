-- functions/partitions.sql: which partition a key belongs to, and in which ones something runs.

-- Notes the number of partitions of a group's lease. If it differs from before, the schedules
-- and jobs move to their new partitions.
CREATE OR REPLACE FUNCTION pgleases.schedule_join(p_group pg_catalog.text, p_partitions int) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    INSERT INTO pgleases.schedule_groups AS g (name, partitions) VALUES (p_group, p_partitions)
    ON CONFLICT (name) DO UPDATE SET partitions = EXCLUDED.partitions WHERE g.partitions <> EXCLUDED.partitions;
    IF FOUND THEN
        UPDATE pgleases.schedules AS s SET partition = pgleases.partition_for(s.key, p_partitions)
        WHERE s.group_name = p_group AND s.partition <> pgleases.partition_for(s.key, p_partitions);
        UPDATE pgleases.jobs AS j SET partition = pgleases.partition_for(j.key, p_partitions)
        WHERE j.group_name = p_group AND j.partition <> pgleases.partition_for(j.key, p_partitions);
    END IF;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_join(pg_catalog.text, int) IS 'Notes the number of partitions of a group''s lease, and if it differs from before, moves the schedules and jobs to theirs.';

-- Moves schedules and jobs to the partitions of their keys: these, and all in partitions that do
-- not exist. A transaction wrote them that was open while the number of partitions changed.
--   p_schedules: schedules
--   p_jobs: jobs
CREATE OR REPLACE FUNCTION pgleases.schedule_place(p_group pg_catalog.text, p_partitions int, p_schedules bigint[], p_jobs bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $pgleases_body$
BEGIN
    UPDATE pgleases.schedules AS s SET partition = pgleases.partition_for(s.key, p_partitions)
    WHERE s.id IN (SELECT w.id FROM pgleases.schedules AS w
                   WHERE w.group_name = p_group AND w.partition >= p_partitions OR w.group_name = p_group AND w.id = ANY (p_schedules)
                   FOR NO KEY UPDATE SKIP LOCKED);
    IF FOUND THEN
        PERFORM pgleases.schedule_notify(p_group);
    END IF;
    UPDATE pgleases.jobs AS j SET partition = pgleases.partition_for(j.key, p_partitions)
    WHERE j.id IN (SELECT w.id FROM pgleases.jobs AS w
                   WHERE w.group_name = p_group AND w.partition >= p_partitions OR w.group_name = p_group AND w.id = ANY (p_jobs)
                   FOR NO KEY UPDATE SKIP LOCKED);
    IF FOUND THEN
        PERFORM pgleases.schedule_notify(p_group);
    END IF;
END
$pgleases_body$;

-- Notes, under the guard of the partition, that its owner begins to run something in it.
--   p_lock_ms: the most that it waits for a lock, milliseconds
-- Whether the owner before crashed: it began, and did not end.
CREATE OR REPLACE FUNCTION pgleases.schedule_begin(p_lease pg_catalog.text, p_partition int, p_epoch bigint, p_group pg_catalog.text, p_lock_ms int) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    answer boolean;
BEGIN
    PERFORM set_config('lock_timeout', p_lock_ms::text, true), set_config('idle_in_transaction_session_timeout', '5000', true),
        pgleases.guard(p_lease, p_partition, p_epoch);
    INSERT INTO pgleases.schedule_owners AS o (group_name, partition, opened, crashed) VALUES (p_group, p_partition, p_epoch, false)
    ON CONFLICT ON CONSTRAINT schedule_owners_pkey DO UPDATE
    SET opened = p_epoch, crashed = CASE WHEN o.opened = p_epoch THEN o.crashed ELSE o.opened > o.closed END -- called again: its answer was lost
    RETURNING o.crashed INTO answer;
    RETURN answer;
END
$pgleases_body$;

-- Notes, under the guard of the partition, that all that its owner ran in it has ended.
--   p_counted: schedules of which it may have counted a crash; if it did, and the run has not
--     ended, that is taken back
--   p_counted_jobs: jobs of which it may have
--   p_lock_ms: the most that it waits for a lock, milliseconds
CREATE OR REPLACE FUNCTION pgleases.schedule_end(p_lease pg_catalog.text, p_partition int, p_epoch bigint, p_group pg_catalog.text, p_counted bigint[], p_counted_jobs bigint[], p_lock_ms int) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $pgleases_body$
BEGIN
    PERFORM set_config('lock_timeout', p_lock_ms::text, true), set_config('idle_in_transaction_session_timeout', '5000', true),
        pgleases.guard(p_lease, p_partition, p_epoch);
    UPDATE pgleases.schedules AS s -- before jobs: as all others
    SET trying = s.trying || jsonb_build_object('crashes', (s.trying ->> 'crashes')::int - 1, 'epoch', 0)
    WHERE s.id = ANY (p_counted) AND (s.trying ->> 'epoch')::bigint = p_epoch;
    UPDATE pgleases.jobs AS j
    SET trying = j.trying || jsonb_build_object('crashes', (j.trying ->> 'crashes')::int - 1, 'epoch', 0)
    WHERE j.id = ANY (p_counted_jobs) AND (j.trying ->> 'epoch')::bigint = p_epoch;
    UPDATE pgleases.schedule_owners AS o SET closed = p_epoch WHERE o.group_name = p_group AND o.partition = p_partition AND o.opened = p_epoch;
END
$pgleases_body$;
