-- functions/operators.sql: changes of schedules and jobs.

-- Changes a schedule or a job, for the methods of a Scheduler. SQL cannot evaluate rules. If ticks
-- of a rule are needed, the first call locks the schedule and returns it in asks. The second call,
-- in the same transaction, passes in seen what the rule says.
--   p_verb: pause, resume, delete, trigger, backfill, cancel, retry or retry_failed
--   p_name: the schedule's name; null: the change is of jobs
--   p_what: id, which the schedule must have; job; catch_up of resume; tick of retry; after and
--     until of backfill; kind and since of retry_failed; seen. For backfill, seen is an array of
--     {begins, at}. For other verbs it has until, where the cursor goes; ticks, the number of the
--     canceled ticks; and last, the last of them
-- asks: the locked schedule as JSON; null: the change is made. ids: the jobs that were enqueued or
-- canceled. refused: for retry_failed, how many were not retried.
--
-- 42704: the schedule or job does not exist. 55000, 22023: the change is not possible. 23505: a
-- live job has the unique key of the job to retry.
CREATE OR REPLACE FUNCTION pgleases.schedule_edit(p_verb pg_catalog.text, p_group pg_catalog.text, p_name pg_catalog.text, p_what pg_catalog.jsonb, p_why pg_catalog.text, OUT asks pg_catalog.jsonb, OUT ids bigint[], OUT refused int, OUT done boolean, OUT schedule bigint, OUT name pg_catalog.text)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' AS $pgleases_body$
DECLARE
    now    CONSTANT timestamptz := pgleases.schedule_clock();
    of_job CONSTANT bigint := (p_what ->> 'job')::bigint;
    late   CONSTANT boolean := p_verb = 'resume' AND coalesce((p_what ->> 'catch_up')::boolean, false); -- passed ticks are not canceled
    seen   CONSTANT jsonb := CASE WHEN NOT late THEN p_what -> 'seen' END;
    until  CONSTANT timestamptz := (seen ->> 'until')::timestamptz;
    last   CONSTANT timestamptz := coalesce((seen ->> 'last')::timestamptz, until);
    s      pgleases.schedules;
    j      pgleases.jobs;
    h      record;
BEGIN
    ids := '{}';
    IF (p_name IS NULL) <> (p_verb IN ('cancel', 'retry_failed') OR of_job IS NOT NULL) THEN
        RAISE EXCEPTION '% needs either a schedule or jobs', p_verb USING ERRCODE = 'invalid_parameter_value';
    END IF;
    name := coalesce(p_name, (SELECT r.name FROM pgleases.jobs AS r WHERE r.group_name = p_group AND r.id = of_job),
                     (SELECT r.name FROM pgleases.history AS r WHERE r.group_name = p_group AND r.job = of_job ORDER BY r.id DESC LIMIT 1), '');
    IF p_name IS NOT NULL THEN
        IF p_verb IN ('pause', 'resume', 'delete') THEN
            PERFORM pgleases.schedule_get(p_group, p_name, NULL::jsonb); -- locks it
        END IF;
        SELECT * INTO s FROM pgleases.schedules AS r WHERE r.group_name = p_group AND r.name = p_name;
        IF s.id IS NULL AND p_verb <> 'retry' THEN
            RAISE EXCEPTION 'group "%" has no schedule "%"', p_group, p_name USING ERRCODE = 'undefined_object';
        ELSIF s.id <> (p_what ->> 'id')::bigint THEN
            RAISE EXCEPTION 'schedule "%" of group "%" is not the one that was seen: it was deleted and created again', p_name, p_group
                USING ERRCODE = 'undefined_object';
        END IF;
        schedule := s.id;
    END IF;
    done := CASE p_verb WHEN 'pause' THEN s.paused_at IS NULL WHEN 'resume' THEN s.paused_at IS NOT NULL ELSE true END;
    IF done AND seen IS NULL AND (p_verb IN ('delete', 'backfill') OR p_verb = 'resume' AND NOT late) THEN
        asks := pgleases.schedule_json(s);
        done := false;
    END IF;
    IF NOT done THEN
        RETURN;
    END IF;
    CASE p_verb
    WHEN 'pause' THEN
        UPDATE pgleases.schedules AS r SET paused_at = now, due = 'infinity', revision = r.revision + 1 WHERE r.id = s.id;
    WHEN 'resume', 'delete' THEN
        IF NOT late AND (until BETWEEN s.cursor AND greatest(s.cursor, now) AND last BETWEEN s.cursor AND until AND (seen ->> 'ticks')::bigint >= 0) IS NOT TRUE THEN
            RAISE EXCEPTION 'the ticks of schedule "%" until % cannot be canceled: its cursor is at %', p_name, coalesce(until::text, 'null'), s.cursor
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
        IF p_verb = 'delete' THEN
            DELETE FROM pgleases.schedules AS r WHERE r.id = s.id;
        ELSE
            UPDATE pgleases.schedules AS r
            SET paused_at = NULL, failures = 0, due = now, revision = r.revision + 1, cursor = coalesce(until, r.cursor),
                cursor_local = CASE WHEN late OR until = r.cursor THEN r.cursor_local END
            WHERE r.id = s.id;
            IF NOT late THEN
                PERFORM pgleases.schedule_forget_tick(s.id);
            END IF;
        END IF;
        PERFORM pgleases.notify('schedule/' || p_group); -- also to end the run of what was deleted
        PERFORM pgleases.schedule_canceled(s, last, coalesce((seen ->> 'ticks')::bigint, 0), p_verb || 'd by ' || p_why);
    WHEN 'trigger' THEN
        ids := pgleases.schedule_enqueue(p_group, 1, jsonb_build_array(jsonb_build_object(
            'kind', s.kind, 'trigger', 'manual', 'name', s.name, 'key', s.key, 'args', s.args, 'rule', s.rule, 'priority', 1)), 'skip'::text);
    WHEN 'backfill' THEN
        IF jsonb_array_length(seen) > 1000 OR EXISTS (SELECT FROM jsonb_to_recordset(seen) AS t (at timestamptz) WHERE (t.at <= s.cursor) IS NOT TRUE) THEN
            RAISE EXCEPTION 'these ticks of schedule "%" are more than 1000, or not all past: its cursor is at %', p_name, s.cursor
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
        ids := coalesce(pgleases.schedule_enqueue(p_group, 1, (
            SELECT jsonb_agg(jsonb_build_object('kind', s.kind, 'trigger', 'backfill', 'name', s.name, 'key', s.key, 'args', s.args, 'rule', s.rule, 'priority', 0,
                                                'begins', t.begins, 'at', t.at, 'unique_key', format('backfill %s %s', s.id, t.at)) ORDER BY t.at)
            FROM jsonb_to_recordset(seen) AS t (begins timestamptz, at timestamptz)), 'skip'::text), '{}');
    WHEN 'cancel' THEN
        DELETE FROM pgleases.jobs AS r WHERE r.group_name = p_group AND r.id = of_job RETURNING * INTO j;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'group "%" has no job %, or it has ended', p_group, of_job USING ERRCODE = 'undefined_object';
        END IF;
        INSERT INTO pgleases.history (source, job, group_name, name, kind, since, until, ticks, outcome, error, attempts, ended_at,
            key, args, priority, unique_key, begins, rule, nonce, revision)
        VALUES (pgleases.schedule_source(j), j.id, j.group_name, j.name, j.kind, j.at, j.at, 1, 'canceled', coalesce(p_why, j.error),
            j.attempts, now, j.key, j.args, j.priority, j.unique_key, j.begins, j.rule, j.nonce, j.revision);
        PERFORM pgleases.notify('schedule/' || p_group); -- to end its run
        ids := ARRAY[of_job];
    WHEN 'retry' THEN
        ids := ARRAY[pgleases.schedule_retry(p_group, p_name, (p_what ->> 'tick')::timestamptz, of_job)];
    WHEN 'retry_failed' THEN
        refused := 0;
        FOR h IN SELECT r.name, r.until, r.job, r.outcome FROM pgleases.history AS r
                 WHERE r.group_name = p_group AND r.kind = p_what ->> 'kind' AND r.outcome IN ('failed', 'unknown') AND r.retried IS NULL AND r.ended_at >= (p_what ->> 'since')::timestamptz
                   AND NOT EXISTS (SELECT FROM pgleases.history AS n WHERE n.job = r.job AND n.group_name = p_group AND n.id > r.id OFFSET 0) ORDER BY r.id LIMIT 10000 LOOP -- schedule_retry repeats a job's last
            BEGIN
                IF h.outcome = 'unknown' THEN RAISE object_not_in_prerequisite_state; END IF; -- it may have been done
                ids := ids || pgleases.schedule_retry(p_group, h.name, h.until, h.job);
            EXCEPTION WHEN undefined_object OR object_not_in_prerequisite_state OR unique_violation THEN
                refused := refused + 1;
            END;
        END LOOP;
    END CASE;
END
$pgleases_body$;

-- schedule_edit for an operator: also records the change with its actor and reason, in the same
-- transaction.
--   p_verb: as for schedule_edit
--   p_actor: the actor, besides the role
--   p_reason: the reason
-- Returns what schedule_edit returns. It runs with the rights of its owner, so operators need no
-- rights on the tables; session_user stays the operator. PUBLIC may not execute it.
CREATE OR REPLACE FUNCTION pgleases.schedule_change(p_verb pg_catalog.text, p_group pg_catalog.text, p_name pg_catalog.text, p_what pg_catalog.jsonb, p_actor pg_catalog.text, p_reason pg_catalog.text, OUT asks pg_catalog.jsonb, OUT ids bigint[], OUT refused int)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    who CONSTANT text := pgleases.operator(p_verb, p_actor, p_reason);
    e   record;
BEGIN
    PERFORM set_config('idle_in_transaction_session_timeout', '4000', true); -- shorter than the time that ends of runs wait for its locks
    SELECT * INTO e FROM pgleases.schedule_edit(p_verb, p_group, p_name, p_what, who || ': ' || p_reason);
    asks := e.asks;
    ids := e.ids;
    refused := e.refused;
    IF e.done THEN
        INSERT INTO pgleases.schedule_changes (at, verb, group_name, name, schedule, job, args, actor, reason)
        VALUES (pgleases.schedule_clock(), p_verb, p_group, e.name, e.schedule, CASE WHEN cardinality(ids) = 1 AND refused IS NULL THEN ids[1] END,
                p_what - '{id,seen}'::text[] || CASE WHEN refused IS NULL THEN '{}' ELSE jsonb_build_object('retried', cardinality(ids), 'refused', refused) END,
                who, p_reason);
    END IF;
END
$pgleases_body$;
REVOKE EXECUTE ON FUNCTION pgleases.schedule_change FROM PUBLIC;
