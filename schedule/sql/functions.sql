-- functions.sql: the functions of package schedule, then the version. It runs after schema.sql. Idempotent: functions are replaced.
--
-- They run in transactions of the application's too, under any search_path: so each sets its own, or names all with its schema. Jobs are
-- often none, and then many: a plan that is kept was made when the table was empty, so in what runs for each job, and in looks, it must not
-- read the whole of it (enable_seqscan). What has no index, as the one row of pgleases.server, then seems to cost so much that the server
-- would compile each plan that reads it, for 0.2 s and more (jit).
--
-- Schedules and outcomes come and go as JSON, in which a time is the same under all settings of a session.

-- Commits that notify wait for each other, all of the server's: so the first in each fifth of a second tells for the others, whose
-- processes look again when that is over. The value is the number of that fifth, then a bit for each number of groups of which it was told
-- in it, see schedule_share. Processes of all groups of a number listen to one channel: else a group would not be told of while another of
-- its number is. Where two race, both tell.
CREATE OR REPLACE FUNCTION pgleases.schedule_share(group_name pg_catalog.text) RETURNS int
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    RETURN (hashtext($1) & 2147483647) % 24;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_share(pg_catalog.text) IS 'The number that a group shares with others: those of one are told together.';

CREATE OR REPLACE FUNCTION pgleases.schedule_tell(group_name pg_catalog.text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    fifth CONSTANT bigint := (extract(epoch FROM clock_timestamp()) * 5)::bigint;
    mine  CONSTANT bigint := 1::bigint << pgleases.schedule_share($1);
    told  bigint;
BEGIN
    SELECT t.last_value INTO told FROM pgleases.schedule_told AS t;
    IF told >> 24 <> fifth THEN
        told := fifth << 24;
    ELSIF told & mine <> 0 THEN
        RETURN;
    END IF;
    PERFORM setval('pgleases.schedule_told', told | mine), pg_notify('pgleases_schedule_' || pgleases.schedule_share($1), '');
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_tell(pg_catalog.text) IS 'Tells processes, at the commit, that something was put that is due before they look.';

-- infinity is none in JSON. A local time goes as if it were one of UTC, whatever the session's zone: a timestamp without a zone drops the zone when it
-- comes.
CREATE OR REPLACE FUNCTION pgleases.schedule_json(s pgleases.schedules) RETURNS pg_catalog.jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' AS $pgleases_body$
BEGIN
    RETURN to_jsonb(s) || jsonb_build_object('due', nullif(s.due, 'infinity'), 'cursor_local',
        (to_jsonb(s.cursor_local) #>> '{}') || 'Z', 'clock', pgleases.schedule_clock());
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_json(pgleases.schedules) IS 'A schedule, with the time at which it was read.';

CREATE OR REPLACE FUNCTION pgleases.schedule_join(group_name pg_catalog.text, partitions int) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    INSERT INTO pgleases.schedule_groups AS g (name, partitions) VALUES ($1, $2)
    ON CONFLICT (name) DO UPDATE SET partitions = EXCLUDED.partitions WHERE g.partitions <> EXCLUDED.partitions;
    IF FOUND THEN
        UPDATE pgleases.schedules AS s SET partition = pgleases.partition_for(s.key, $2)
        WHERE s.group_name = $1 AND s.partition <> pgleases.partition_for(s.key, $2);
        UPDATE pgleases.jobs AS j SET partition = pgleases.partition_for(j.key, $2)
        WHERE j.group_name = $1 AND j.partition <> pgleases.partition_for(j.key, $2);
    END IF;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_join(pg_catalog.text, int) IS 'Notes the number of partitions of a group''s lease, and where it is another than before, moves the schedules to theirs.';

CREATE OR REPLACE FUNCTION pgleases.schedule_place(group_name pg_catalog.text, partitions int, schedules bigint[], jobs bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $pgleases_body$
BEGIN
    UPDATE pgleases.schedules AS s SET partition = pgleases.partition_for(s.key, $2)
    WHERE s.id IN (SELECT w.id FROM pgleases.schedules AS w
                   WHERE w.group_name = $1 AND w.partition >= $2 OR w.group_name = $1 AND w.id = ANY ($3)
                   FOR NO KEY UPDATE SKIP LOCKED);
    IF FOUND THEN
        PERFORM pgleases.schedule_tell($1);
    END IF;
    UPDATE pgleases.jobs AS j SET partition = pgleases.partition_for(j.key, $2)
    WHERE j.id IN (SELECT w.id FROM pgleases.jobs AS w
                   WHERE w.group_name = $1 AND w.partition >= $2 OR w.group_name = $1 AND w.id = ANY ($4)
                   FOR NO KEY UPDATE SKIP LOCKED);
    IF FOUND THEN
        PERFORM pgleases.schedule_tell($1);
    END IF;
END
$pgleases_body$;

CREATE OR REPLACE FUNCTION pgleases.schedule_look(group_name pg_catalog.text, partitions int[], fresh int[], since_us bigint,
    horizon_us bigint, most int, but pg_catalog.text[], but_kinds pg_catalog.text[],
    OUT clock_us bigint, OUT took_us bigint, OUT id bigint[], OUT job boolean[], OUT priority int[], OUT partition int[],
    OUT key pg_catalog.text[], OUT kind pg_catalog.text[], OUT due_us bigint[], OUT crashes int[])
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $pgleases_body$
DECLARE
    now   CONSTANT timestamptz := pgleases.schedule_clock();
    since CONSTANT timestamptz := timestamptz 'epoch' + $4 * interval '1 microsecond';
    until CONSTANT timestamptz := now + $5 * interval '1 microsecond';
BEGIN
    IF cardinality($3) > 0 THEN
        -- Few enough that no look takes long for it. Where some of them run, the next looks wake others; else those are due within an hour.
        UPDATE pgleases.schedules AS s SET due = now
        WHERE s.id IN (SELECT w.id FROM pgleases.schedules AS w
                       WHERE w.group_name = $1 AND w.partition = ANY ($3) AND w.blocked_reason IS NOT NULL
                           AND w.paused_at IS NULL AND w.due > now
                       LIMIT 1000 FOR UPDATE SKIP LOCKED);
        UPDATE pgleases.jobs AS j SET due = now
        WHERE j.id IN (SELECT w.id FROM pgleases.jobs AS w
                       WHERE w.group_name = $1 AND w.partition = ANY ($3) AND w.blocked_reason IS NOT NULL AND w.due > now
                       LIMIT 1000 FOR UPDATE SKIP LOCKED);
    END IF;
    clock_us := (extract(epoch FROM now) * 1000000)::bigint;
    SELECT array_agg(f.id), array_agg(f.job), array_agg(f.priority), array_agg(f.partition), array_agg(f.key), array_agg(f.kind),
        array_agg((extract(epoch FROM f.due) * 1000000)::bigint), array_agg(coalesce((f.trying ->> 'crashes')::int, 0))
    INTO id, job, priority, partition, key, kind, due_us, crashes
    FROM (
        SELECT d.*, p.partition
        FROM unnest($2) AS p (partition)
        CROSS JOIN LATERAL (
            (SELECT s.id, false AS job, 1 AS priority, s.key, s.kind, s.due, s.trying FROM pgleases.schedules AS s
            WHERE s.group_name = $1 AND s.partition = p.partition AND s.due <= until AND s.key <> ALL ($7) AND s.kind <> ALL ($8)
              -- behind an old snapshot, dead entries of the index pile up before it
              AND s.due > CASE WHEN p.partition = ANY ($3) THEN '-infinity' ELSE since END
            ORDER BY s.due LIMIT $6)
            UNION ALL
            SELECT b.* FROM generate_series(0, 3) AS band (priority)
            CROSS JOIN LATERAL (
                SELECT j.id, true, j.priority, j.key, j.kind, j.due, j.trying FROM pgleases.jobs AS j
                WHERE j.group_name = $1 AND j.partition = p.partition AND j.priority = band.priority AND j.due <= until
                    AND j.key <> ALL ($7) AND j.kind <> ALL ($8)
                  AND j.due > CASE WHEN p.partition = ANY ($3) THEN '-infinity' ELSE since END
                ORDER BY j.due LIMIT $6
            ) AS b
        ) AS d
        ORDER BY d.due, d.id
    ) AS f;
    took_us := (extract(epoch FROM clock_timestamp() - statement_timestamp()) * 1000000)::bigint; -- the clock is told as it was before
END
$pgleases_body$;

CREATE OR REPLACE FUNCTION pgleases.schedule_begin(group_name pg_catalog.text, partition int, epoch bigint, lock_ms int) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    answer boolean;
BEGIN
    PERFORM set_config('lock_timeout', $4::text, true);
    INSERT INTO pgleases.schedule_owners AS o (group_name, partition, opened, died) VALUES ($1, $2, $3, false)
    ON CONFLICT ON CONSTRAINT schedule_owners_pkey DO UPDATE
    SET opened = $3, died = CASE WHEN o.opened = $3 THEN o.died ELSE o.opened > o.closed END -- called again: its answer was lost
    RETURNING o.died INTO answer;
    RETURN answer;
END
$pgleases_body$;

CREATE OR REPLACE FUNCTION pgleases.schedule_end(group_name pg_catalog.text, partition int, epoch bigint, charged bigint[],
    charged_jobs bigint[], lock_ms int) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $pgleases_body$
BEGIN
    PERFORM set_config('lock_timeout', $6::text, true);
    UPDATE pgleases.schedules AS s -- before jobs: as all others
    SET trying = s.trying || jsonb_build_object('crashes', (s.trying ->> 'crashes')::int - 1, 'epoch', 0)
    WHERE s.id = ANY ($4) AND (s.trying ->> 'epoch')::bigint = $3;
    UPDATE pgleases.jobs AS j
    SET trying = j.trying || jsonb_build_object('crashes', (j.trying ->> 'crashes')::int - 1, 'epoch', 0)
    WHERE j.id = ANY ($5) AND (j.trying ->> 'epoch')::bigint = $3;
    UPDATE pgleases.schedule_owners AS o SET closed = $3 WHERE o.group_name = $1 AND o.partition = $2 AND o.opened = $3;
END
$pgleases_body$;

-- IMMUTABLE, as the server's system does not change: so a plan that is kept has found it out once. Only setting it tells.
CREATE OR REPLACE FUNCTION pgleases.schedule_check_interval() RETURNS pg_catalog.text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    RETURN set_config('client_connection_check_interval', '500', true);
EXCEPTION WHEN invalid_parameter_value THEN
    RETURN '0';
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_check_interval() IS 'How often a run looks whether its client is still there, milliseconds; 0: the server''s system cannot do it.';

-- A run is opened in one statement with its guard: each thing more costs it some microseconds. So would a search_path, here and in what
-- ends most runs: all is named with its schema. The lock only shows that it runs, see schedule_runs. If nothing is found, what closes it
-- says so, and until then the guard keeps the partition from others: so the limits are set in any case.
CREATE OR REPLACE FUNCTION pgleases.schedule_open(lease pg_catalog.text, number int, epoch bigint, subject bigint, of_job boolean,
    run pg_catalog.text, timeout_ms int, idle_ms int, lock_ms int) RETURNS pg_catalog.jsonb
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET jit = off SET timezone = 'UTC' AS $pgleases_body$
DECLARE
    guarded CONSTANT pg_catalog.text := pgleases.guard($1, $2, $3); -- what is read below is read after it has its lock
    limits  CONSTANT pg_catalog.text := pg_catalog.concat(
        pg_catalog.set_config('schedule.run', $6, true), pg_catalog.set_config('statement_timeout', $7::pg_catalog.text, true),
        pg_catalog.set_config('idle_in_transaction_session_timeout', $8::pg_catalog.text, true),
        pg_catalog.set_config('lock_timeout', $9::pg_catalog.text, true),
        pg_catalog.set_config('client_connection_check_interval', pgleases.schedule_check_interval(), true));
    found   pg_catalog.jsonb;
BEGIN
    IF $5 THEN
        SELECT pg_catalog.to_jsonb(j) OPERATOR(pg_catalog.||) pg_catalog.jsonb_build_object('job', true, 'clock', pgleases.schedule_clock(),
               'due', CASE WHEN j.due OPERATOR(pg_catalog.<) 'infinity' THEN j.due END)
        INTO found FROM pgleases.jobs AS j
        WHERE j.id OPERATOR(pg_catalog.=) $4 AND pg_catalog.pg_try_advisory_xact_lock_shared(pg_catalog.hashint8extended(j.id, j.tableoid::bigint)) IS NOT NULL;
    ELSE
        SELECT pgleases.schedule_json(s) INTO found FROM pgleases.schedules AS s
        WHERE s.id OPERATOR(pg_catalog.=) $4 AND pg_catalog.pg_try_advisory_xact_lock_shared(pg_catalog.hashint8extended(s.id, s.tableoid::bigint)) IS NOT NULL;
    END IF;
    RETURN found;
END
$pgleases_body$;

CREATE OR REPLACE FUNCTION pgleases.schedule_outcomes(s pgleases.schedules, outcomes pg_catalog.jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    INSERT INTO pgleases.history (schedule, group_name, name, kind, since, until, ticks, outcome, error, attempts, epoch, started_at, ended_at)
    SELECT s.id, s.group_name, s.name, s.kind, f.since, f.until, f.ticks, f.outcome, f.error, coalesce(f.attempts, 0), f.epoch,
        f.started_at, pgleases.schedule_clock()
    FROM jsonb_to_recordset($2) AS f (since timestamptz, until timestamptz, ticks bigint, outcome text, error text, attempts int,
        epoch bigint, started_at timestamptz)
    ORDER BY f.until;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_outcomes(pgleases.schedules, pg_catalog.jsonb) IS 'Writes down what became of ticks.';

-- The row is locked here at the end of the run and not at its beginning: else an edit would wait for as long as the handler runs, and
-- handlers that put schedules would wait for each other.
CREATE OR REPLACE FUNCTION pgleases.schedule_close(schedule bigint, run pg_catalog.text, revision bigint,
    cursor_before pg_catalog.timestamptz, step pg_catalog.jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $pgleases_body$
DECLARE
    s     pgleases.schedules;
    t     pgleases.schedules := jsonb_populate_record(NULL::pgleases.schedules, $5);
    outcomes CONSTANT jsonb := $5 -> 'outcomes';
    total bigint;
    now   CONSTANT timestamptz := pgleases.schedule_clock();
BEGIN
    IF current_setting('schedule.run', true) IS DISTINCT FROM $2 THEN
        RAISE EXCEPTION 'the handler ended the transaction that it was given, or changed its setting schedule.run' USING ERRCODE = 'PS003';
    END IF;
    UPDATE pgleases.schedules AS r
    SET cursor = t.cursor, cursor_local = t.cursor_local, succeeded = coalesce(t.succeeded, r.succeeded),
        ran_from = coalesce(t.ran_from, r.ran_from), ran_until = coalesce(t.ran_until, r.ran_until),
        trying = t.trying, failures = coalesce(t.failures, r.failures), paused_at = coalesce(r.paused_at, t.paused_at),
        due = CASE WHEN r.revision <> $3 THEN now ELSE coalesce(t.due, 'infinity') END, -- its owner looks what the edit made of it
        blocked_reason = t.blocked_reason, blocked_since = CASE WHEN t.blocked_reason IS NOT NULL THEN coalesce(r.blocked_since, now) WHEN t.due <= now THEN r.blocked_since END -- it catches up
    WHERE r.id = $1 AND r.cursor = $4 RETURNING r.* INTO s;
    IF NOT FOUND THEN -- where an edit passed over these ticks while they ran, they have run all the same
        SELECT * INTO s FROM pgleases.schedules AS r WHERE r.id = $1 FOR NO KEY UPDATE;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'schedule % was deleted', $1 USING ERRCODE = 'PS001';
        END IF;
        total := (SELECT sum((f ->> 'ticks')::bigint) FROM jsonb_array_elements(outcomes) AS f);
        UPDATE pgleases.history AS h SET since = t.cursor, ticks = h.ticks - total
        WHERE h.schedule = $1 AND h.since = $4 AND h.until >= t.cursor AND h.outcome = 'canceled' AND h.ticks > total;
        IF NOT FOUND THEN
            DELETE FROM pgleases.history AS h
            WHERE h.schedule = $1 AND h.since = $4 AND h.until >= t.cursor AND h.outcome = 'canceled' AND h.ticks = total;
        END IF;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'schedule % has come as far as %, and the run began at %', $1, s.cursor, $4 USING ERRCODE = 'PS002';
        END IF;
        UPDATE pgleases.schedules AS r SET succeeded = t.succeeded WHERE r.id = $1 AND t.succeeded > coalesce(r.succeeded, '-infinity');
    END IF;
    IF jsonb_array_length(outcomes) > 0 THEN
        PERFORM pgleases.schedule_outcomes(s, outcomes);
    END IF;
END
$pgleases_body$;

CREATE OR REPLACE FUNCTION pgleases.schedule_done_tick(schedule bigint, run pg_catalog.text, revision bigint,
    cursor_before pg_catalog.timestamptz, tick pg_catalog.timestamptz, local_us bigint, due pg_catalog.timestamptz,
    ran_from pg_catalog.timestamptz, ran_until pg_catalog.timestamptz, attempts int, epoch bigint, started_at pg_catalog.timestamptz) RETURNS void
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET jit = off AS $pgleases_body$
BEGIN
    WITH stepped AS (
        UPDATE pgleases.schedules AS r
        SET cursor = $5, cursor_local = 'epoch'::pg_catalog.timestamp OPERATOR(pg_catalog.+) ($6 OPERATOR(pg_catalog.*) interval '1 microsecond'), due = coalesce($7, 'infinity'), succeeded = $5, ran_from = $8, ran_until = $9, trying = NULL, failures = 0,
            blocked_reason = NULL, blocked_since = CASE WHEN $7 OPERATOR(pg_catalog.<=) pgleases.schedule_clock() THEN r.blocked_since END
        WHERE r.id OPERATOR(pg_catalog.=) $1 AND r.revision OPERATOR(pg_catalog.=) $3 AND r.cursor OPERATOR(pg_catalog.=) $4
            AND pg_catalog.current_setting('schedule.run', true) OPERATOR(pg_catalog.=) $2
        RETURNING r.id, r.group_name, r.name, r.kind
    )
    INSERT INTO pgleases.history (schedule, group_name, name, kind, since, until, ticks, outcome, attempts, epoch, started_at, ended_at)
    SELECT s.id, s.group_name, s.name, s.kind, $4, $5, 1, 'succeeded', $10, $11, $12, pgleases.schedule_clock()
    FROM stepped AS s;
    IF NOT FOUND THEN -- it says why, or what is to be done
        PERFORM pgleases.schedule_close($1, $2, $3, $4, pg_catalog.jsonb_build_object(
            'cursor', $5, 'cursor_local',
            'epoch'::pg_catalog.timestamp OPERATOR(pg_catalog.+) ($6 OPERATOR(pg_catalog.*) interval '1 microsecond'), 'due', $7, 'succeeded',
            $5, 'ran_from', $8, 'ran_until', $9, 'failures', 0,
            'outcomes', pg_catalog.jsonb_build_array(pg_catalog.jsonb_build_object('since', $4, 'until', $5, 'ticks', 1, 'outcome',
            'succeeded', 'attempts', $10, 'epoch', $11, 'started_at', $12))));
    END IF;
END
$pgleases_body$;

CREATE OR REPLACE FUNCTION pgleases.schedule_job_outcomes(j pgleases.jobs, outcomes pg_catalog.jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    INSERT INTO pgleases.history (schedule, job, group_name, name, kind, since, until, ticks, outcome, error, attempts, epoch, started_at, ended_at, again)
    SELECT 0, j.id, j.group_name, j.name, j.kind, coalesce(f.until, j.at), coalesce(f.until, j.at), 1, f.outcome, f.error, coalesce(f.attempts, 0), f.epoch, f.started_at, pgleases.schedule_clock(),
           CASE WHEN f.outcome <> 'succeeded' THEN jsonb_build_object('key', coalesce(f.key, j.key), 'args', coalesce(f.args, j.args), 'priority',
           j.priority, 'unique_key', j.unique_key, 'begins', j.begins) END
    FROM jsonb_to_recordset($2) AS f (until timestamptz, key text, args jsonb, outcome text, error text, attempts int, epoch bigint, started_at timestamptz);
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_job_outcomes(pgleases.jobs, pg_catalog.jsonb) IS 'Writes down what became of a job.';

CREATE OR REPLACE FUNCTION pgleases.schedule_close_job(job bigint, run pg_catalog.text, revision bigint, step pg_catalog.jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $pgleases_body$
DECLARE
    j     pgleases.jobs;
    t     pgleases.jobs;
    outcomes CONSTANT jsonb := $4 -> 'outcomes';
BEGIN
    IF current_setting('schedule.run', true) IS DISTINCT FROM $2 THEN
        RAISE EXCEPTION 'the handler ended the transaction that it was given, or changed its setting schedule.run' USING ERRCODE = 'PS003';
    END IF;
    SELECT * INTO j FROM pgleases.jobs AS r WHERE r.id = $1 FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'job % was canceled, or has ended', $1 USING ERRCODE = 'PS001';
    END IF;
    IF j.revision = $3 AND jsonb_array_length(outcomes) > 0 THEN
        DELETE FROM pgleases.jobs AS r WHERE r.id = $1;
    ELSIF j.revision = $3 THEN
        t := jsonb_populate_record(NULL::pgleases.jobs, $4);
        UPDATE pgleases.jobs AS r SET due = coalesce(t.due, 'infinity'), trying = t.trying, blocked_reason = t.blocked_reason,
            blocked_since = CASE WHEN t.blocked_reason IS NOT NULL THEN coalesce(r.blocked_since, pgleases.schedule_clock()) END
        WHERE r.id = $1;
    END IF; -- else it was replaced: what ran was the one before, and this one is to run
    PERFORM pgleases.schedule_job_outcomes(j, outcomes);
END
$pgleases_body$;

CREATE OR REPLACE FUNCTION pgleases.schedule_done_job(job bigint, run pg_catalog.text, revision bigint, attempts int, epoch bigint,
    began_us bigint, at pg_catalog.timestamptz) RETURNS void
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET jit = off AS $pgleases_body$
BEGIN
    WITH ended AS (
        DELETE FROM pgleases.jobs AS r
        WHERE r.id OPERATOR(pg_catalog.=) $1 AND r.revision OPERATOR(pg_catalog.=) $3 AND pg_catalog.current_setting('schedule.run', true) OPERATOR(pg_catalog.=) $2
        RETURNING r.id, r.group_name, r.name, r.kind, r.at
    )
    INSERT INTO pgleases.history (schedule, job, group_name, name, kind, since, until, ticks, outcome, attempts, epoch, started_at, ended_at)
    SELECT 0, e.id, e.group_name, e.name, e.kind, e.at, e.at, 1, 'succeeded', $4, $5,
        'epoch'::pg_catalog.timestamptz OPERATOR(pg_catalog.+) ($6 OPERATOR(pg_catalog.*) interval '1 microsecond'),
        pgleases.schedule_clock()
    FROM ended AS e;
    IF NOT FOUND THEN -- it says why, or what is to be done
        PERFORM pgleases.schedule_close_job($1, $2, $3, pg_catalog.jsonb_build_object('outcomes', pg_catalog.jsonb_build_array(pg_catalog.jsonb_build_object(
            'until', $7, 'outcome', 'succeeded', 'attempts', $4, 'epoch', $5, 'started_at',
            'epoch'::pg_catalog.timestamptz OPERATOR(pg_catalog.+) ($6 OPERATOR(pg_catalog.*) interval '1 microsecond')))));
    END IF;
END
$pgleases_body$;

CREATE OR REPLACE FUNCTION pgleases.schedule_enqueue(of_group pg_catalog.text, partitions int, jobs pg_catalog.jsonb, taken pg_catalog.text, OUT ids bigint[])
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $pgleases_body$
DECLARE
    now   CONSTANT timestamptz := pgleases.schedule_clock();
    parts CONSTANT int := coalesce((SELECT g.partitions FROM pgleases.schedule_groups AS g WHERE g.name = $1), $2);
    due   timestamptz; -- the first
BEGIN
    LOOP
        WITH made AS (
            INSERT INTO pgleases.jobs AS j (group_name, key, partition, kind, name, trigger, begins, unique_key, args, priority, at, due)
            SELECT $1, w.key, pgleases.partition_for(w.key, parts), w.kind, coalesce(w.name, w.unique_key, ''), w.trigger,
                w.begins, w.unique_key, coalesce(w.args, 'null'), w.priority, t.at,
                   greatest(t.at, now + w.n * interval '1 microsecond') -- in their order
            FROM ROWS FROM (jsonb_to_recordset($3) AS (key text, kind text, name text, trigger text, begins timestamptz,
                unique_key text, args jsonb, priority int, at timestamptz, in_us bigint))
                 WITH ORDINALITY AS w (key, kind, name, trigger, begins, unique_key, args, priority, at, in_us, n),
                 LATERAL (SELECT coalesce(w.at, now + coalesce(w.in_us, 0) * interval '1 microsecond')) AS t (at)
            ORDER BY w.n
            ON CONFLICT (group_name, kind, unique_key) WHERE unique_key IS NOT NULL DO NOTHING -- which locks no job that is there: its run may end
            RETURNING j.id, j.due
        )
        SELECT array_agg(m.id ORDER BY m.id), min(m.due) INTO ids, due FROM made AS m;
        EXIT WHEN ids IS NOT NULL OR jsonb_array_length($3) = 0 OR $4 IN ('reject', 'skip');
        IF $4 = 'replace' THEN
            UPDATE pgleases.jobs AS j
            SET key = w.key, partition = pgleases.partition_for(w.key, parts), args = coalesce(w.args, 'null'),
                priority = w.priority, at = t.at, due = greatest(t.at, now),
                revision = j.revision + 1, trying = NULL, blocked_reason = NULL, blocked_since = NULL
            FROM jsonb_to_recordset($3) AS w (key text, kind text, unique_key text, args jsonb, priority int, at timestamptz, in_us bigint),
                 LATERAL (SELECT coalesce(w.at, now + coalesce(w.in_us, 0) * interval '1 microsecond')) AS t (at)
            WHERE j.group_name = $1 AND j.kind = w.kind AND j.unique_key = w.unique_key
            RETURNING ARRAY[j.id], j.due INTO ids, due;
        ELSE
            SELECT array_agg(j.id) INTO ids FROM pgleases.jobs AS j
            WHERE j.group_name = $1 AND j.kind = $3 -> 0 ->> 'kind' AND j.unique_key = $3 -> 0 ->> 'unique_key';
        END IF;
        EXIT WHEN ids IS NOT NULL; -- else it has ended meanwhile
    END LOOP;
    IF due < now + interval '1 second' AND coalesce($3 -> 0 ->> 'quiet', '') <> 'true' THEN
        PERFORM pgleases.schedule_tell($1);
    END IF;
END
$pgleases_body$;

CREATE OR REPLACE FUNCTION pgleases.schedule_job(group_name pg_catalog.text, job bigint) RETURNS pg_catalog.jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' AS $pgleases_body$
BEGIN
    RETURN coalesce((SELECT to_jsonb(j) || jsonb_build_object('due', nullif(j.due, 'infinity')) FROM pgleases.jobs_status AS j
        WHERE j.group_name = $1 AND j.id = $2),
                    (SELECT to_jsonb(h) || jsonb_build_object('id', h.job, 'at', h.until) FROM pgleases.history AS h
                    WHERE h.group_name = $1 AND h.job = $2 ORDER BY h.id DESC LIMIT 1));
END
$pgleases_body$;

CREATE OR REPLACE FUNCTION pgleases.schedule_jobs(group_name pg_catalog.text, kind pg_catalog.text, prefix pg_catalog.text,
    state pg_catalog.text, after bigint, most int) RETURNS SETOF pg_catalog.jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' AS $pgleases_body$
BEGIN
    RETURN QUERY SELECT to_jsonb(j) || jsonb_build_object('due', nullif(j.due, 'infinity')) FROM pgleases.jobs_status AS j
    WHERE j.group_name = $1 AND (j.kind = $2 OR $2 = '') AND starts_with(j.name, $3) AND (j.state = $4 OR $4 = '') AND j.id > $5 ORDER BY j.id LIMIT $6;
END
$pgleases_body$;

-- The entry is locked until the end of the transaction: so of two who retry it at once, one does.
CREATE OR REPLACE FUNCTION pgleases.schedule_retry(of_group pg_catalog.text, name pg_catalog.text, tick pg_catalog.timestamptz, job bigint, OUT retry bigint)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' AS $pgleases_body$
DECLARE
    what CONSTANT text := CASE WHEN $4 IS NOT NULL THEN format('job %s', $4) ELSE format('tick %s of schedule "%s"', $3, $2) END;
    h    pgleases.history;
    w    jsonb;
BEGIN
    IF $4 IS NOT NULL THEN
        SELECT * INTO h FROM pgleases.history AS r WHERE r.group_name = $1 AND r.job = $4 ORDER BY r.id DESC LIMIT 1 FOR UPDATE;
        w := h.again || jsonb_build_object('kind', h.kind, 'name', h.name, 'at', h.until);
    ELSE
        SELECT * INTO h FROM pgleases.history AS r WHERE r.group_name = $1 AND r.name = $2 AND r.job IS NULL
            AND r.until = $3 ORDER BY r.id DESC LIMIT 1 FOR UPDATE;
        SELECT jsonb_build_object('kind', s.kind, 'name', s.name, 'key', s.key, 'args', s.args, 'priority', 1, 'at', h.until, 'begins', coalesce(
                   (SELECT max(r.until) FROM pgleases.history AS r
                   WHERE r.group_name = $1 AND r.name = $2 AND r.schedule = s.id AND r.outcome = 'succeeded' AND r.until <= h.since), h.since))
        INTO w FROM pgleases.schedules AS s WHERE s.id = h.schedule;
    END IF;
    IF h.id IS NULL THEN
        IF EXISTS (SELECT FROM pgleases.jobs AS r WHERE r.group_name = $1 AND r.id = $4) THEN
            RAISE EXCEPTION '% has not ended', what
                USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'It is tried again by itself, or waits: jobs_status tells.';
        END IF;
        RAISE EXCEPTION '% is not in the history of group "%"', what, $1
            USING ERRCODE = 'undefined_object', HINT = 'A tick is named by its instant, as until in the history. What ended long ago is forgotten.';
    END IF;
    IF NOT (h.outcome IN ('failed', 'unknown') OR h.outcome = 'canceled' AND h.job IS NOT NULL) THEN
        RAISE EXCEPTION '% has outcome %', what, h.outcome
            USING ERRCODE = 'object_not_in_prerequisite_state',
                HINT = 'To be retried, a tick failed or is unknown, and so did a job, or it was canceled. Ticks that were passed over, and those that succeeded, can be backfilled.';
    END IF;
    IF h.retried IS NOT NULL THEN
        RAISE EXCEPTION '% was retried, as job %', what, h.retried
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'See what became of that job. If it failed too, retry it.';
    END IF;
    IF w IS NULL THEN
        RAISE EXCEPTION '% cannot be retried: its schedule was deleted', what USING ERRCODE = 'undefined_object',
            HINT = 'Nobody knows any more what it would be run with.';
    END IF;
    retry := (pgleases.schedule_enqueue($1, 1, jsonb_build_array(w || '{"trigger": "retry"}'), 'reject'::text))[1];
    IF retry IS NULL THEN
        RAISE EXCEPTION '% cannot be retried: there is a living job of kind "%" with its unique key "%"', what, h.kind, w ->> 'unique_key'
            USING ERRCODE = 'unique_violation', HINT = 'That job does its work. If it does not, cancel it first.';
    END IF;
    UPDATE pgleases.history AS r SET retried = retry WHERE r.id = h.id;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_retry(pg_catalog.text, pg_catalog.text, pg_catalog.timestamptz, bigint) IS 'Runs a tick or a job that failed once more, as a job.';

CREATE OR REPLACE FUNCTION pgleases.schedule_get(group_name pg_catalog.text, name pg_catalog.text, edit boolean, args pg_catalog.jsonb,
    OUT clock_us bigint, OUT answer pg_catalog.jsonb, OUT same boolean)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    clock_us := (extract(epoch FROM pgleases.schedule_clock()) * 1000000)::bigint;
    WHILE $3 LOOP
        PERFORM FROM pgleases.schedules AS s WHERE s.group_name = $1 AND s.name = $2 FOR UPDATE;
        -- else another of the name was made while it waited
        EXIT WHEN FOUND OR NOT EXISTS (SELECT FROM pgleases.schedules AS s WHERE s.group_name = $1 AND s.name = $2);
    END LOOP;
    SELECT pgleases.schedule_json(s), s.args = $4 INTO answer, same FROM pgleases.schedules AS s WHERE s.group_name = $1 AND s.name = $2;
    same := coalesce(same, false);
END
$pgleases_body$;

CREATE OR REPLACE FUNCTION pgleases.schedule_put(group_name pg_catalog.text, partitions int, schedule pg_catalog.jsonb, outcomes pg_catalog.jsonb) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    s   pgleases.schedules := jsonb_populate_record(NULL::pgleases.schedules, $3);
    now CONSTANT timestamptz := pgleases.schedule_clock();
BEGIN
    IF s.due < now + interval '1 second' THEN
        PERFORM pgleases.schedule_tell($1);
    END IF;
    s.group_name := $1;
    s.partition := pgleases.partition_for(s.key, coalesce((SELECT g.partitions FROM pgleases.schedule_groups AS g WHERE g.name = $1), $2));
    s.due := greatest(coalesce(s.due, 'infinity'), now); -- what has been due for long is not looked for each time
    s.args := coalesce(s.args, 'null'); -- that of JSON comes as that of SQL
    IF s.id = 0 THEN
        INSERT INTO pgleases.schedules AS t (group_name, name, key, partition, kind, args, rule, anchor, policy, declared, cursor, due, revision, registered)
        VALUES (s.group_name, s.name, s.key, s.partition, s.kind, s.args, s.rule, s.anchor, s.policy, s.declared, s.cursor, s.due, 1, s.registered)
        ON CONFLICT DO NOTHING; -- a schedule of this name was made meanwhile
    ELSE
        UPDATE pgleases.schedules AS t
        SET key = s.key, partition = s.partition, kind = s.kind, args = s.args, rule = s.rule, anchor = s.anchor, policy = s.policy, declared = s.declared,
            cursor = s.cursor, cursor_local = s.cursor_local, due = s.due, trying = s.trying, failures = s.failures,
            revision = s.revision, paused_at = s.paused_at, blocked_reason = s.blocked_reason, blocked_since = s.blocked_since, registered = s.registered
        WHERE t.id = s.id;
        PERFORM pgleases.schedule_outcomes(s, $4);
    END IF;
    RETURN FOUND OR s.id <> 0;
END
$pgleases_body$;

CREATE OR REPLACE FUNCTION pgleases.schedule_declare(group_name pg_catalog.text, names pg_catalog.text[]) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    UPDATE pgleases.schedules AS s SET registered = pgleases.schedule_clock()
    WHERE s.id IN (SELECT d.id FROM pgleases.schedules AS d
                   WHERE d.group_name = $1 AND d.name = ANY ($2) AND d.declared AND d.registered < pgleases.schedule_clock() - interval '1 day'
                   FOR NO KEY UPDATE SKIP LOCKED);
END
$pgleases_body$;

CREATE OR REPLACE FUNCTION pgleases.schedule_list(group_name pg_catalog.text, prefix pg_catalog.text, after pg_catalog.text,
    most int) RETURNS SETOF pg_catalog.jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    s pgleases.schedules;
BEGIN
    FOR s IN SELECT * FROM pgleases.schedules AS r WHERE r.group_name = $1 AND r.name >= $2 AND r.name > $3 ORDER BY r.name LIMIT $4 LOOP
        EXIT WHEN NOT starts_with(s.name, $2); -- as a condition it would have all that follow be read
        RETURN NEXT pgleases.schedule_json(s);
    END LOOP;
END
$pgleases_body$;

CREATE OR REPLACE FUNCTION pgleases.schedule_history(group_name pg_catalog.text, name pg_catalog.text, before bigint, most int) RETURNS SETOF pg_catalog.jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' AS $pgleases_body$
BEGIN
    RETURN QUERY SELECT to_jsonb(h) FROM pgleases.history AS h
    WHERE h.group_name = $1 AND h.name = $2 AND h.id < $3 ORDER BY h.id DESC LIMIT $4;
END
$pgleases_body$;

CREATE OR REPLACE FUNCTION pgleases.schedule_trim(group_name pg_catalog.text, failed boolean, before pg_catalog.timestamptz, after bigint, most int,
    OUT up_to bigint, OUT more boolean)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    kept  bigint; -- the first entry that is too new
    last  bigint;
    found bigint;
BEGIN
    -- What was written while the clock was far ahead stops nothing.
    SELECT min(h.id) FILTER (WHERE h.ended_at >= $3 AND h.ended_at < pgleases.schedule_clock() + (pgleases.schedule_clock() - $3)),
        max(h.id), count(*) INTO kept, last, found
    FROM (SELECT p.id, p.ended_at FROM pgleases.history AS p WHERE p.id > $4 ORDER BY p.id LIMIT $5) AS h;
    up_to := coalesce(kept - 1, last, $4);
    more := kept IS NULL AND found = $5;
    DELETE FROM pgleases.history AS h WHERE h.id > $4 AND h.id <= up_to AND h.ended_at < $3 AND h.group_name = $1 AND (h.outcome IN ('failed', 'unknown')) = $2;
    IF $2 THEN
        DELETE FROM pgleases.schedule_changes AS q
        WHERE q.id IN (SELECT r.id FROM pgleases.schedule_changes AS r WHERE r.group_name = $1 AND r.at < $3 ORDER BY r.at LIMIT $5);
    END IF;
END
$pgleases_body$;

CREATE OR REPLACE FUNCTION pgleases.schedule_make_slots(group_name pg_catalog.text, kind pg_catalog.text, most int) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    INSERT INTO pgleases.schedule_slots (group_name, kind, slot) SELECT $1, $2, n FROM generate_series(0, $3 - 1) AS n ON CONFLICT DO NOTHING;
END
$pgleases_body$;

CREATE OR REPLACE FUNCTION pgleases.schedule_take(group_name pg_catalog.text, kind pg_catalog.text, most int,
    partition int, epoch bigint, run pg_catalog.text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    first CONSTANT int := floor(random() * $3)::int; -- so that not all try the same
    taken int;
BEGIN
    FOR half IN 1..2 LOOP
        SELECT s.slot INTO taken FROM pgleases.schedule_slots AS s
        WHERE s.group_name = $1 AND s.kind = $2 AND s.slot >= CASE half WHEN 1 THEN first ELSE 0 END AND s.slot < CASE half WHEN 1 THEN $3 ELSE first END
          AND (s.run IS NULL OR NOT EXISTS (SELECT FROM pgleases.partitions AS p JOIN pgleases.clients AS c ON c.session = p.owner AND c.incarnation >= 0
                                            WHERE p.lease = 'schedule/' || $1 AND p.partition = s.partition AND p.epoch = s.epoch))
        ORDER BY s.slot LIMIT 1 FOR UPDATE OF s SKIP LOCKED;
        EXIT WHEN taken IS NOT NULL;
    END LOOP;
    IF taken IS NULL THEN
        RETURN false;
    END IF;
    IF $6 IS NOT NULL THEN
        UPDATE pgleases.schedule_slots AS s SET partition = $4, epoch = $5, run = $6 WHERE s.group_name = $1 AND s.kind = $2 AND s.slot = taken;
    END IF;
    RETURN true;
END
$pgleases_body$;

CREATE OR REPLACE FUNCTION pgleases.schedule_free(group_name pg_catalog.text, kind pg_catalog.text, run pg_catalog.text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    UPDATE pgleases.schedule_slots AS s SET partition = NULL, epoch = NULL, run = NULL WHERE s.group_name = $1 AND s.kind = $2 AND s.run = $3;
END
$pgleases_body$;

-- What changes schedules and jobs, for the methods of a Scheduler. SQL knows no rules: where the ticks of one are needed, the first call locks
-- the schedule and returns it in asks, and the second has in seen what its rule says, in the same transaction.
CREATE OR REPLACE FUNCTION pgleases.schedule_edit(
    verb pg_catalog.text, of_group pg_catalog.text, of_name pg_catalog.text, what pg_catalog.jsonb, why pg_catalog.text,
    OUT asks pg_catalog.jsonb, OUT ids bigint[], OUT refused int, OUT done boolean, OUT schedule bigint, OUT name pg_catalog.text)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' AS $pgleases_body$
DECLARE
    now    CONSTANT timestamptz := pgleases.schedule_clock();
    of_job CONSTANT bigint := ($4 ->> 'job')::bigint;
    late   CONSTANT boolean := $1 = 'resume' AND coalesce(($4 ->> 'catch_up')::boolean, false); -- what has passed is not canceled
    seen   CONSTANT jsonb := CASE WHEN NOT late THEN $4 -> 'seen' END;
    until  CONSTANT timestamptz := (seen ->> 'until')::timestamptz;
    outcomes  jsonb := '[]';
    s      pgleases.schedules;
    j      pgleases.jobs;
    h      record;
BEGIN
    ids := '{}';
    IF ($3 IS NULL) <> ($1 IN ('cancel', 'retry_failed') OR of_job IS NOT NULL) THEN
        RAISE EXCEPTION '% is of a schedule, or of jobs', $1 USING ERRCODE = 'invalid_parameter_value';
    END IF;
    name := coalesce($3, (SELECT r.name FROM pgleases.jobs AS r WHERE r.group_name = $2 AND r.id = of_job),
                     (SELECT r.name FROM pgleases.history AS r WHERE r.group_name = $2 AND r.job = of_job ORDER BY r.id DESC LIMIT 1), '');
    IF $3 IS NOT NULL THEN
        PERFORM pgleases.schedule_get($2, $3, $1 IN ('pause', 'resume', 'delete'), NULL::jsonb); -- which locks it
        SELECT * INTO s FROM pgleases.schedules AS r WHERE r.group_name = $2 AND r.name = $3;
        IF s.id IS NULL AND $1 <> 'retry' THEN
            RAISE EXCEPTION 'group "%" has no schedule "%"', $2, $3 USING ERRCODE = 'undefined_object';
        ELSIF s.id <> ($4 ->> 'id')::bigint THEN
            RAISE EXCEPTION 'schedule "%" of group "%" is not the one that was seen: that was deleted, and another was made', $3, $2
                USING ERRCODE = 'undefined_object';
        END IF;
        schedule := s.id;
    END IF;
    done := CASE $1 WHEN 'pause' THEN s.paused_at IS NULL WHEN 'resume' THEN s.paused_at IS NOT NULL ELSE true END;
    IF done AND seen IS NULL AND ($1 IN ('delete', 'backfill') OR $1 = 'resume' AND NOT late) THEN
        asks := pgleases.schedule_json(s);
        done := false;
    END IF;
    IF NOT done THEN
        RETURN;
    END IF;
    CASE $1
    WHEN 'pause' THEN
        UPDATE pgleases.schedules AS r SET paused_at = now, due = 'infinity', revision = r.revision + 1 WHERE r.id = s.id;
    WHEN 'resume', 'delete' THEN
        IF NOT late AND (until BETWEEN s.cursor AND greatest(s.cursor, now) AND (seen ->> 'ticks')::bigint >= 0) IS NOT TRUE THEN
            RAISE EXCEPTION 'the ticks of schedule "%" until % cannot be canceled: it has come as far as %', $3, coalesce(until::text, 'null'), s.cursor
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
        IF (seen ->> 'ticks')::bigint > 0 THEN
            outcomes := jsonb_build_array(jsonb_build_object('since', s.cursor, 'until', until, 'ticks', seen -> 'ticks', 'outcome', 'canceled'));
        END IF;
        IF $1 = 'delete' THEN
            DELETE FROM pgleases.schedules AS r WHERE r.id = s.id;
        ELSE
            UPDATE pgleases.schedules AS r
            SET paused_at = NULL, failures = 0, due = now, revision = r.revision + 1, cursor = coalesce(until, r.cursor),
                cursor_local = CASE WHEN late OR until = r.cursor THEN r.cursor_local END, trying = CASE WHEN late THEN r.trying END
            WHERE r.id = s.id;
            PERFORM pgleases.schedule_tell($2);
        END IF;
        PERFORM pgleases.schedule_outcomes(s, outcomes);
    WHEN 'trigger' THEN
        ids := pgleases.schedule_enqueue($2, 1, jsonb_build_array(jsonb_build_object(
            'kind', s.kind, 'trigger', 'manual', 'name', s.name, 'key', s.key, 'args', s.args, 'priority', 1)), 'skip'::text);
    WHEN 'backfill' THEN
        IF jsonb_array_length(seen) > 1000 OR EXISTS (SELECT FROM jsonb_to_recordset(seen) AS t (at timestamptz) WHERE (t.at <= s.cursor) IS NOT TRUE) THEN
            RAISE EXCEPTION 'these ticks of schedule "%" are more than 1000, or not all past: it has come as far as %', $3, s.cursor
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
        ids := coalesce(pgleases.schedule_enqueue($2, 1, (
            SELECT jsonb_agg(jsonb_build_object('kind', s.kind, 'trigger', 'backfill', 'name', s.name, 'key', s.key, 'args', s.args, 'priority', 0,
                                                'begins', t.begins, 'at', t.at, 'unique_key', format('backfill %s %s', s.id, t.at)) ORDER BY t.at)
            FROM jsonb_to_recordset(seen) AS t (begins timestamptz, at timestamptz)), 'skip'::text), '{}');
    WHEN 'cancel' THEN
        DELETE FROM pgleases.jobs AS r WHERE r.group_name = $2 AND r.id = of_job RETURNING * INTO j;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'group "%" has no job %, or it has ended', $2, of_job USING ERRCODE = 'undefined_object';
        END IF;
        PERFORM pgleases.schedule_job_outcomes(j, jsonb_build_array(jsonb_build_object('outcome', 'canceled', 'attempts', j.trying -> 'attempts',
            'error', coalesce($5, j.trying ->> 'error'))));
        ids := ARRAY[of_job];
    WHEN 'retry' THEN
        ids := ARRAY[pgleases.schedule_retry($2, $3, ($4 ->> 'tick')::timestamptz, of_job)];
    WHEN 'retry_failed' THEN
        refused := 0;
        FOR h IN SELECT r.name, r.until, r.job FROM pgleases.history AS r
                 WHERE r.group_name = $2 AND r.kind = $4 ->> 'kind' AND r.outcome IN ('failed', 'unknown') AND r.retried IS NULL
                   AND r.ended_at >= ($4 ->> 'since')::timestamptz ORDER BY r.id LIMIT 10000 LOOP
            BEGIN
                ids := ids || pgleases.schedule_retry($2, h.name, h.until, h.job);
            EXCEPTION WHEN undefined_object OR object_not_in_prerequisite_state OR unique_violation THEN
                refused := refused + 1;
            END;
        END LOOP;
    END CASE;
END
$pgleases_body$;

-- For operators: it runs with the rights of its owner, so they need none on the tables, and session_user stays who it is. PUBLIC may not execute it.
CREATE OR REPLACE FUNCTION pgleases.schedule_change(
    verb pg_catalog.text, of_group pg_catalog.text, of_name pg_catalog.text, what pg_catalog.jsonb, actor pg_catalog.text,
    reason pg_catalog.text, OUT asks pg_catalog.jsonb, OUT ids bigint[], OUT refused int)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    who CONSTANT text := pgleases.operator($1, $5, $6);
    e   record;
BEGIN
    PERFORM set_config('idle_in_transaction_session_timeout', '4000', true); -- less than the ends of runs wait for what it locks
    SELECT * INTO e FROM pgleases.schedule_edit($1, $2, $3, $4, who || ': ' || $6);
    asks := e.asks;
    ids := e.ids;
    refused := e.refused;
    IF e.done THEN
        INSERT INTO pgleases.schedule_changes (at, verb, group_name, name, schedule, job, args, actor, reason)
        VALUES (pgleases.schedule_clock(), $1, $2, e.name, e.schedule, CASE WHEN cardinality(ids) = 1 AND refused IS NULL THEN ids[1] END,
                $4 - '{id,seen}'::text[] || CASE WHEN refused IS NULL THEN '{}' ELSE jsonb_build_object('retried', cardinality(ids), 'refused', refused) END,
                who, $6);
    END IF;
END
$pgleases_body$;
REVOKE EXECUTE ON FUNCTION pgleases.schedule_change FROM PUBLIC;

-- Last, after all tables and functions: without its version the part counts as missing.
INSERT INTO pgleases.schedule_version AS v (version, min_code) VALUES (1, 1)
ON CONFLICT ((true)) DO UPDATE SET version = EXCLUDED.version, min_code = EXCLUDED.min_code WHERE v.version OPERATOR(pg_catalog.<) EXCLUDED.version;
