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
--   p_run: random mark of the run. The end of the run finds it if the transaction
--     is still the same
--   p_timeout_ms: the most that one statement takes, milliseconds; 0: no limit
--   p_idle_ms: the most that the transaction may be idle, milliseconds
--   p_lock_ms: the most that a statement waits for a lock, milliseconds
-- Returns the schedule or job as JSON, with the time, the transaction, and when the server started;
-- null if it does not exist. JSON has no infinity, so due becomes null. Intervals are in microseconds,
-- and local times are written as if they were in UTC, as schedule_json does it. The columns of a
-- retry are in trying, which is null if they hold no time, as of most runs. Otherwise they are returned
-- also if no attempt has begun, so that a time that cannot be read is found. It is one row_to_json,
-- because binary JSON that is put together costs twice as much.
--
-- PL001: the partition is not owned under the epoch.
--
-- The guard and the opening are one statement, because each further statement costs some
-- microseconds. A search_path would also cost some, so here, and in the functions that end most
-- runs, everything is named with its schema. The advisory lock only shows that something runs, see
-- schedule_runs. The limits are set even if the schedule or job does not exist, because the guard
-- keeps the partition from other owners until the transaction ends.
CREATE OR REPLACE FUNCTION pgleases.schedule_open(p_lease pg_catalog.text, p_number int, p_epoch bigint, p_subject bigint, p_is_job boolean, p_run pg_catalog.text, p_timeout_ms int, p_idle_ms int, p_lock_ms int) RETURNS pg_catalog.json
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET jit = off SET timezone = 'UTC' AS $pgleases_body$
DECLARE
    guarded CONSTANT pg_catalog.text := pgleases.guard(p_lease, p_number, p_epoch); -- the reads below follow its lock
    limits  CONSTANT pg_catalog.text := pg_catalog.concat(
        pg_catalog.set_config('schedule.run', p_run, true), pg_catalog.set_config('statement_timeout', p_timeout_ms::pg_catalog.text, true),
        pg_catalog.set_config('idle_in_transaction_session_timeout', p_idle_ms::pg_catalog.text, true),
        pg_catalog.set_config('lock_timeout', p_lock_ms::pg_catalog.text, true),
        pg_catalog.set_config('client_connection_check_interval', pgleases.check_interval(), true));
    found   pg_catalog.json;
BEGIN
    IF p_is_job THEN
        SELECT pg_catalog.row_to_json(r) INTO found FROM (
            SELECT j.id, j.name, j.key, j.partition, j.kind, j.trigger, j.args, j.rule, j.begins, j.at, j.revision, j.nonce,
                CASE WHEN j.due OPERATOR(pg_catalog.<) 'infinity' THEN j.due END AS due, j.blocked_reason, j.blocked_since,
                CASE WHEN coalesce(j.began, j.retry_at, j.call_began, j.call_ends) IS NOT NULL THEN pg_catalog.json_build_object(
                    'began', j.began, 'attempts', j.attempts, 'outages', j.outages, 'error', j.error, 'retry_at', j.retry_at,
                    'crashes', j.crashes, 'crash_epoch', j.crash_epoch, 'call', j.call, 'call_epoch', j.call_epoch,
                    'call_once', j.call_once, 'call_began', j.call_began, 'call_ends', j.call_ends) END AS trying,
                pgleases.schedule_clock() AS clock,
                pg_catalog.pg_current_xact_id()::pg_catalog.text AS transaction, pg_catalog.pg_postmaster_start_time() AS server
            FROM pgleases.jobs AS j
            WHERE j.id OPERATOR(pg_catalog.=) p_subject
                AND pg_catalog.pg_try_advisory_xact_lock_shared(pg_catalog.hashint8extended(j.id, j.tableoid::bigint)) IS NOT NULL
        ) AS r;
    ELSE
        SELECT pg_catalog.row_to_json(r) INTO found FROM (
            SELECT s.id, s.name, s.key, s.partition, s.kind, s.args, s.rule, s.anchor, s.missed, s.overlap, s.pause_after,
                pg_catalog.trunc(pg_catalog.extract('epoch', s.grace) OPERATOR(pg_catalog.*) 1000000) AS grace,
                pg_catalog.trunc(pg_catalog.extract('epoch', s.jitter) OPERATOR(pg_catalog.*) 1000000) AS jitter,
                s.declared, s.cursor,
                CASE WHEN s.due OPERATOR(pg_catalog.<) 'infinity' THEN s.due END AS due,
                pg_catalog.timezone('UTC', s.cursor_local) AS cursor_local, s.succeeded, s.ran_from, s.ran_until,
                s.failures, s.paused_at, s.revision, s.nonce, s.registered, s.blocked_reason, s.blocked_since,
                CASE WHEN coalesce(s.tick, s.began, s.retry_at, s.call_began, s.call_ends) IS NOT NULL OR s.tick_local IS NOT NULL
                    THEN pg_catalog.json_build_object(
                    'tick', s.tick, 'tick_local', pg_catalog.timezone('UTC', s.tick_local), 'tick_missed', s.tick_missed,
                    'began', s.began, 'attempts', s.attempts, 'outages', s.outages, 'error', s.error, 'retry_at', s.retry_at,
                    'crashes', s.crashes, 'crash_epoch', s.crash_epoch, 'call', s.call, 'call_epoch', s.call_epoch,
                    'call_once', s.call_once, 'call_began', s.call_began, 'call_ends', s.call_ends) END AS trying,
                pgleases.schedule_clock() AS clock,
                pg_catalog.pg_current_xact_id()::pg_catalog.text AS transaction, pg_catalog.pg_postmaster_start_time() AS server
            FROM pgleases.schedules AS s
            WHERE s.id OPERATOR(pg_catalog.=) p_subject
                AND pg_catalog.pg_try_advisory_xact_lock_shared(pg_catalog.hashint8extended(s.id, s.tableoid::bigint)) IS NOT NULL
        ) AS r;
    END IF;
    RETURN found;
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

-- Writes the outcomes of a step of a schedule into the history: see schedule_close.
CREATE OR REPLACE FUNCTION pgleases.schedule_write_ticks(p_schedule bigint, p_group pg_catalog.text, p_name pg_catalog.text,
    p_kind pg_catalog.text, p_passed_since pg_catalog.timestamptz[], p_passed_until pg_catalog.timestamptz[],
    p_passed_ticks bigint[], p_passed_outcomes pg_catalog.text[], p_since pg_catalog.timestamptz, p_until pg_catalog.timestamptz,
    p_outcome pg_catalog.text, p_error pg_catalog.text, p_attempts int, p_epoch bigint, p_started_at pg_catalog.timestamptz,
    p_rule pg_catalog.text, p_begins pg_catalog.timestamptz) RETURNS void
LANGUAGE plpgsql VOLATILE AS $pgleases_body$
BEGIN
    IF pg_catalog.cardinality(p_passed_ticks) OPERATOR(pg_catalog.>) 0 THEN
        INSERT INTO pgleases.history (source, schedule, group_name, name, kind, since, until, ticks, outcome, ended_at)
        SELECT 'tick', p_schedule, p_group, p_name, p_kind, f.since, f.until, f.ticks, f.outcome, pgleases.schedule_clock()
        FROM ROWS FROM (pg_catalog.unnest(p_passed_since), pg_catalog.unnest(p_passed_until), pg_catalog.unnest(p_passed_ticks),
            pg_catalog.unnest(p_passed_outcomes)) AS f (since, until, ticks, outcome)
        ORDER BY f.until;
    END IF;
    IF p_outcome IS NOT NULL THEN -- after the others, because the history is read in the order of writing
        INSERT INTO pgleases.history (source, schedule, group_name, name, kind, since, until, ticks, outcome, error, attempts, epoch,
            started_at, ended_at, rule, begins)
        VALUES ('tick', p_schedule, p_group, p_name, p_kind, p_since, p_until, 1, p_outcome, p_error, p_attempts, p_epoch,
            p_started_at, pgleases.schedule_clock(), p_rule, p_begins);
    END IF;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_write_ticks IS 'Writes the outcomes of a step of a schedule into the history.';

-- The last statement of a run before COMMIT: advances the schedule's cursor, and writes the
-- outcomes of its ticks. If that is not possible, it raises an error, so the transaction is rolled
-- back.
--   p_schedule: schedule
--   p_run: mark of the run, from schedule_open
--   p_revision, p_cursor_before: revision and cursor that schedule_open read
--   p_cursor: the cursor from now on
--   p_local_us: its local time in the rule's zone, in microseconds since 1970 as if it were in UTC;
--     null: it is not a tick
--   p_due: when it runs next if it was not edited meanwhile; null: never
--   p_succeeded: the tick that succeeded; null: as before
--   p_ran_from, p_ran_until: when the handler was first called for the tick, and when it returned;
--     null: it was not called
--   p_failures: the number of consecutive failed ticks; null: as before
--   p_paused_at: when it was paused; null: as before
--   p_blocked: why it is blocked; null: it is not
--   p_tick and the others to p_call_ends: what the columns of these names are from now on. p_tick:
--     null: no tick has begun that has no outcome yet. p_tick_local_us: as p_local_us
--   p_passed_since, p_passed_until, p_passed_ticks, p_passed_outcomes: the outcomes of ticks that
--     passed without a run, each beginning where the one before ends
--   p_since: where the tick that ran begins, which is p_cursor
--   p_outcome: its outcome; null: no tick ran, or it has no outcome yet. p_error to p_begins are of that
--     outcome
--
-- PS001: the schedule was deleted. PS002: its cursor has moved. PS003: this is not the transaction
-- of schedule_open.
--
-- The row is locked here, at the end of the run. If it were locked at the beginning, an edit would
-- wait for the handler, and handlers that put schedules would wait for each other.
CREATE OR REPLACE FUNCTION pgleases.schedule_close(p_schedule bigint, p_run pg_catalog.text, p_revision bigint,
    p_cursor_before pg_catalog.timestamptz, p_cursor pg_catalog.timestamptz, p_local_us bigint, p_due pg_catalog.timestamptz,
    p_succeeded pg_catalog.timestamptz, p_ran_from pg_catalog.timestamptz, p_ran_until pg_catalog.timestamptz, p_failures int,
    p_paused_at pg_catalog.timestamptz, p_blocked pg_catalog.text,
    p_tick pg_catalog.timestamptz, p_tick_local_us bigint, p_tick_missed bigint, p_began pg_catalog.timestamptz, p_attempts int,
    p_outages int, p_last_error pg_catalog.text, p_retry_at pg_catalog.timestamptz, p_crashes int, p_crash_epoch bigint,
    p_call pg_catalog.text, p_call_epoch bigint, p_call_once boolean, p_call_began pg_catalog.timestamptz,
    p_call_ends pg_catalog.timestamptz,
    p_passed_since pg_catalog.timestamptz[], p_passed_until pg_catalog.timestamptz[], p_passed_ticks bigint[],
    p_passed_outcomes pg_catalog.text[],
    p_since pg_catalog.timestamptz, p_outcome pg_catalog.text, p_error pg_catalog.text, p_outcome_attempts int, p_epoch bigint,
    p_started_at pg_catalog.timestamptz, p_rule pg_catalog.text, p_begins pg_catalog.timestamptz) RETURNS void
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET jit = off AS $pgleases_body$
DECLARE
    micro   CONSTANT pg_catalog.interval := '1 microsecond';
    unix    CONSTANT pg_catalog.timestamp := 'epoch';
    now     CONSTANT pg_catalog.timestamptz := pgleases.schedule_clock();
    stepped record;
BEGIN
    UPDATE pgleases.schedules AS r
    SET cursor = p_cursor, cursor_local = unix OPERATOR(pg_catalog.+) (p_local_us OPERATOR(pg_catalog.*) micro),
        succeeded = coalesce(p_succeeded, r.succeeded), ran_from = coalesce(p_ran_from, r.ran_from),
        ran_until = coalesce(p_ran_until, r.ran_until), failures = coalesce(p_failures, r.failures),
        paused_at = coalesce(r.paused_at, p_paused_at),
        due = CASE WHEN r.revision OPERATOR(pg_catalog.<>) p_revision THEN now -- its owner checks it after an edit
                   ELSE coalesce(p_due, 'infinity') END,
        blocked_reason = p_blocked,
        blocked_since = CASE WHEN p_blocked IS NOT NULL THEN coalesce(r.blocked_since, now)
                             WHEN p_due OPERATOR(pg_catalog.<=) now THEN r.blocked_since END, -- while it catches up
        tick = p_tick, tick_local = unix OPERATOR(pg_catalog.+) (p_tick_local_us OPERATOR(pg_catalog.*) micro),
        tick_missed = p_tick_missed, began = p_began, attempts = p_attempts, outages = p_outages, error = p_last_error,
        retry_at = p_retry_at, crashes = p_crashes, crash_epoch = p_crash_epoch, call = p_call, call_epoch = p_call_epoch,
        call_once = p_call_once, call_began = p_call_began, call_ends = p_call_ends
    WHERE r.id OPERATOR(pg_catalog.=) p_schedule AND r.cursor OPERATOR(pg_catalog.=) p_cursor_before
        AND pg_catalog.current_setting('schedule.run', true) OPERATOR(pg_catalog.=) p_run
    RETURNING r.id, r.group_name, r.name, r.kind INTO stepped;
    IF NOT FOUND THEN
        PERFORM pgleases.schedule_close_late(p_schedule, p_run, p_cursor_before, p_cursor, p_succeeded, p_passed_since, p_passed_until,
            p_passed_ticks, p_passed_outcomes, p_since, p_outcome, p_error, p_outcome_attempts, p_epoch, p_started_at, p_rule, p_begins);
        RETURN;
    END IF;
    PERFORM pgleases.schedule_write_ticks(stepped.id, stepped.group_name, stepped.name, stepped.kind, p_passed_since, p_passed_until,
        p_passed_ticks, p_passed_outcomes, p_since, p_cursor, p_outcome, p_error, p_outcome_attempts, p_epoch, p_started_at, p_rule,
        p_begins);
END
$pgleases_body$;

-- The rest of schedule_close if the cursor has moved since schedule_open. An edit may have canceled
-- these ticks while they ran, but they have run. So their outcomes replace those of the edit.
CREATE OR REPLACE FUNCTION pgleases.schedule_close_late(p_schedule bigint, p_run pg_catalog.text, p_cursor_before pg_catalog.timestamptz,
    p_cursor pg_catalog.timestamptz, p_succeeded pg_catalog.timestamptz, p_passed_since pg_catalog.timestamptz[],
    p_passed_until pg_catalog.timestamptz[], p_passed_ticks bigint[], p_passed_outcomes pg_catalog.text[],
    p_since pg_catalog.timestamptz, p_outcome pg_catalog.text, p_error pg_catalog.text, p_outcome_attempts int, p_epoch bigint,
    p_started_at pg_catalog.timestamptz, p_rule pg_catalog.text, p_begins pg_catalog.timestamptz) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $pgleases_body$
DECLARE
    s     pgleases.schedules;
    total CONSTANT bigint := coalesce((SELECT sum(f.ticks) FROM unnest(p_passed_ticks) AS f (ticks)), 0)
        + CASE WHEN p_outcome IS NOT NULL THEN 1 ELSE 0 END;
BEGIN
    IF current_setting('schedule.run', true) IS DISTINCT FROM p_run THEN
        RAISE EXCEPTION 'the handler ended the transaction that it was given, or changed its setting schedule.run' USING ERRCODE = 'PS003';
    END IF;
    SELECT * INTO s FROM pgleases.schedules AS r WHERE r.id = p_schedule FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'schedule % was deleted', p_schedule USING ERRCODE = 'PS001';
    END IF;
    UPDATE pgleases.history AS h SET since = p_cursor, ticks = h.ticks - total
    WHERE h.schedule = p_schedule AND h.since = p_cursor_before AND h.until >= p_cursor AND h.outcome = 'canceled' AND h.ticks > total;
    IF NOT FOUND THEN
        DELETE FROM pgleases.history AS h
        WHERE h.schedule = p_schedule AND h.since = p_cursor_before AND h.until >= p_cursor AND h.outcome = 'canceled' AND h.ticks = total;
    END IF;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'schedule % has its cursor at %, and the run began at %', p_schedule, s.cursor, p_cursor_before USING ERRCODE = 'PS002';
    END IF;
    UPDATE pgleases.schedules AS r SET succeeded = p_succeeded WHERE r.id = p_schedule AND p_succeeded > coalesce(r.succeeded, '-infinity');
    PERFORM pgleases.schedule_write_ticks(s.id, s.group_name, s.name, s.kind, p_passed_since, p_passed_until, p_passed_ticks,
        p_passed_outcomes, p_since, p_cursor, p_outcome, p_error, p_outcome_attempts, p_epoch, p_started_at, p_rule, p_begins);
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_close_late IS 'The rest of the end of a run whose ticks an edit has canceled.';

-- The last statement before COMMIT of the most usual run: the first attempt at the next tick of a
-- schedule has succeeded. It does what schedule_close does, but writes no column of a retry. If the
-- schedule was edited, or something in it shows a failure or a block, it leaves that to schedule_close.
--   p_schedule to p_due, and p_epoch: as for schedule_close
--   p_started_at, p_ended_at: when the handler was called, and when it returned
CREATE OR REPLACE FUNCTION pgleases.schedule_end_tick(p_schedule bigint, p_run pg_catalog.text, p_revision bigint,
    p_cursor_before pg_catalog.timestamptz, p_cursor pg_catalog.timestamptz, p_local_us bigint, p_due pg_catalog.timestamptz,
    p_epoch bigint, p_started_at pg_catalog.timestamptz, p_ended_at pg_catalog.timestamptz) RETURNS void
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET jit = off AS $pgleases_body$
DECLARE
    micro CONSTANT pg_catalog.interval := '1 microsecond';
    unix  CONSTANT pg_catalog.timestamp := 'epoch';
BEGIN
    WITH stepped AS (
        UPDATE pgleases.schedules AS r
        SET cursor = p_cursor, cursor_local = unix OPERATOR(pg_catalog.+) (p_local_us OPERATOR(pg_catalog.*) micro),
            due = coalesce(p_due, 'infinity'), succeeded = p_cursor, ran_from = p_started_at, ran_until = p_ended_at
        WHERE r.id OPERATOR(pg_catalog.=) p_schedule AND r.revision OPERATOR(pg_catalog.=) p_revision
            AND r.cursor OPERATOR(pg_catalog.=) p_cursor_before
            AND pg_catalog.current_setting('schedule.run', true) OPERATOR(pg_catalog.=) p_run
            AND r.began IS NULL AND r.failures OPERATOR(pg_catalog.=) 0 AND r.blocked_since IS NULL
        RETURNING r.id, r.group_name, r.name, r.kind
    )
    INSERT INTO pgleases.history (source, schedule, group_name, name, kind, since, until, ticks, outcome, attempts, epoch,
        started_at, ended_at)
    SELECT 'tick', s.id, s.group_name, s.name, s.kind, p_cursor_before, p_cursor, 1, 'succeeded', 1, p_epoch,
        p_started_at, pgleases.schedule_clock()
    FROM stepped AS s;
    IF NOT FOUND THEN
        PERFORM pgleases.schedule_close(
            p_schedule => p_schedule, p_run => p_run, p_revision => p_revision, p_cursor_before => p_cursor_before,
            p_cursor => p_cursor, p_local_us => p_local_us, p_due => p_due, p_succeeded => p_cursor, p_ran_from => p_started_at,
            p_ran_until => p_ended_at, p_failures => 0, p_paused_at => NULL, p_blocked => NULL,
            p_tick => NULL, p_tick_local_us => NULL, p_tick_missed => 0, p_began => NULL, p_attempts => 0, p_outages => 0,
            p_last_error => NULL, p_retry_at => NULL, p_crashes => 0, p_crash_epoch => NULL, p_call => NULL,
            p_call_epoch => NULL, p_call_once => false, p_call_began => NULL, p_call_ends => NULL,
            p_passed_since => '{}', p_passed_until => '{}', p_passed_ticks => '{}', p_passed_outcomes => '{}',
            p_since => p_cursor_before, p_outcome => 'succeeded', p_error => NULL, p_outcome_attempts => 1,
            p_epoch => p_epoch, p_started_at => p_started_at, p_rule => NULL, p_begins => NULL);
    END IF;
END
$pgleases_body$;

-- The last statement before COMMIT of a run after which a job has its outcome: deletes the job, and
-- writes the outcome. If that is not possible, it raises an error.
--   p_job: job
--   p_run: mark of the run, from schedule_open
--   p_revision: revision that schedule_open read. If the job was replaced since, the new one stays,
--     and runs
--   p_at, p_key, p_args, p_nonce: of what ran. All but p_at are null if it succeeded
--   p_started_at: when the run began
--
-- PS001: the job was canceled, or has ended. PS003: this is not the transaction of schedule_open.
CREATE OR REPLACE FUNCTION pgleases.schedule_end_job(p_job bigint, p_run pg_catalog.text, p_revision bigint, p_outcome pg_catalog.text,
    p_error pg_catalog.text, p_attempts int, p_epoch bigint, p_started_at pg_catalog.timestamptz, p_at pg_catalog.timestamptz,
    p_key pg_catalog.text, p_args pg_catalog.jsonb, p_nonce pg_catalog.uuid) RETURNS void
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET jit = off AS $pgleases_body$
BEGIN
    WITH ended AS (
        DELETE FROM pgleases.jobs AS r
        WHERE r.id OPERATOR(pg_catalog.=) p_job AND r.revision OPERATOR(pg_catalog.=) p_revision
            AND pg_catalog.current_setting('schedule.run', true) OPERATOR(pg_catalog.=) p_run
            AND p_outcome OPERATOR(pg_catalog.=) 'succeeded'
        RETURNING r.id, r.group_name, r.name, r.kind, r.at, r.rule
    )
    INSERT INTO pgleases.history (source, job, group_name, name, kind, since, until, ticks, outcome, attempts, epoch, started_at, ended_at)
    SELECT CASE WHEN e.rule IS NULL THEN 'job' ELSE 'extra' END, e.id, e.group_name, e.name, e.kind, e.at, e.at, 1, p_outcome, p_attempts,
        p_epoch, p_started_at, pgleases.schedule_clock()
    FROM ended AS e;
    IF NOT FOUND THEN
        PERFORM pgleases.schedule_end_job_otherwise(p_job, p_run, p_revision, p_outcome, p_error, p_attempts, p_epoch, p_started_at,
            p_at, p_key, p_args, p_nonce);
    END IF;
END
$pgleases_body$;

-- The rest of schedule_end_job if the job did not succeed, so that its row of the history has more
-- columns, or was replaced during the run. A new one stays. The run has its outcome, and can be
-- retried with what the job had.
CREATE OR REPLACE FUNCTION pgleases.schedule_end_job_otherwise(p_job bigint, p_run pg_catalog.text, p_revision bigint, p_outcome pg_catalog.text,
    p_error pg_catalog.text, p_attempts int, p_epoch bigint, p_started_at pg_catalog.timestamptz, p_at pg_catalog.timestamptz,
    p_key pg_catalog.text, p_args pg_catalog.jsonb, p_nonce pg_catalog.uuid) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $pgleases_body$
DECLARE
    j            pgleases.jobs := pgleases.schedule_lock_job(p_job, p_run);
    unsuccessful CONSTANT boolean := p_outcome <> 'succeeded'; -- it can be retried
BEGIN
    INSERT INTO pgleases.history (source, job, group_name, name, kind, since, until, ticks, outcome, error, attempts, epoch,
        started_at, ended_at, key, args, priority, unique_key, begins, rule, nonce, revision)
    VALUES (pgleases.schedule_source(j), j.id, j.group_name, j.name, j.kind, p_at, p_at, 1, p_outcome, p_error, p_attempts, p_epoch,
        p_started_at, pgleases.schedule_clock(), p_key, p_args, CASE WHEN unsuccessful THEN j.priority END,
        CASE WHEN unsuccessful THEN j.unique_key END, CASE WHEN unsuccessful THEN j.begins END, CASE WHEN unsuccessful THEN j.rule END,
        p_nonce, CASE WHEN unsuccessful THEN p_revision END);
    DELETE FROM pgleases.jobs AS r WHERE r.id = p_job AND r.revision = p_revision;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_end_job_otherwise IS 'The rest of the end of a job that did not succeed, or was replaced during its run.';

-- Locks the row of a job at the end of its run.
CREATE OR REPLACE FUNCTION pgleases.schedule_lock_job(p_job bigint, p_run pg_catalog.text) RETURNS pgleases.jobs
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $pgleases_body$
DECLARE
    j pgleases.jobs;
BEGIN
    IF current_setting('schedule.run', true) IS DISTINCT FROM p_run THEN
        RAISE EXCEPTION 'the handler ended the transaction that it was given, or changed its setting schedule.run' USING ERRCODE = 'PS003';
    END IF;
    SELECT * INTO j FROM pgleases.jobs AS r WHERE r.id = p_job FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'job % was canceled, or has ended', p_job USING ERRCODE = 'PS001';
    END IF;
    RETURN j;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_lock_job(bigint, pg_catalog.text) IS 'Locks the row of a job at the end of its run.';

-- The last statement before COMMIT of a run after which a job has no outcome yet. If the job was
-- replaced since, the new one stays as it is.
--   p_job: job
--   p_run, p_revision: as for schedule_end_job
--   p_due: when it runs next; null: never
--   p_blocked: why it is blocked; null: it is not
--   p_began and the others: what the columns of these names are from now on; p_last_error is the
--     column error
CREATE OR REPLACE FUNCTION pgleases.schedule_postpone_job(p_job bigint, p_run pg_catalog.text, p_revision bigint, p_due pg_catalog.timestamptz,
    p_blocked pg_catalog.text, p_began pg_catalog.timestamptz, p_attempts int, p_outages int, p_last_error pg_catalog.text,
    p_retry_at pg_catalog.timestamptz, p_crashes int, p_crash_epoch bigint, p_call pg_catalog.text, p_call_epoch bigint,
    p_call_once boolean, p_call_began pg_catalog.timestamptz, p_call_ends pg_catalog.timestamptz) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $pgleases_body$
DECLARE
    j pgleases.jobs := pgleases.schedule_lock_job(p_job, p_run);
BEGIN
    UPDATE pgleases.jobs AS r
    SET due = coalesce(p_due, 'infinity'), blocked_reason = p_blocked,
        blocked_since = CASE WHEN p_blocked IS NOT NULL THEN coalesce(r.blocked_since, pgleases.schedule_clock()) END,
        began = p_began, attempts = p_attempts, outages = p_outages, error = p_last_error, retry_at = p_retry_at, crashes = p_crashes,
        crash_epoch = p_crash_epoch, call = p_call, call_epoch = p_call_epoch, call_once = p_call_once, call_began = p_call_began,
        call_ends = p_call_ends
    WHERE r.id = p_job AND j.revision = p_revision;
END
$pgleases_body$;
