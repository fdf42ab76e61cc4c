-- functions/partitions.sql: the partitions of keys, and which partitions have runs.

-- Stores the number of partitions of a group's lease. If it changed, schedules and jobs move to
-- their new partitions.
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
COMMENT ON FUNCTION pgleases.schedule_join(pg_catalog.text, int) IS 'Stores the number of partitions of a group''s lease. If it changed, schedules and jobs move to their new partitions.';

-- Moves schedules and jobs to the partitions of their keys: the given ones, and all in partitions
-- that do not exist. Transactions that were open while the number of partitions changed may have
-- written such rows.
--   p_schedules: ids of schedules
--   p_jobs: ids of jobs
CREATE OR REPLACE FUNCTION pgleases.schedule_place(p_group pg_catalog.text, p_partitions int, p_schedules bigint[], p_jobs bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $pgleases_body$
BEGIN
    UPDATE pgleases.schedules AS s SET partition = pgleases.partition_for(s.key, p_partitions)
    WHERE s.id IN (SELECT w.id FROM pgleases.schedules AS w
                   WHERE w.group_name = p_group AND w.partition >= p_partitions OR w.group_name = p_group AND w.id = ANY (p_schedules)
                   FOR NO KEY UPDATE SKIP LOCKED);
    IF FOUND THEN
        PERFORM pgleases.notify('schedule/' || p_group);
    END IF;
    UPDATE pgleases.jobs AS j SET partition = pgleases.partition_for(j.key, p_partitions)
    WHERE j.id IN (SELECT w.id FROM pgleases.jobs AS w
                   WHERE w.group_name = p_group AND w.partition >= p_partitions OR w.group_name = p_group AND w.id = ANY (p_jobs)
                   FOR NO KEY UPDATE SKIP LOCKED);
    IF FOUND THEN
        PERFORM pgleases.notify('schedule/' || p_group);
    END IF;
END
$pgleases_body$;

-- Records, under the guard of the partition, that its owner begins to run something in it.
--   p_lock_ms: the most that it waits for a lock, milliseconds
-- Returns whether the previous owner crashed, that is whether it began and did not end.
CREATE OR REPLACE FUNCTION pgleases.schedule_begin(p_lease pg_catalog.text, p_partition int, p_epoch bigint, p_group pg_catalog.text, p_lock_ms int) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    answer boolean;
BEGIN
    PERFORM set_config('lock_timeout', p_lock_ms::text, true), set_config('idle_in_transaction_session_timeout', '5000', true),
        pgleases.guard(p_lease, p_partition, p_epoch);
    INSERT INTO pgleases.schedule_owners AS o (group_name, partition, begun, crashed) VALUES (p_group, p_partition, p_epoch, false)
    ON CONFLICT ON CONSTRAINT schedule_owners_pkey DO UPDATE
    SET begun = p_epoch, crashed = CASE WHEN o.begun = p_epoch THEN o.crashed ELSE o.begun > o.ended END -- called again, because its answer was lost
    RETURNING o.crashed INTO answer;
    RETURN answer;
END
$pgleases_body$;

-- Records, under the guard of each partition, that all runs of its owner in it have ended.
--   p_partitions, p_epochs: the partitions; one, if there are counted crashes
--   p_counted: schedules with a counted crash of this owner, which is taken back if the run has no
--     outcome
--   p_counted_jobs: the same for jobs
--   p_lock_ms: the most that it waits for a lock, milliseconds
CREATE OR REPLACE FUNCTION pgleases.schedule_end(p_lease pg_catalog.text, p_partitions int[], p_epochs bigint[], p_group pg_catalog.text, p_counted bigint[], p_counted_jobs bigint[], p_lock_ms int) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $pgleases_body$
DECLARE
    lost int[];
BEGIN
    PERFORM set_config('lock_timeout', p_lock_ms::text, true);
    lost := pgleases.guard_many(p_lease, p_partitions, p_epochs);
    UPDATE pgleases.schedules AS s -- schedules before jobs, as everywhere
    SET crashes = s.crashes - 1, crash_epoch = NULL
    WHERE s.id = ANY (p_counted) AND s.crash_epoch = ANY (p_epochs) AND lost = '{}';
    UPDATE pgleases.jobs AS j
    SET crashes = j.crashes - 1, crash_epoch = NULL
    WHERE j.id = ANY (p_counted_jobs) AND j.crash_epoch = ANY (p_epochs) AND lost = '{}';
    UPDATE pgleases.schedule_owners AS o SET ended = e.epoch
    FROM ROWS FROM (unnest(p_partitions), unnest(p_epochs)) AS e (partition, epoch)
    WHERE o.group_name = p_group AND o.partition = e.partition AND o.begun = e.epoch AND e.partition <> ALL (lost);
END
$pgleases_body$;
