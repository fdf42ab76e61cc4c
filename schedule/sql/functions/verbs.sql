-- functions/verbs.sql: what changes schedules and jobs, one function for each verb. Programs call
-- these functions, with their own rights. Operators call those of operators.sql, which call these.
--
-- SQL cannot evaluate rules. If ticks of a rule are needed, the caller reads or locks the schedule
-- first, with schedule_read or schedule_do_lock. In the same transaction as the lock, it passes what
-- the rule says.
--
-- 42704: the schedule or job does not exist. 55000, 22023: the change is not possible. 23505: a
-- live job has the unique key of the job to retry.

-- Returns the schedule of a name.
CREATE OR REPLACE FUNCTION pgleases.schedule_find(p_group pg_catalog.text, p_name pg_catalog.text)
RETURNS pgleases.schedules
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    s pgleases.schedules;
BEGIN
    SELECT * INTO s FROM pgleases.schedules AS r WHERE r.group_name = p_group AND r.name = p_name;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'group "%" has no schedule "%"', p_group, p_name
            USING ERRCODE = 'undefined_object',
                HINT = format('pgleases schedules list %s shows its schedules.', p_group);
    END IF;
    RETURN s;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_find(pg_catalog.text, pg_catalog.text)
    IS 'Part of the verbs on schedules. It returns the schedule of a name.';

-- Locks the schedule of a name until the end of the transaction, and returns it.
CREATE OR REPLACE FUNCTION pgleases.schedule_take(p_group pg_catalog.text, p_name pg_catalog.text)
RETURNS pgleases.schedules
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    PERFORM pgleases.schedule_get(p_group, p_name, NULL::jsonb);
    RETURN pgleases.schedule_find(p_group, p_name);
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_take(pg_catalog.text, pg_catalog.text)
    IS 'Part of the verbs on schedules. It locks the schedule of a name, and returns it.';

-- Returns a schedule as JSON.
CREATE OR REPLACE FUNCTION pgleases.schedule_read(p_group pg_catalog.text, p_name pg_catalog.text)
RETURNS pg_catalog.jsonb
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    RETURN pgleases.schedule_json(pgleases.schedule_find(p_group, p_name));
END
$pgleases_body$;

-- Locks a schedule until the end of the transaction, and returns it as JSON.
CREATE OR REPLACE FUNCTION pgleases.schedule_do_lock(p_group pg_catalog.text, p_name pg_catalog.text)
RETURNS pg_catalog.jsonb
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    RETURN pgleases.schedule_json(pgleases.schedule_take(p_group, p_name));
END
$pgleases_body$;

-- Pauses a schedule. Returns whether it was not paused.
CREATE OR REPLACE FUNCTION pgleases.schedule_do_pause(p_group pg_catalog.text, p_name pg_catalog.text)
RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    s CONSTANT pgleases.schedules := pgleases.schedule_take(p_group, p_name);
BEGIN
    UPDATE pgleases.schedules AS r
    SET paused_at = pgleases.schedule_clock(), due = 'infinity', revision = r.revision + 1
    WHERE r.id = s.id AND r.paused_at IS NULL;
    RETURN FOUND;
END
$pgleases_body$;

-- Checks which ticks of a locked schedule a verb cancels.
--   p_until: where the cursor goes
--   p_canceled_until, p_canceled: the last of the canceled ticks, and their number
CREATE OR REPLACE FUNCTION pgleases.schedule_check_canceled(
    s pgleases.schedules, p_until pg_catalog.timestamptz, p_canceled_until pg_catalog.timestamptz, p_canceled bigint)
RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    IF (p_until BETWEEN s.cursor AND greatest(s.cursor, pgleases.schedule_clock())
            AND p_canceled_until BETWEEN s.cursor AND p_until AND p_canceled >= 0) IS NOT TRUE THEN
        RAISE EXCEPTION 'the ticks of schedule "%" until % cannot be canceled: its cursor is at %',
            s.name, coalesce(p_until::text, 'null'), s.cursor
            USING ERRCODE = 'invalid_parameter_value',
                HINT = 'Lock the schedule, and count the ticks between its cursor and now.';
    END IF;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_check_canceled(
    pgleases.schedules, pg_catalog.timestamptz, pg_catalog.timestamptz, bigint)
    IS 'Part of schedule_resume and schedule_delete. It checks which ticks they cancel.';

-- Ends the pause of a schedule, which continues with its next tick. The passed ticks are canceled.
--   p_until, p_canceled_until, p_canceled: see schedule_check_canceled
--   p_why: who cancels them, and why; null: a program
-- Returns whether it was paused.
CREATE OR REPLACE FUNCTION pgleases.schedule_do_resume(
    p_group pg_catalog.text, p_name pg_catalog.text, p_until pg_catalog.timestamptz,
    p_canceled_until pg_catalog.timestamptz, p_canceled bigint, p_why pg_catalog.text)
RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' AS $pgleases_body$
DECLARE
    s CONSTANT pgleases.schedules := pgleases.schedule_take(p_group, p_name);
BEGIN
    IF s.paused_at IS NULL THEN
        RETURN false;
    END IF;
    PERFORM pgleases.schedule_check_canceled(s, p_until, p_canceled_until, p_canceled);
    UPDATE pgleases.schedules AS r
    SET paused_at = NULL, failures = 0, due = pgleases.schedule_clock(), revision = r.revision + 1,
        cursor = p_until, cursor_local = CASE WHEN p_until = r.cursor THEN r.cursor_local END
    WHERE r.id = s.id;
    PERFORM pgleases.schedule_forget_tick(s.id);
    PERFORM pgleases.schedule_canceled(s, p_canceled_until, p_canceled, 'resumed by ' || p_why);
    PERFORM pgleases.notify('schedule/' || p_group);
    RETURN true;
END
$pgleases_body$;

-- Ends the pause of a schedule, which continues with the passed ticks. Returns whether it was
-- paused.
CREATE OR REPLACE FUNCTION pgleases.schedule_do_catch_up(p_group pg_catalog.text, p_name pg_catalog.text)
RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    s CONSTANT pgleases.schedules := pgleases.schedule_take(p_group, p_name);
BEGIN
    IF s.paused_at IS NULL THEN
        RETURN false;
    END IF;
    UPDATE pgleases.schedules AS r
    SET paused_at = NULL, failures = 0, due = pgleases.schedule_clock(), revision = r.revision + 1
    WHERE r.id = s.id;
    PERFORM pgleases.notify('schedule/' || p_group);
    RETURN true;
END
$pgleases_body$;

-- Deletes a schedule. The passed ticks without an outcome are canceled.
--   p_until, p_canceled_until, p_canceled: see schedule_check_canceled
--   p_why: who cancels them, and why; null: a program
CREATE OR REPLACE FUNCTION pgleases.schedule_do_delete(
    p_group pg_catalog.text, p_name pg_catalog.text, p_until pg_catalog.timestamptz,
    p_canceled_until pg_catalog.timestamptz, p_canceled bigint, p_why pg_catalog.text)
RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' AS $pgleases_body$
DECLARE
    s CONSTANT pgleases.schedules := pgleases.schedule_take(p_group, p_name);
BEGIN
    PERFORM pgleases.schedule_check_canceled(s, p_until, p_canceled_until, p_canceled);
    DELETE FROM pgleases.schedules AS r WHERE r.id = s.id;
    PERFORM pgleases.schedule_canceled(s, p_canceled_until, p_canceled, 'deleted by ' || p_why);
    PERFORM pgleases.notify('schedule/' || p_group); -- to end its run
END
$pgleases_body$;

-- Enqueues an extra run of a schedule, and returns its job.
CREATE OR REPLACE FUNCTION pgleases.schedule_do_trigger(p_group pg_catalog.text, p_name pg_catalog.text)
RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    s CONSTANT pgleases.schedules := pgleases.schedule_find(p_group, p_name);
BEGIN
    RETURN (pgleases.schedule_enqueue(p_group, 1, jsonb_build_array(jsonb_build_object(
        'kind', s.kind, 'trigger', 'manual', 'name', s.name, 'key', s.key, 'args', s.args,
        'rule', s.rule, 'priority', 1))))[1];
END
$pgleases_body$;

-- Enqueues extra runs of a schedule for past ticks, and returns their jobs.
--   p_begins, p_ticks: the ticks, in order, and where the window of each begins
CREATE OR REPLACE FUNCTION pgleases.schedule_do_backfill(
    p_group pg_catalog.text, p_name pg_catalog.text,
    p_begins pg_catalog.timestamptz[], p_ticks pg_catalog.timestamptz[])
RETURNS bigint[]
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' AS $pgleases_body$
DECLARE
    s CONSTANT pgleases.schedules := pgleases.schedule_find(p_group, p_name);
BEGIN
    IF cardinality(p_ticks) > 1000
        OR EXISTS (SELECT FROM unnest(p_ticks) AS t (at) WHERE (t.at <= s.cursor) IS NOT TRUE) THEN
        RAISE EXCEPTION 'these ticks of schedule "%" are more than 1000, or not all past: its cursor is at %',
            p_name, s.cursor
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Backfill a shorter range, up to the cursor.';
    END IF;
    RETURN coalesce(pgleases.schedule_enqueue(p_group, 1, (
        SELECT jsonb_agg(jsonb_build_object(
            'kind', s.kind, 'trigger', 'backfill', 'name', s.name, 'key', s.key, 'args', s.args,
            'rule', s.rule, 'priority', 0, 'begins', t.begins, 'at', t.at,
            'unique_key', format('backfill %s %s', s.id, t.at)) ORDER BY t.at)
        FROM ROWS FROM (unnest(p_begins), unnest(p_ticks)) AS t (begins, at))), '{}');
END
$pgleases_body$;

-- Cancels a job, and returns its name.
--   p_why: who cancels it, and why; null: a program
CREATE OR REPLACE FUNCTION pgleases.schedule_do_cancel_job(
    p_group pg_catalog.text, p_job bigint, p_why pg_catalog.text)
RETURNS pg_catalog.text
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    j pgleases.jobs;
BEGIN
    DELETE FROM pgleases.jobs AS r WHERE r.group_name = p_group AND r.id = p_job RETURNING * INTO j;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'group "%" has no job %, or it has ended', p_group, p_job
            USING ERRCODE = 'undefined_object', HINT = format('pgleases jobs list %s shows its jobs.', p_group);
    END IF;
    INSERT INTO pgleases.history (
        source, job, group_name, name, kind, since, until, ticks, outcome, error, attempts, ended_at,
        key, args, priority, unique_key, begins, rule, nonce, revision)
    VALUES (
        pgleases.schedule_source(j), j.id, j.group_name, j.name, j.kind, j.at, j.at, 1, 'canceled',
        coalesce(p_why, j.error), j.attempts, pgleases.schedule_clock(),
        j.key, j.args, j.priority, j.unique_key, j.begins, j.rule, j.nonce, j.revision);
    PERFORM pgleases.notify('schedule/' || p_group); -- to end its run
    RETURN j.name;
END
$pgleases_body$;

-- Enqueues a job that runs what an entry of the history names once more, and returns it.
--   h: the entry. The caller has locked it, so only one of two concurrent retries succeeds
--   p_what: the tick or job, for errors
--   p_job: the new job, as for schedule_enqueue; null: its arguments are not known any more
CREATE OR REPLACE FUNCTION pgleases.schedule_retry_entry(
    h pgleases.history, p_what pg_catalog.text, p_job pg_catalog.jsonb)
RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    retry bigint;
BEGIN
    IF NOT (h.outcome IN ('failed', 'unknown') OR h.outcome = 'canceled' AND h.job IS NOT NULL) THEN
        RAISE EXCEPTION '% has outcome %', p_what, h.outcome USING ERRCODE = 'object_not_in_prerequisite_state',
            HINT = 'Only failed and unknown ticks and jobs, and canceled jobs, can be retried. '
                || CASE WHEN h.job IS NULL THEN 'Backfill other ticks.' ELSE 'Enqueue it again.' END;
    END IF;
    IF h.retried IS NOT NULL THEN
        RAISE EXCEPTION '% was retried, as job %', p_what, h.retried USING ERRCODE = 'object_not_in_prerequisite_state',
            HINT = 'Check the outcome of that job. If it failed too, retry it.';
    END IF;
    IF p_job IS NULL THEN
        RAISE EXCEPTION '% cannot be retried: its schedule was deleted', p_what
            USING ERRCODE = 'undefined_object', HINT = 'Its arguments are not known any more.';
    END IF;
    retry := (pgleases.schedule_enqueue(h.group_name, 1, jsonb_build_array(p_job || '{"trigger": "retry"}')))[1];
    IF retry IS NULL THEN
        RAISE EXCEPTION '% cannot be retried: there is a live job of kind "%" with its unique key "%"',
            p_what, h.kind, h.unique_key
            USING ERRCODE = 'unique_violation', HINT = 'Wait for that job, or cancel it first.';
    END IF;
    UPDATE pgleases.history AS r SET retried = retry WHERE r.id = h.id;
    RETURN retry;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_retry_entry(pgleases.history, pg_catalog.text, pg_catalog.jsonb)
    IS 'Part of the retries. It enqueues a job that runs a tick or job once more.';

-- Retries a job that has ended, and returns the new job.
CREATE OR REPLACE FUNCTION pgleases.schedule_do_retry_job(p_group pg_catalog.text, p_job bigint)
RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' AS $pgleases_body$
DECLARE
    what CONSTANT text := format('job %s', p_job);
    h    pgleases.history;
BEGIN
    SELECT * INTO h FROM pgleases.history AS r
    WHERE r.group_name = p_group AND r.job = p_job ORDER BY r.id DESC LIMIT 1 FOR UPDATE;
    IF FOUND THEN
        RETURN pgleases.schedule_retry_entry(h, what, to_jsonb(h) || jsonb_build_object('at', h.until));
    END IF;
    IF EXISTS (SELECT FROM pgleases.jobs AS r WHERE r.group_name = p_group AND r.id = p_job) THEN
        RAISE EXCEPTION '% is still running or waiting', what USING ERRCODE = 'object_not_in_prerequisite_state',
            HINT = format('pgleases jobs show %s %s', p_group, p_job);
    END IF;
    RAISE EXCEPTION '% is not in the history of group "%"', what, p_group
        USING ERRCODE = 'undefined_object', HINT = 'Old entries are deleted.';
END
$pgleases_body$;

-- Retries a tick, and returns the new job.
CREATE OR REPLACE FUNCTION pgleases.schedule_do_retry_tick(
    p_group pg_catalog.text, p_name pg_catalog.text, p_tick pg_catalog.timestamptz)
RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' AS $pgleases_body$
DECLARE
    what CONSTANT text := format('tick %s of schedule "%s"', p_tick, p_name);
    h    pgleases.history;
BEGIN
    SELECT * INTO h FROM pgleases.history AS r
    WHERE r.group_name = p_group AND r.name = p_name AND r.job IS NULL AND r.until = p_tick
    ORDER BY r.id DESC LIMIT 1 FOR UPDATE;
    IF FOUND THEN
        RETURN pgleases.schedule_retry_entry(h, what, (
            SELECT jsonb_build_object('kind', s.kind, 'name', s.name, 'key', s.key, 'args', s.args, 'priority', 1,
                'at', h.until, 'nonce', s.nonce, 'revision', 0, 'rule', h.rule, 'begins', h.begins)
            FROM pgleases.schedules AS s WHERE s.id = h.schedule));
    END IF;
    RAISE EXCEPTION '% is not in the history of group "%"', what, p_group
        USING ERRCODE = 'undefined_object', HINT = coalesce(
            (SELECT format('The run of this time was no tick, but job %s: retry that.', r.job)
             FROM pgleases.history AS r
             WHERE r.group_name = p_group AND r.name = p_name AND r.until = p_tick AND r.job IS NOT NULL
             ORDER BY r.id DESC LIMIT 1),
            'Pass TICK exactly as pgleases schedules history shows it, with its fraction. Old entries are deleted.');
END
$pgleases_body$;

-- Retries the failed ticks and jobs of a kind, the oldest 10,000.
--   p_since: only those that ended at or after this time
-- Returns the new jobs, and how many ticks and jobs were not retried.
CREATE OR REPLACE FUNCTION pgleases.schedule_do_retry_failed(
    p_group pg_catalog.text, p_kind pg_catalog.text, p_since pg_catalog.timestamptz, OUT ids bigint[], OUT refused int)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    h record;
BEGIN
    ids := '{}';
    refused := 0;
    FOR h IN
        SELECT r.name, r.until, r.job, r.outcome FROM pgleases.history AS r
        WHERE r.group_name = p_group AND r.kind = p_kind AND r.outcome IN ('failed', 'unknown')
            AND r.retried IS NULL AND r.ended_at >= p_since
            -- a retry is of the last entry of a job
            AND NOT EXISTS (SELECT FROM pgleases.history AS n
                            WHERE n.job = r.job AND n.group_name = p_group AND n.id > r.id OFFSET 0)
        ORDER BY r.id LIMIT 10000
    LOOP
        BEGIN
            IF h.outcome = 'unknown' THEN
                RAISE object_not_in_prerequisite_state; -- it may have been done
            ELSIF h.job IS NULL THEN
                ids := ids || pgleases.schedule_do_retry_tick(p_group, h.name, h.until);
            ELSE
                ids := ids || pgleases.schedule_do_retry_job(p_group, h.job);
            END IF;
        EXCEPTION WHEN undefined_object OR object_not_in_prerequisite_state OR unique_violation THEN
            refused := refused + 1;
        END;
    END LOOP;
END
$pgleases_body$;
