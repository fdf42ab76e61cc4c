-- functions/jobs.sql: jobs.

-- Enqueues a job without a unique key for each element of p_args. Each is due as schedule_enqueue
-- says.
--   p_partitions: partitions of the lease, for a group that has never run
--   p_key: key of all jobs; null: the key of each is its nonce
--   p_at: when the jobs are due; null: after p_in_us, microseconds; both null: now
--   p_nonces: a random UUID for each job
--   p_hashes: for the key of each job, what partition_for divides by the number of partitions
-- Returns the ids.
--
-- Programs enqueue thousands of jobs at once. So what they can compute comes from them, in arrays:
-- the server would take longer to read JSON, to hash and to draw random numbers than to insert the
-- rows. Without ON CONFLICT, each row has one record of WAL less.
CREATE OR REPLACE FUNCTION pgleases.schedule_enqueue_many(
    p_group pg_catalog.text, p_partitions int, p_kind pg_catalog.text, p_key pg_catalog.text, p_priority int,
    p_at pg_catalog.timestamptz, p_in_us bigint, p_args pg_catalog.jsonb[], p_nonces pg_catalog.text[], p_hashes bigint[],
    OUT ids bigint[])
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $pgleases_body$
DECLARE
    now   CONSTANT timestamptz := pgleases.schedule_clock();
    at_   CONSTANT timestamptz := coalesce(p_at, now + coalesce(p_in_us, 0) * interval '1 microsecond');
    parts CONSTANT int := coalesce((SELECT g.partitions FROM pgleases.schedule_groups AS g WHERE g.name = p_group), p_partitions);
BEGIN
    WITH made AS (
        INSERT INTO pgleases.jobs AS j (group_name, key, partition, kind, name, trigger, args, priority, at, nonce, due)
        SELECT p_group, coalesce(p_key, w.nonce), w.hash % parts, p_kind, '', 'job', w.args, p_priority, at_, w.nonce::uuid,
            greatest(at_, now + w.n * interval '1 microsecond')
        FROM ROWS FROM (unnest(p_args), unnest(p_nonces), unnest(p_hashes)) WITH ORDINALITY AS w (args, nonce, hash, n)
        ORDER BY w.n
        RETURNING j.id
    )
    SELECT array_agg(m.id ORDER BY m.id) INTO ids FROM made AS m;
    PERFORM pgleases.schedule_wake(p_group, at_);
END
$pgleases_body$;

-- Enqueues jobs, except those whose unique key a live job has. Each is due at its time, and at the
-- earliest when this statement began plus its position in p_jobs in microseconds. So jobs of one
-- call become due in their order.
--   p_partitions: partitions of the lease, for a group that has never run
--   p_jobs: array of {key, kind, name, trigger, begins, rule, unique_key, args, priority, at, in_us,
--     nonce, revision}. at is an instant, in_us a delay in microseconds by the server's clock. A
--     retry has a nonce and a revision
-- Returns the ids; null if it enqueued no job.
CREATE OR REPLACE FUNCTION pgleases.schedule_enqueue(
    p_group pg_catalog.text, p_partitions int, p_jobs pg_catalog.jsonb, OUT ids bigint[])
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $pgleases_body$
DECLARE
    now   CONSTANT timestamptz := pgleases.schedule_clock();
    parts CONSTANT int := coalesce((SELECT g.partitions FROM pgleases.schedule_groups AS g WHERE g.name = p_group), p_partitions);
    due   timestamptz; -- the first
BEGIN
    WITH made AS (
        INSERT INTO pgleases.jobs AS j (
            group_name, key, partition, kind, name, trigger, begins, rule, unique_key, args, priority, at, nonce, revision, due)
        SELECT p_group, w.key, pgleases.partition_for(w.key, parts), w.kind,
            coalesce(w.name, w.unique_key, ''), w.trigger, w.begins, w.rule, w.unique_key, coalesce(w.args, 'null'),
            w.priority, t.at, coalesce(w.nonce, gen_random_uuid()), coalesce(w.revision, 1),
            greatest(t.at, now + w.n * interval '1 microsecond') -- in their order
        FROM ROWS FROM (jsonb_to_recordset(p_jobs) AS (
                key text, kind text, name text, trigger text, begins timestamptz, rule text, unique_key text,
                args jsonb, priority int, at timestamptz, in_us bigint, nonce uuid, revision bigint))
            WITH ORDINALITY AS w (
                key, kind, name, trigger, begins, rule, unique_key, args, priority, at, in_us, nonce, revision, n),
            LATERAL (SELECT coalesce(w.at, now + coalesce(w.in_us, 0) * interval '1 microsecond')) AS t (at)
        ORDER BY w.n
        -- it locks no existing job, so the run of that job can end
        ON CONFLICT (group_name, kind, unique_key) WHERE unique_key IS NOT NULL DO NOTHING
        RETURNING j.id, j.due
    )
    SELECT array_agg(m.id ORDER BY m.id), min(m.due) INTO ids, due FROM made AS m;
    PERFORM pgleases.schedule_wake(p_group, due);
END
$pgleases_body$;

-- Enqueues one job. If a live job has its unique key, that job stays unchanged.
--   p_job: the job, as for schedule_enqueue
-- Returns the id of the live job.
CREATE OR REPLACE FUNCTION pgleases.schedule_enqueue_or_keep(
    p_group pg_catalog.text, p_partitions int, p_job pg_catalog.jsonb)
RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $pgleases_body$
DECLARE
    job bigint;
BEGIN
    LOOP
        job := (pgleases.schedule_enqueue(p_group, p_partitions, jsonb_build_array(p_job)))[1];
        EXIT WHEN job IS NOT NULL;
        SELECT j.id INTO job FROM pgleases.jobs AS j
        WHERE j.group_name = p_group AND j.kind = p_job ->> 'kind' AND j.unique_key = p_job ->> 'unique_key';
        EXIT WHEN FOUND; -- otherwise that job has ended: enqueue again
    END LOOP;
    RETURN job;
END
$pgleases_body$;

-- Enqueues one job. If a live job has its unique key, that job gets the arguments, key, time and
-- priority of the new one, and all its attempts.
--   p_job: the job, as for schedule_enqueue
-- Returns the id of the live job.
CREATE OR REPLACE FUNCTION pgleases.schedule_enqueue_or_replace(
    p_group pg_catalog.text, p_partitions int, p_job pg_catalog.jsonb)
RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $pgleases_body$
DECLARE
    now CONSTANT timestamptz := pgleases.schedule_clock();
    job bigint;
    due timestamptz;
BEGIN
    LOOP
        job := (pgleases.schedule_enqueue(p_group, p_partitions, jsonb_build_array(p_job)))[1];
        EXIT WHEN job IS NOT NULL;
        UPDATE pgleases.jobs AS j
        SET key = w.key, partition = pgleases.schedule_partition(p_group, w.key, p_partitions),
            args = coalesce(w.args, 'null'), priority = w.priority, at = t.at, due = greatest(t.at, now),
            revision = j.revision + 1, nonce = gen_random_uuid(), blocked_reason = NULL, blocked_since = NULL,
            began = NULL, attempts = 0, outages = 0, error = NULL, retry_at = NULL, crashes = 0, crash_epoch = NULL,
            call = NULL, call_epoch = NULL, call_once = false, call_began = NULL, call_ends = NULL
        FROM jsonb_to_record(p_job) AS w (
                key text, kind text, unique_key text, args jsonb, priority int, at timestamptz, in_us bigint),
            LATERAL (SELECT coalesce(w.at, now + coalesce(w.in_us, 0) * interval '1 microsecond')) AS t (at)
        WHERE j.group_name = p_group AND j.kind = w.kind AND j.unique_key = w.unique_key
        RETURNING j.id, j.due INTO job, due;
        IF FOUND THEN -- otherwise that job has ended: enqueue again
            PERFORM pgleases.schedule_wake(p_group, due);
            EXIT;
        END IF;
    END LOOP;
    RETURN job;
END
$pgleases_body$;

-- Wakes the processes of a group, if something is due within a second.
--   p_due: when it is due; null: never
CREATE OR REPLACE FUNCTION pgleases.schedule_wake(p_group pg_catalog.text, p_due pg_catalog.timestamptz) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    IF p_due < pgleases.schedule_clock() + interval '1 second' THEN
        PERFORM pgleases.notify('schedule/' || p_group);
    END IF;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_wake(pg_catalog.text, pg_catalog.timestamptz)
    IS 'Wakes the processes of a group, if something is due within a second.';

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
