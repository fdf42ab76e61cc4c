-- functions/run.sql: the begin and the end of a run.
--
-- These rules hold in all files of this folder. Functions also run in transactions of the
-- application, under any search_path. So each function sets its own, or names everything with its
-- schema. A cached plan may have been made while the table of jobs was empty. So statements that
-- run for each job and each poll set enable_seqscan off, and never read the whole table. A table
-- without an index, for example the one row of pgleases.server, then looks so expensive that the
-- server would compile each plan that reads it, which takes 200 ms and more; so they also set jit
-- off. Records travel as JSON, whose times are the same under all settings of a session.
-- Parameters begin with p_, because the name of a column would be ambiguous.

-- Opens the run of a schedule or a job in the transaction: guards its partition, sets limits, marks
-- the transaction, and reads the schedule or job.
--   p_lease: lease
--   p_number: partition
--   p_subject: the id of the schedule or job
--   p_is_job: true for a job
--   p_run: random mark of the run. schedule_close and schedule_close_job find it if the transaction
--     is still the same
--   p_timeout_ms: the most that one statement takes, milliseconds; 0: no limit
--   p_idle_ms: the most that the transaction may be idle, milliseconds
--   p_lock_ms: the most that a statement waits for a lock, milliseconds
-- Returns the schedule or job as JSON, with the time, the transaction, and when the server started;
-- null if it does not exist.
--
-- PL001: the partition is not owned under the epoch.
--
-- The guard and the opening are one statement, because each further statement costs some
-- microseconds. A search_path would also cost some, so here, and in the functions that end most
-- runs, everything is named with its schema. The advisory lock only shows that something runs, see
-- schedule_runs. The limits are set even if the schedule or job does not exist, because the guard
-- keeps the partition from other owners until the transaction ends.
CREATE OR REPLACE FUNCTION pgleases.schedule_open(p_lease pg_catalog.text, p_number int, p_epoch bigint, p_subject bigint, p_is_job boolean, p_run pg_catalog.text, p_timeout_ms int, p_idle_ms int, p_lock_ms int) RETURNS pg_catalog.jsonb
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET jit = off SET timezone = 'UTC' AS $pgleases_body$
DECLARE
    guarded CONSTANT pg_catalog.text := pgleases.guard(p_lease, p_number, p_epoch); -- the reads below follow its lock
    limits  CONSTANT pg_catalog.text := pg_catalog.concat(
        pg_catalog.set_config('schedule.run', p_run, true), pg_catalog.set_config('statement_timeout', p_timeout_ms::pg_catalog.text, true),
        pg_catalog.set_config('idle_in_transaction_session_timeout', p_idle_ms::pg_catalog.text, true),
        pg_catalog.set_config('lock_timeout', p_lock_ms::pg_catalog.text, true),
        pg_catalog.set_config('client_connection_check_interval', pgleases.check_interval(), true));
    found   pg_catalog.jsonb;
BEGIN
    IF p_is_job THEN
        SELECT pg_catalog.to_jsonb(j) OPERATOR(pg_catalog.||) pg_catalog.jsonb_build_object('job', true, 'clock', pgleases.schedule_clock(),
               'due', CASE WHEN j.due OPERATOR(pg_catalog.<) 'infinity' THEN j.due END)
        INTO found FROM pgleases.jobs AS j
        WHERE j.id OPERATOR(pg_catalog.=) p_subject AND pg_catalog.pg_try_advisory_xact_lock_shared(pg_catalog.hashint8extended(j.id, j.tableoid::bigint)) IS NOT NULL;
    ELSE
        SELECT pgleases.schedule_json(s) INTO found FROM pgleases.schedules AS s
        WHERE s.id OPERATOR(pg_catalog.=) p_subject AND pg_catalog.pg_try_advisory_xact_lock_shared(pg_catalog.hashint8extended(s.id, s.tableoid::bigint)) IS NOT NULL;
    END IF;
    RETURN found OPERATOR(pg_catalog.||) pg_catalog.jsonb_build_object('transaction', pg_catalog.pg_current_xact_id()::pg_catalog.text, 'server', pg_catalog.pg_postmaster_start_time());
END
$pgleases_body$;

-- Whether another transaction has locked the row of a schedule or a job, so that a run could not be
-- recorded. Its own lock ends with the statement.
--   p_subject: the id of the schedule or job
--   p_is_job: true for a job
CREATE OR REPLACE FUNCTION pgleases.schedule_locked(p_subject bigint, p_is_job boolean) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $pgleases_body$
BEGIN
    IF p_is_job THEN
        PERFORM FROM pgleases.jobs AS j WHERE j.id = p_subject FOR UPDATE SKIP LOCKED;
        RETURN NOT FOUND AND EXISTS (SELECT FROM pgleases.jobs AS j WHERE j.id = p_subject);
    END IF;
    PERFORM FROM pgleases.schedules AS s WHERE s.id = p_subject FOR NO KEY UPDATE SKIP LOCKED;
    RETURN NOT FOUND AND EXISTS (SELECT FROM pgleases.schedules AS s WHERE s.id = p_subject);
END
$pgleases_body$;

-- The last statement of a run before COMMIT: advances the schedule's cursor, and writes the
-- outcomes of its ticks. If that is not possible, it raises an error, so the transaction is rolled
-- back.
--   p_schedule: schedule
--   p_run: mark of the run, from schedule_open
--   p_revision: revision that schedule_open read
--   p_cursor_before: cursor that schedule_open read
--   p_step: the step, with these columns: cursor; cursor_local; due, when it runs next if it was
--     not edited meanwhile, null for never; succeeded, the tick that succeeded, or null; ran_from
--     and ran_until, when the handler was called and when it returned, or null; trying, the tick
--     that runs again, or null; failures; paused_at, null to leave it; blocked_reason, null if it
--     is not blocked; outcomes, an array of {since, until, ticks, outcome, error, attempts, epoch,
--     started_at, rule, begins}, each beginning where the one before ends
--
-- PS001: the schedule was deleted. PS002: its cursor has moved. PS003: this is not the transaction
-- of schedule_open.
--
-- The row is locked here, at the end of the run. If it were locked at the beginning, an edit would
-- wait for the handler, and handlers that put schedules would wait for each other.
CREATE OR REPLACE FUNCTION pgleases.schedule_close(p_schedule bigint, p_run pg_catalog.text, p_revision bigint, p_cursor_before pg_catalog.timestamptz, p_step pg_catalog.jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $pgleases_body$
DECLARE
    s     pgleases.schedules;
    t     pgleases.schedules := jsonb_populate_record(NULL::pgleases.schedules, p_step);
    outcomes CONSTANT jsonb := p_step -> 'outcomes';
    total bigint;
    now   CONSTANT timestamptz := pgleases.schedule_clock();
BEGIN
    IF current_setting('schedule.run', true) IS DISTINCT FROM p_run THEN
        RAISE EXCEPTION 'the handler ended the transaction that it was given, or changed its setting schedule.run' USING ERRCODE = 'PS003';
    END IF;
    UPDATE pgleases.schedules AS r
    SET cursor = t.cursor, cursor_local = t.cursor_local, succeeded = coalesce(t.succeeded, r.succeeded),
        ran_from = coalesce(t.ran_from, r.ran_from), ran_until = coalesce(t.ran_until, r.ran_until),
        trying = t.trying, failures = coalesce(t.failures, r.failures), paused_at = coalesce(r.paused_at, t.paused_at),
        due = CASE WHEN r.revision <> p_revision THEN now ELSE coalesce(t.due, 'infinity') END, -- its owner checks it after an edit
        blocked_reason = t.blocked_reason, blocked_since = CASE WHEN t.blocked_reason IS NOT NULL THEN coalesce(r.blocked_since, now) WHEN t.due <= now THEN r.blocked_since END -- while it catches up
    WHERE r.id = p_schedule AND r.cursor = p_cursor_before RETURNING r.* INTO s;
    IF NOT FOUND THEN -- an edit may have canceled these ticks while they ran: they have run
        SELECT * INTO s FROM pgleases.schedules AS r WHERE r.id = p_schedule FOR NO KEY UPDATE;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'schedule % was deleted', p_schedule USING ERRCODE = 'PS001';
        END IF;
        total := (SELECT sum((f ->> 'ticks')::bigint) FROM jsonb_array_elements(outcomes) AS f);
        UPDATE pgleases.history AS h SET since = t.cursor, ticks = h.ticks - total
        WHERE h.schedule = p_schedule AND h.since = p_cursor_before AND h.until >= t.cursor AND h.outcome = 'canceled' AND h.ticks > total;
        IF NOT FOUND THEN
            DELETE FROM pgleases.history AS h
            WHERE h.schedule = p_schedule AND h.since = p_cursor_before AND h.until >= t.cursor AND h.outcome = 'canceled' AND h.ticks = total;
        END IF;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'schedule % has its cursor at %, and the run began at %', p_schedule, s.cursor, p_cursor_before USING ERRCODE = 'PS002';
        END IF;
        UPDATE pgleases.schedules AS r SET succeeded = t.succeeded WHERE r.id = p_schedule AND t.succeeded > coalesce(r.succeeded, '-infinity');
    END IF;
    IF jsonb_array_length(outcomes) > 0 THEN
        PERFORM pgleases.schedule_outcomes(s, outcomes);
    END IF;
END
$pgleases_body$;

-- schedule_close for the most frequent case: one tick succeeded, and no other tick gets an outcome.
--   p_schedule: schedule
--   p_run: mark of the run, from schedule_open
--   p_revision: revision that schedule_open read
--   p_cursor_before: cursor that schedule_open read
--   p_tick: the tick
--   p_local_us: the local time of the tick in the rule's zone, in microseconds since 1970 as if it
--     were in UTC
--   p_due: when the schedule runs next; null: never
--   p_ran_from: when the handler was first called for the tick
--   p_ran_until: when the handler returned
--   p_attempts: the number of attempts
--   p_epoch: the epoch of the partition
--   p_started_at: when the run began
CREATE OR REPLACE FUNCTION pgleases.schedule_tick_succeeded(p_schedule bigint, p_run pg_catalog.text, p_revision bigint, p_cursor_before pg_catalog.timestamptz, p_tick pg_catalog.timestamptz, p_local_us bigint, p_due pg_catalog.timestamptz, p_ran_from pg_catalog.timestamptz, p_ran_until pg_catalog.timestamptz, p_attempts int, p_epoch bigint, p_started_at pg_catalog.timestamptz) RETURNS void
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET jit = off AS $pgleases_body$
BEGIN
    WITH stepped AS (
        UPDATE pgleases.schedules AS r
        SET cursor = p_tick, cursor_local = 'epoch'::pg_catalog.timestamp OPERATOR(pg_catalog.+) (p_local_us OPERATOR(pg_catalog.*) interval '1 microsecond'), due = coalesce(p_due, 'infinity'), succeeded = p_tick, ran_from = p_ran_from, ran_until = p_ran_until, trying = NULL, failures = 0,
            blocked_reason = NULL, blocked_since = CASE WHEN p_due OPERATOR(pg_catalog.<=) pgleases.schedule_clock() THEN r.blocked_since END
        WHERE r.id OPERATOR(pg_catalog.=) p_schedule AND r.revision OPERATOR(pg_catalog.=) p_revision AND r.cursor OPERATOR(pg_catalog.=) p_cursor_before
            AND pg_catalog.current_setting('schedule.run', true) OPERATOR(pg_catalog.=) p_run
        RETURNING r.id, r.group_name, r.name, r.kind
    )
    INSERT INTO pgleases.history (schedule, group_name, name, kind, since, until, ticks, outcome, attempts, epoch, started_at, ended_at)
    SELECT s.id, s.group_name, s.name, s.kind, p_cursor_before, p_tick, 1, 'succeeded', p_attempts, p_epoch, p_started_at, pgleases.schedule_clock()
    FROM stepped AS s;
    IF NOT FOUND THEN -- schedule_close raises the error, or does the rest
        PERFORM pgleases.schedule_close(p_schedule, p_run, p_revision, p_cursor_before, pg_catalog.jsonb_build_object(
            'cursor', p_tick, 'cursor_local',
            'epoch'::pg_catalog.timestamp OPERATOR(pg_catalog.+) (p_local_us OPERATOR(pg_catalog.*) interval '1 microsecond'), 'due', p_due, 'succeeded',
            p_tick, 'ran_from', p_ran_from, 'ran_until', p_ran_until, 'failures', 0,
            'outcomes', pg_catalog.jsonb_build_array(pg_catalog.jsonb_build_object('since', p_cursor_before, 'until', p_tick, 'ticks', 1, 'outcome',
            'succeeded', 'attempts', p_attempts, 'epoch', p_epoch, 'started_at', p_started_at))));
    END IF;
END
$pgleases_body$;

-- The last statement of a job's run before COMMIT: if the job has an outcome, deletes the job and
-- writes the outcome. If that is not possible, it raises an error.
--   p_job: job
--   p_run: mark of the run, from schedule_open
--   p_revision: revision that schedule_open read. If the job was replaced since, the new one stays,
--     and runs
--   p_step: the step: due; trying; blocked_reason; outcomes, as in schedule_close, but at most one,
--     with key, args and nonce of what ran, and with until, the time at of the job
--
-- PS001: the job was canceled, or has ended. PS003: this is not the transaction of schedule_open.
CREATE OR REPLACE FUNCTION pgleases.schedule_close_job(p_job bigint, p_run pg_catalog.text, p_revision bigint, p_step pg_catalog.jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $pgleases_body$
DECLARE
    j     pgleases.jobs;
    t     pgleases.jobs;
    outcomes CONSTANT jsonb := p_step -> 'outcomes';
BEGIN
    IF current_setting('schedule.run', true) IS DISTINCT FROM p_run THEN
        RAISE EXCEPTION 'the handler ended the transaction that it was given, or changed its setting schedule.run' USING ERRCODE = 'PS003';
    END IF;
    SELECT * INTO j FROM pgleases.jobs AS r WHERE r.id = p_job FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'job % was canceled, or has ended', p_job USING ERRCODE = 'PS001';
    END IF;
    IF j.revision = p_revision AND jsonb_array_length(outcomes) > 0 THEN
        DELETE FROM pgleases.jobs AS r WHERE r.id = p_job;
    ELSIF j.revision = p_revision THEN
        t := jsonb_populate_record(NULL::pgleases.jobs, p_step);
        UPDATE pgleases.jobs AS r SET due = coalesce(t.due, 'infinity'), trying = t.trying, blocked_reason = t.blocked_reason,
            blocked_since = CASE WHEN t.blocked_reason IS NOT NULL THEN coalesce(r.blocked_since, pgleases.schedule_clock()) END
        WHERE r.id = p_job;
    END IF; -- otherwise it was replaced during the run, and the new one stays
    j.revision := p_revision;
    PERFORM pgleases.schedule_job_outcomes(j, outcomes);
END
$pgleases_body$;

-- schedule_close_job for the most frequent case: the job succeeded.
--   p_job: job
--   p_run: mark of the run, from schedule_open
--   p_revision: revision that schedule_open read
--   p_attempts: the number of attempts
--   p_epoch: the epoch of the partition
--   p_began_us: when the run began, microseconds since 1970
--   p_at: the time at of the job, as schedule_open read it
CREATE OR REPLACE FUNCTION pgleases.schedule_job_succeeded(p_job bigint, p_run pg_catalog.text, p_revision bigint, p_attempts int, p_epoch bigint, p_began_us bigint, p_at pg_catalog.timestamptz) RETURNS void
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET jit = off AS $pgleases_body$
BEGIN
    WITH ended AS (
        DELETE FROM pgleases.jobs AS r
        WHERE r.id OPERATOR(pg_catalog.=) p_job AND r.revision OPERATOR(pg_catalog.=) p_revision AND pg_catalog.current_setting('schedule.run', true) OPERATOR(pg_catalog.=) p_run
        RETURNING r.id, r.group_name, r.name, r.kind, r.at, r.unique_key
    )
    INSERT INTO pgleases.history (schedule, job, group_name, name, kind, since, until, ticks, outcome, attempts, epoch, started_at, ended_at)
    SELECT CASE WHEN e.unique_key OPERATOR(pg_catalog.=) e.name THEN -1 ELSE 0 END, e.id, e.group_name, e.name, e.kind, e.at, e.at, 1, 'succeeded', p_attempts, p_epoch,
        'epoch'::pg_catalog.timestamptz OPERATOR(pg_catalog.+) (p_began_us OPERATOR(pg_catalog.*) interval '1 microsecond'),
        pgleases.schedule_clock()
    FROM ended AS e;
    IF NOT FOUND THEN -- schedule_close_job raises the error, or does the rest
        PERFORM pgleases.schedule_close_job(p_job, p_run, p_revision, pg_catalog.jsonb_build_object('outcomes', pg_catalog.jsonb_build_array(pg_catalog.jsonb_build_object(
            'until', p_at, 'outcome', 'succeeded', 'attempts', p_attempts, 'epoch', p_epoch, 'started_at',
            'epoch'::pg_catalog.timestamptz OPERATOR(pg_catalog.+) (p_began_us OPERATOR(pg_catalog.*) interval '1 microsecond')))));
    END IF;
END
$pgleases_body$;
