-- functions/jobs.sql: jobs.

-- Enqueues jobs. Each is due at its time, and at the earliest when this statement began plus its
-- position in p_jobs in microseconds. So jobs of one call become due in their order.
--   p_partitions: partitions of the lease, for a group that has never run
--   p_jobs: array of {key, kind, name, trigger, begins, rule, unique_key, args, priority, at, in_us,
--     nonce, revision}. at is an instant, in_us a delay in microseconds by the server's clock. With
--     several jobs, unique keys are only allowed with skip. A retry has a nonce and a revision
--   p_on_conflict: if a live job has the unique key: reject, ignore or replace; or skip, for
--     several jobs
-- Returns the ids, including that of an ignored job; null if no job was enqueued with reject or
-- skip.
CREATE OR REPLACE FUNCTION pgleases.schedule_enqueue(p_group pg_catalog.text, p_partitions int, p_jobs pg_catalog.jsonb, p_on_conflict pg_catalog.text, OUT ids bigint[])
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $pgleases_body$
DECLARE
    now   CONSTANT timestamptz := pgleases.schedule_clock();
    parts CONSTANT int := coalesce((SELECT g.partitions FROM pgleases.schedule_groups AS g WHERE g.name = p_group), p_partitions);
    due   timestamptz; -- the first
BEGIN
    LOOP
        WITH made AS (
            INSERT INTO pgleases.jobs AS j (group_name, key, partition, kind, name, trigger, begins, rule, unique_key, args, priority, at, nonce, revision, due)
            SELECT p_group, w.key, pgleases.partition_for(w.key, parts), w.kind, coalesce(w.name, w.unique_key, ''), w.trigger,
                w.begins, w.rule, w.unique_key, coalesce(w.args, 'null'), w.priority, t.at, coalesce(w.nonce, gen_random_uuid()), coalesce(w.revision, 1),
                   greatest(t.at, now + w.n * interval '1 microsecond') -- in their order
            FROM ROWS FROM (jsonb_to_recordset(p_jobs) AS (key text, kind text, name text, trigger text, begins timestamptz, rule text,
                unique_key text, args jsonb, priority int, at timestamptz, in_us bigint, nonce uuid, revision bigint))
                 WITH ORDINALITY AS w (key, kind, name, trigger, begins, rule, unique_key, args, priority, at, in_us, nonce, revision, n),
                 LATERAL (SELECT coalesce(w.at, now + coalesce(w.in_us, 0) * interval '1 microsecond')) AS t (at)
            ORDER BY w.n
            ON CONFLICT (group_name, kind, unique_key) WHERE unique_key IS NOT NULL DO NOTHING -- locks no existing job, so its run can end
            RETURNING j.id, j.due
        )
        SELECT array_agg(m.id ORDER BY m.id), min(m.due) INTO ids, due FROM made AS m;
        EXIT WHEN ids IS NOT NULL OR jsonb_array_length(p_jobs) = 0 OR p_on_conflict IN ('reject', 'skip');
        IF p_on_conflict = 'replace' THEN
            UPDATE pgleases.jobs AS j
            SET key = w.key, partition = pgleases.partition_for(w.key, parts), args = coalesce(w.args, 'null'),
                priority = w.priority, at = t.at, due = greatest(t.at, now),
                revision = j.revision + 1, nonce = gen_random_uuid(), blocked_reason = NULL, blocked_since = NULL,
                began = NULL, attempts = 0, outages = 0, error = NULL, retry_at = NULL, crashes = 0, crash_epoch = NULL,
                call = NULL, call_epoch = NULL, call_once = false, call_began = NULL, call_ends = NULL
            FROM jsonb_to_recordset(p_jobs) AS w (key text, kind text, unique_key text, args jsonb, priority int, at timestamptz, in_us bigint),
                 LATERAL (SELECT coalesce(w.at, now + coalesce(w.in_us, 0) * interval '1 microsecond')) AS t (at)
            WHERE j.group_name = p_group AND j.kind = w.kind AND j.unique_key = w.unique_key
            RETURNING ARRAY[j.id], j.due INTO ids, due;
        ELSE
            SELECT array_agg(j.id) INTO ids FROM pgleases.jobs AS j
            WHERE j.group_name = p_group AND j.kind = p_jobs -> 0 ->> 'kind' AND j.unique_key = p_jobs -> 0 ->> 'unique_key';
        END IF;
        EXIT WHEN ids IS NOT NULL; -- otherwise the existing job has ended: insert again
    END LOOP;
    IF due < now + interval '1 second' THEN
        PERFORM pgleases.notify('schedule/' || p_group);
    END IF;
END
$pgleases_body$;

-- Returns a job as JSON, as jobs_status shows it; or its row of the history, with at instead of
-- until, and what a retry needs; both with retry_of, the job that it runs again. Null if neither
-- exists.
CREATE OR REPLACE FUNCTION pgleases.schedule_job(p_group pg_catalog.text, p_job bigint) RETURNS pg_catalog.jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' AS $pgleases_body$
BEGIN
    RETURN coalesce((SELECT pgleases.schedule_status_json(to_jsonb(j), j.lateness) FROM pgleases.jobs_status AS j WHERE j.group_name = p_group AND j.id = p_job),
        (SELECT pgleases.schedule_entry_json(h) || jsonb_build_object('id', h.job, 'at', h.until)
         FROM pgleases.history AS h WHERE h.group_name = p_group AND h.job = p_job ORDER BY h.id DESC LIMIT 1))
        || jsonb_build_object('retry_of', (SELECT h.job FROM pgleases.history AS h WHERE h.group_name = p_group AND h.retried = p_job ORDER BY h.id DESC LIMIT 1));
END
$pgleases_body$;

-- The live jobs by id. Of those that are due, running or blocked it returns 1,000 at most, which it
-- finds with an index.
--   p_kind: kind; empty: all
--   p_prefix: prefix of the names
--   p_state: state, as in jobs_status; empty: all
--   p_after: only ids after this one
--   p_most: the most rows
-- Returns a row for each, as JSON.
CREATE OR REPLACE FUNCTION pgleases.schedule_jobs(p_group pg_catalog.text, p_kind pg_catalog.text, p_prefix pg_catalog.text, p_state pg_catalog.text, p_after bigint, p_most int) RETURNS SETOF pg_catalog.jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' SET enable_seqscan = off SET jit = off AS $pgleases_body$
DECLARE
    now CONSTANT timestamptz := pgleases.schedule_clock();
BEGIN
    CASE p_state
    WHEN 'due', 'running' THEN
        RETURN QUERY SELECT pgleases.schedule_status_json(to_jsonb(c), c.lateness) FROM (SELECT * FROM pgleases.jobs_status AS j
            WHERE j.group_name = p_group AND j.due <= now AND (j.kind = p_kind OR p_kind = '') AND starts_with(j.name, p_prefix) AND j.state = p_state LIMIT 1000) AS c
        WHERE c.id > p_after ORDER BY c.id LIMIT p_most;
    WHEN 'blocked' THEN
        RETURN QUERY SELECT pgleases.schedule_status_json(to_jsonb(c), c.lateness) FROM (SELECT * FROM pgleases.jobs_status AS j
            WHERE j.group_name = p_group AND j.blocked_reason IS NOT NULL AND (j.kind = p_kind OR p_kind = '') AND starts_with(j.name, p_prefix) AND j.state = p_state LIMIT 1000) AS c
        WHERE c.id > p_after ORDER BY c.id LIMIT p_most;
    ELSE
        RETURN QUERY SELECT pgleases.schedule_status_json(to_jsonb(j), j.lateness) FROM pgleases.jobs_status AS j
        WHERE j.group_name = p_group AND (j.kind = p_kind OR p_kind = '') AND starts_with(j.name, p_prefix) AND (j.state = p_state OR p_state = '') AND j.id > p_after ORDER BY j.id LIMIT p_most;
    END CASE;
END
$pgleases_body$;

-- Locks the entry until the end of the transaction, so only one of two concurrent retries succeeds.
CREATE OR REPLACE FUNCTION pgleases.schedule_retry(p_group pg_catalog.text, p_name pg_catalog.text, p_tick pg_catalog.timestamptz, p_job bigint, OUT retry bigint)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' AS $pgleases_body$
DECLARE
    what CONSTANT text := CASE WHEN p_job IS NOT NULL THEN format('job %s', p_job) ELSE format('tick %s of schedule "%s"', p_tick, p_name) END;
    h    pgleases.history;
    w    jsonb;
BEGIN
    IF p_job IS NOT NULL THEN
        SELECT * INTO h FROM pgleases.history AS r WHERE r.group_name = p_group AND r.job = p_job ORDER BY r.id DESC LIMIT 1 FOR UPDATE;
        w := to_jsonb(h) || jsonb_build_object('at', h.until);
    ELSE
        SELECT * INTO h FROM pgleases.history AS r WHERE r.group_name = p_group AND r.name = p_name AND r.job IS NULL
            AND r.until = p_tick ORDER BY r.id DESC LIMIT 1 FOR UPDATE;
        SELECT jsonb_build_object('kind', s.kind, 'name', s.name, 'key', s.key, 'args', s.args, 'priority', 1, 'at', h.until,
            'nonce', s.nonce, 'revision', 0, 'rule', h.rule, 'begins', h.begins)
        INTO w FROM pgleases.schedules AS s WHERE s.id = h.schedule;
    END IF;
    IF h.id IS NULL THEN
        IF EXISTS (SELECT FROM pgleases.jobs AS r WHERE r.group_name = p_group AND r.id = p_job) THEN
            RAISE EXCEPTION '% is still running or waiting', what USING ERRCODE = 'object_not_in_prerequisite_state', HINT = format('pgleases jobs show %s %s', p_group, p_job);
        END IF;
        RAISE EXCEPTION '% is not in the history of group "%"', what, p_group USING ERRCODE = 'undefined_object', HINT = coalesce(
            (SELECT format('The run of this time was no tick, but job %s: retry that.', r.job) FROM pgleases.history AS r
             WHERE r.group_name = p_group AND r.name = p_name AND r.until = p_tick AND r.job IS NOT NULL ORDER BY r.id DESC LIMIT 1),
            CASE WHEN p_job IS NULL THEN 'Pass TICK exactly as pgleases schedules history shows it, with its fraction. ' ELSE '' END || 'Old entries are deleted.');
    END IF;
    IF NOT (h.outcome IN ('failed', 'unknown') OR h.outcome = 'canceled' AND h.job IS NOT NULL) THEN
        RAISE EXCEPTION '% has outcome %', what, h.outcome USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Only failed and unknown ticks and jobs, and canceled jobs, can be retried. ' || CASE WHEN p_job IS NULL THEN 'Backfill other ticks.' ELSE 'Enqueue it again.' END;
    END IF;
    IF h.retried IS NOT NULL THEN
        RAISE EXCEPTION '% was retried, as job %', what, h.retried USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Check the outcome of that job. If it failed too, retry it.';
    END IF;
    IF w IS NULL THEN
        RAISE EXCEPTION '% cannot be retried: its schedule was deleted', what USING ERRCODE = 'undefined_object', HINT = 'Its arguments are not known any more.';
    END IF;
    retry := (pgleases.schedule_enqueue(p_group, 1, jsonb_build_array(w || '{"trigger": "retry"}'), 'reject'::text))[1];
    IF retry IS NULL THEN
        RAISE EXCEPTION '% cannot be retried: there is a live job of kind "%" with its unique key "%"', what, h.kind, w ->> 'unique_key'
            USING ERRCODE = 'unique_violation', HINT = 'Wait for that job, or cancel it first.';
    END IF;
    UPDATE pgleases.history AS r SET retried = retry WHERE r.id = h.id;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_retry(pg_catalog.text, pg_catalog.text, pg_catalog.timestamptz, bigint) IS 'Enqueues a job that runs a failed tick or job once more.';
