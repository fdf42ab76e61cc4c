-- functions/operators.sql: the verbs of operators on schedules and jobs, one function for each. They
-- do what the functions of verbs.sql do, and record it in the same transaction, with the actor and
-- the reason. They run with the rights of their owner, so operators need no rights on the tables;
-- session_user stays the operator. PUBLIC may not execute them. All have
--   p_actor: the actor, besides the role; empty or null: only the role
--   p_reason: the reason

-- Begins a verb, and returns its actor. The ends of runs wait for the rows that a verb locks, and
-- for longer than its transaction may stay open.
CREATE OR REPLACE FUNCTION pgleases.schedule_operator(
    p_verb pg_catalog.text, p_actor pg_catalog.text, p_reason pg_catalog.text)
RETURNS pg_catalog.text
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    who CONSTANT text := pgleases.operator(p_verb, p_actor, p_reason);
BEGIN
    PERFORM set_config('idle_in_transaction_session_timeout', '4000', true);
    RETURN who;
END
$pgleases_body$;
REVOKE EXECUTE ON FUNCTION pgleases.schedule_operator FROM PUBLIC;
COMMENT ON FUNCTION pgleases.schedule_operator(pg_catalog.text, pg_catalog.text, pg_catalog.text)
    IS 'Part of the verbs of operators on schedules and jobs. It begins one, and returns its actor.';

-- Ends a verb: records it in the events, unless it was to enqueue or cancel jobs and found none.
--   p_name: the name of the schedule or job; empty: a job without a name, or the jobs of a kind
--   p_jobs: the jobs that were canceled or enqueued; null: the change is of the schedule. A verb
--     that should enqueue jobs, and found no tick or job for that, is not recorded
--   p_args: what else the verb was given, or null
CREATE OR REPLACE FUNCTION pgleases.schedule_changed(
    p_cause pg_catalog.text, p_group pg_catalog.text, p_name pg_catalog.text, p_jobs bigint[],
    p_args pg_catalog.jsonb, p_who pg_catalog.text, p_reason pg_catalog.text)
RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    INSERT INTO pgleases.events (lease, cause, actor, reason, name, row_id, rows, args)
    SELECT 'schedule/' || p_group, p_cause, p_who, p_reason, p_name,
        CASE WHEN cardinality(p_jobs) = 1 THEN p_jobs[1] END, cardinality(p_jobs), jsonb_strip_nulls(p_args)
    WHERE p_jobs IS NULL OR cardinality(p_jobs) > 0;
END
$pgleases_body$;
REVOKE EXECUTE ON FUNCTION pgleases.schedule_changed FROM PUBLIC;
COMMENT ON FUNCTION pgleases.schedule_changed(
    pg_catalog.text, pg_catalog.text, pg_catalog.text, bigint[], pg_catalog.jsonb, pg_catalog.text, pg_catalog.text)
    IS 'Part of the verbs of operators on schedules and jobs. It records one in the events.';

CREATE OR REPLACE FUNCTION pgleases.schedule_lock(
    p_group pg_catalog.text, p_name pg_catalog.text, p_actor pg_catalog.text, p_reason pg_catalog.text)
RETURNS pg_catalog.jsonb
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    PERFORM pgleases.schedule_operator('lock'::text, p_actor, p_reason);
    RETURN pgleases.schedule_do_lock(p_group, p_name);
END
$pgleases_body$;
REVOKE EXECUTE ON FUNCTION pgleases.schedule_lock FROM PUBLIC;
COMMENT ON FUNCTION pgleases.schedule_lock(pg_catalog.text, pg_catalog.text, pg_catalog.text, pg_catalog.text)
    IS 'Locks a schedule until the end of the transaction, and returns it. schedule_resume and schedule_delete need its cursor and its rule. It changes nothing, so it is not recorded.';

CREATE OR REPLACE FUNCTION pgleases.schedule_pause(
    p_group pg_catalog.text, p_name pg_catalog.text, p_actor pg_catalog.text, p_reason pg_catalog.text)
RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    who CONSTANT text := pgleases.schedule_operator('pause'::text, p_actor, p_reason);
BEGIN
    IF NOT pgleases.schedule_do_pause(p_group, p_name) THEN
        RETURN false;
    END IF;
    PERFORM pgleases.schedule_changed('schedule paused'::text, p_group, p_name, NULL::bigint[], NULL::jsonb, who, p_reason);
    RETURN true;
END
$pgleases_body$;
REVOKE EXECUTE ON FUNCTION pgleases.schedule_pause FROM PUBLIC;
COMMENT ON FUNCTION pgleases.schedule_pause(pg_catalog.text, pg_catalog.text, pg_catalog.text, pg_catalog.text)
    IS 'Pauses a schedule. A run that is under way continues. Returns whether it was not paused before.';

CREATE OR REPLACE FUNCTION pgleases.schedule_resume(
    p_group pg_catalog.text, p_name pg_catalog.text, p_until pg_catalog.timestamptz,
    p_canceled_until pg_catalog.timestamptz, p_canceled bigint, p_actor pg_catalog.text, p_reason pg_catalog.text)
RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    who CONSTANT text := pgleases.schedule_operator('resume'::text, p_actor, p_reason);
BEGIN
    IF NOT pgleases.schedule_do_resume(
        p_group, p_name, p_until, p_canceled_until, p_canceled, who || ': ' || p_reason) THEN
        RETURN false;
    END IF;
    PERFORM pgleases.schedule_changed('schedule resumed'::text, p_group, p_name, NULL::bigint[],
        '{"catch_up": false}'::jsonb, who, p_reason);
    RETURN true;
END
$pgleases_body$;
REVOKE EXECUTE ON FUNCTION pgleases.schedule_resume FROM PUBLIC;
COMMENT ON FUNCTION pgleases.schedule_resume(
    pg_catalog.text, pg_catalog.text, pg_catalog.timestamptz, pg_catalog.timestamptz, bigint, pg_catalog.text, pg_catalog.text)
    IS 'Ends the pause of a schedule, which continues with its next tick. The passed ticks are canceled. p_until is where the cursor goes, p_canceled their number, and p_canceled_until the last of them. Returns whether it was paused.';

CREATE OR REPLACE FUNCTION pgleases.schedule_catch_up(
    p_group pg_catalog.text, p_name pg_catalog.text, p_actor pg_catalog.text, p_reason pg_catalog.text)
RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    who CONSTANT text := pgleases.schedule_operator('resume'::text, p_actor, p_reason);
BEGIN
    IF NOT pgleases.schedule_do_catch_up(p_group, p_name) THEN
        RETURN false;
    END IF;
    PERFORM pgleases.schedule_changed('schedule resumed'::text, p_group, p_name, NULL::bigint[],
        '{"catch_up": true}'::jsonb, who, p_reason);
    RETURN true;
END
$pgleases_body$;
REVOKE EXECUTE ON FUNCTION pgleases.schedule_catch_up FROM PUBLIC;
COMMENT ON FUNCTION pgleases.schedule_catch_up(pg_catalog.text, pg_catalog.text, pg_catalog.text, pg_catalog.text)
    IS 'Ends the pause of a schedule, which continues with the passed ticks. Returns whether it was paused.';

CREATE OR REPLACE FUNCTION pgleases.schedule_delete(
    p_group pg_catalog.text, p_name pg_catalog.text, p_until pg_catalog.timestamptz,
    p_canceled_until pg_catalog.timestamptz, p_canceled bigint, p_actor pg_catalog.text, p_reason pg_catalog.text)
RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    who CONSTANT text := pgleases.schedule_operator('delete'::text, p_actor, p_reason);
BEGIN
    PERFORM pgleases.schedule_do_delete(
        p_group, p_name, p_until, p_canceled_until, p_canceled, who || ': ' || p_reason);
    PERFORM pgleases.schedule_changed('schedule deleted'::text, p_group, p_name, NULL::bigint[], NULL::jsonb, who, p_reason);
END
$pgleases_body$;
REVOKE EXECUTE ON FUNCTION pgleases.schedule_delete FROM PUBLIC;
COMMENT ON FUNCTION pgleases.schedule_delete(
    pg_catalog.text, pg_catalog.text, pg_catalog.timestamptz, pg_catalog.timestamptz, bigint, pg_catalog.text, pg_catalog.text)
    IS 'Deletes a schedule, and ends its run. Its history stays. The passed ticks without an outcome are canceled, as by schedule_resume.';

CREATE OR REPLACE FUNCTION pgleases.schedule_trigger(
    p_group pg_catalog.text, p_name pg_catalog.text, p_actor pg_catalog.text, p_reason pg_catalog.text)
RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    who CONSTANT text := pgleases.schedule_operator('trigger'::text, p_actor, p_reason);
    job CONSTANT bigint := pgleases.schedule_do_trigger(p_group, p_name);
BEGIN
    PERFORM pgleases.schedule_changed('schedule triggered'::text, p_group, p_name, ARRAY[job], NULL::jsonb, who, p_reason);
    RETURN job;
END
$pgleases_body$;
REVOKE EXECUTE ON FUNCTION pgleases.schedule_trigger FROM PUBLIC;
COMMENT ON FUNCTION pgleases.schedule_trigger(pg_catalog.text, pg_catalog.text, pg_catalog.text, pg_catalog.text)
    IS 'Runs a schedule now, as an extra run, even if it is paused. Returns the job of that run.';

CREATE OR REPLACE FUNCTION pgleases.schedule_backfill(
    p_group pg_catalog.text, p_name pg_catalog.text, p_after pg_catalog.timestamptz, p_until pg_catalog.timestamptz,
    p_begins pg_catalog.timestamptz[], p_ticks pg_catalog.timestamptz[], p_actor pg_catalog.text, p_reason pg_catalog.text)
RETURNS bigint[]
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' AS $pgleases_body$
DECLARE
    who CONSTANT text := pgleases.schedule_operator('backfill'::text, p_actor, p_reason);
    ids CONSTANT bigint[] := pgleases.schedule_do_backfill(p_group, p_name, p_begins, p_ticks);
BEGIN
    PERFORM pgleases.schedule_changed('schedule backfilled'::text, p_group, p_name, ids,
        jsonb_build_object('after', p_after, 'until', p_until), who, p_reason);
    RETURN ids;
END
$pgleases_body$;
REVOKE EXECUTE ON FUNCTION pgleases.schedule_backfill FROM PUBLIC;
COMMENT ON FUNCTION pgleases.schedule_backfill(
    pg_catalog.text, pg_catalog.text, pg_catalog.timestamptz, pg_catalog.timestamptz,
    pg_catalog.timestamptz[], pg_catalog.timestamptz[], pg_catalog.text, pg_catalog.text)
    IS 'Runs a schedule once more for past ticks. p_after and p_until are the range that the operator gave, p_ticks the ticks in it, and p_begins where the window of each begins. Returns the jobs of these runs.';

CREATE OR REPLACE FUNCTION pgleases.schedule_retry_tick(
    p_group pg_catalog.text, p_name pg_catalog.text, p_tick pg_catalog.timestamptz,
    p_actor pg_catalog.text, p_reason pg_catalog.text)
RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' AS $pgleases_body$
DECLARE
    who CONSTANT text := pgleases.schedule_operator('retry'::text, p_actor, p_reason);
    job CONSTANT bigint := pgleases.schedule_do_retry_tick(p_group, p_name, p_tick);
BEGIN
    PERFORM pgleases.schedule_changed('tick retried'::text, p_group, p_name, ARRAY[job],
        jsonb_build_object('tick', p_tick), who, p_reason);
    RETURN job;
END
$pgleases_body$;
REVOKE EXECUTE ON FUNCTION pgleases.schedule_retry_tick FROM PUBLIC;
COMMENT ON FUNCTION pgleases.schedule_retry_tick(
    pg_catalog.text, pg_catalog.text, pg_catalog.timestamptz, pg_catalog.text, pg_catalog.text)
    IS 'Runs a schedule once more for a tick that failed or is unknown. Returns the job of that run.';

CREATE OR REPLACE FUNCTION pgleases.schedule_retry_job(
    p_group pg_catalog.text, p_job bigint, p_actor pg_catalog.text, p_reason pg_catalog.text)
RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    who  CONSTANT text := pgleases.schedule_operator('retry'::text, p_actor, p_reason);
    job  CONSTANT bigint := pgleases.schedule_do_retry_job(p_group, p_job);
    name CONSTANT text := (SELECT j.name FROM pgleases.jobs AS j WHERE j.id = job);
BEGIN
    PERFORM pgleases.schedule_changed('job retried'::text, p_group, name, ARRAY[job],
        jsonb_build_object('retry_of', p_job), who, p_reason);
    RETURN job;
END
$pgleases_body$;
REVOKE EXECUTE ON FUNCTION pgleases.schedule_retry_job FROM PUBLIC;
COMMENT ON FUNCTION pgleases.schedule_retry_job(pg_catalog.text, bigint, pg_catalog.text, pg_catalog.text)
    IS 'Runs a job once more that failed, is unknown, or was canceled. Returns the new job.';

CREATE OR REPLACE FUNCTION pgleases.schedule_retry_failed(
    p_group pg_catalog.text, p_kind pg_catalog.text, p_since pg_catalog.timestamptz,
    p_actor pg_catalog.text, p_reason pg_catalog.text, OUT ids bigint[], OUT refused int)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' AS $pgleases_body$
DECLARE
    who CONSTANT text := pgleases.schedule_operator('retry_failed'::text, p_actor, p_reason);
BEGIN
    SELECT r.ids, r.refused INTO ids, refused FROM pgleases.schedule_do_retry_failed(p_group, p_kind, p_since) AS r;
    PERFORM pgleases.schedule_changed('jobs retried'::text, p_group, ''::text, ids,
        jsonb_build_object('kind', p_kind, 'since', p_since, 'refused', refused), who, p_reason);
END
$pgleases_body$;
REVOKE EXECUTE ON FUNCTION pgleases.schedule_retry_failed FROM PUBLIC;
COMMENT ON FUNCTION pgleases.schedule_retry_failed(
    pg_catalog.text, pg_catalog.text, pg_catalog.timestamptz, pg_catalog.text, pg_catalog.text)
    IS 'Retries the ticks and jobs of a kind that failed at or after a time, at most the oldest 10,000 that were not retried. Returns the new jobs, and how many ticks and jobs it did not retry.';

CREATE OR REPLACE FUNCTION pgleases.schedule_cancel_job(
    p_group pg_catalog.text, p_job bigint, p_actor pg_catalog.text, p_reason pg_catalog.text)
RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    who  CONSTANT text := pgleases.schedule_operator('cancel'::text, p_actor, p_reason);
    name CONSTANT text := pgleases.schedule_do_cancel_job(p_group, p_job, who || ': ' || p_reason);
BEGIN
    PERFORM pgleases.schedule_changed('job canceled'::text, p_group, name, ARRAY[p_job], NULL::jsonb, who, p_reason);
END
$pgleases_body$;
REVOKE EXECUTE ON FUNCTION pgleases.schedule_cancel_job FROM PUBLIC;
COMMENT ON FUNCTION pgleases.schedule_cancel_job(pg_catalog.text, bigint, pg_catalog.text, pg_catalog.text)
    IS 'Cancels a job. A run that is under way cannot commit.';
