-- functions.sql: the functions of package schedule, then the version. It runs after schema.sql. Idempotent: functions are replaced.
--
-- They run in transactions of the application's too, under any search_path: so each sets its own, or names all with its schema. Jobs are
-- often none, and then many: a plan that is kept was made when the table was empty, so in what runs for each job, and in looks, it must not
-- read the whole of it (enable_seqscan). What has no index, as the one row of pgleases.server, then seems to cost so much that the server
-- would compile each plan that reads it, for 0.2 s and more (jit).
--
-- Schedules and fates come and go as JSON, in which a time is the same under all settings of a session.

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
                       WHERE w.group_name = $1 AND w.partition = ANY ($3) AND w.waits IS NOT NULL
                           AND w.paused_at IS NULL AND w.disabled_at IS NULL AND w.due > now
                       LIMIT 1000 FOR UPDATE SKIP LOCKED);
        UPDATE pgleases.jobs AS j SET due = now
        WHERE j.id IN (SELECT w.id FROM pgleases.jobs AS w
                       WHERE w.group_name = $1 AND w.partition = ANY ($3) AND w.waits IS NOT NULL AND w.due > now
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
COMMENT ON FUNCTION pgleases.schedule_look(pg_catalog.text, int[], int[], bigint, bigint, int, pg_catalog.text[], pg_catalog.text[]) IS 'What is due soon. See look.sql.';

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
COMMENT ON FUNCTION pgleases.schedule_begin(pg_catalog.text, int, bigint, int) IS 'Notes that an owner begins to run something. See begin.sql.';

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
COMMENT ON FUNCTION pgleases.schedule_end(pg_catalog.text, int, bigint, bigint[], bigint[], int) IS 'Notes that all that an owner ran has ended. See end.sql.';

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

-- A run is opened in one statement with its guard, and without JSON: each thing more costs it some microseconds. So would a search_path,
-- here and in what ends most runs: all is named with its schema. The lock only shows that it runs, see schedule_runs.
CREATE OR REPLACE FUNCTION pgleases.schedule_open_tick(lease pg_catalog.text, number int, epoch bigint, schedule bigint,
    run pg_catalog.text, timeout_ms int, idle_ms int, lock_ms int)
RETURNS TABLE (settings pg_catalog.text, name pg_catalog.text, key pg_catalog.text, partition int, kind pg_catalog.text,
    args pg_catalog.text, rule pg_catalog.text, policy pg_catalog.text, declared boolean, trying pg_catalog.text, failures int,
    revision bigint,
    waits pg_catalog.text, nonce pg_catalog.text, anchor_us bigint, cursor_us bigint, cursor_local_us bigint, due_us bigint,
    done_us bigint, ran_from_us bigint, ran_until_us bigint, paused_at_us bigint, waits_since_us bigint, registered_us bigint,
    disabled_at_us bigint, clock_us bigint)
LANGUAGE plpgsql VOLATILE ROWS 1 SET enable_seqscan = off SET jit = off AS $pgleases_body$
DECLARE
    guarded CONSTANT pg_catalog.text := pgleases.guard($1, $2, $3); -- what is read below is read after it has its lock
BEGIN
    RETURN QUERY
    SELECT pg_catalog.concat(pg_catalog.set_config('schedule.run', $5, true), pg_catalog.set_config('statement_timeout', $6::pg_catalog.text, true),
                             pg_catalog.set_config('idle_in_transaction_session_timeout', $7::pg_catalog.text, true),
                             pg_catalog.set_config('lock_timeout', $8::pg_catalog.text, true),
                             pg_catalog.set_config('client_connection_check_interval', pgleases.schedule_check_interval(), true)),
           s.name::pg_catalog.text, s.key::pg_catalog.text, s.partition, s.kind::pg_catalog.text, s.args::pg_catalog.text,
           s.rule, s.policy::pg_catalog.text, s.declared, s.trying::pg_catalog.text, s.failures, s.revision,
           s.waits, s.nonce::pg_catalog.text,
           (extract(epoch FROM s.anchor) OPERATOR(pg_catalog.*) 1000000)::bigint, (extract(epoch FROM s.cursor) OPERATOR(pg_catalog.*) 1000000)::bigint,
           (extract(epoch FROM s.cursor_local) OPERATOR(pg_catalog.*) 1000000)::bigint,
           CASE WHEN s.due OPERATOR(pg_catalog.<) 'infinity' THEN (extract(epoch FROM s.due) OPERATOR(pg_catalog.*) 1000000)::bigint END,
           (extract(epoch FROM s.done) OPERATOR(pg_catalog.*) 1000000)::bigint, (extract(epoch FROM s.ran_from) OPERATOR(pg_catalog.*) 1000000)::bigint,
           (extract(epoch FROM s.ran_until) OPERATOR(pg_catalog.*) 1000000)::bigint, (extract(epoch FROM s.paused_at) OPERATOR(pg_catalog.*) 1000000)::bigint,
           (extract(epoch FROM s.waits_since) OPERATOR(pg_catalog.*) 1000000)::bigint,
           (extract(epoch FROM s.registered) OPERATOR(pg_catalog.*) 1000000)::bigint,
           (extract(epoch FROM s.disabled_at) OPERATOR(pg_catalog.*) 1000000)::bigint,
           (extract(epoch FROM pgleases.schedule_clock()) OPERATOR(pg_catalog.*) 1000000)::bigint
    FROM pgleases.schedules AS s
    WHERE s.id OPERATOR(pg_catalog.=) $4 AND pg_catalog.pg_try_advisory_xact_lock_shared(pg_catalog.hashint8extended(s.id, s.tableoid::bigint)) IS NOT NULL;
    IF NOT FOUND THEN -- what closes it says so; and the guard keeps the partition from others all the same, until the transaction ends
        PERFORM pg_catalog.set_config('schedule.run', $5, true), pg_catalog.set_config('idle_in_transaction_session_timeout', $7::pg_catalog.text, true);
    END IF;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_open_tick(pg_catalog.text, int, bigint, bigint, pg_catalog.text, int, int, int) IS 'Opens the run of a schedule in a transaction. See open.sql.';

CREATE OR REPLACE FUNCTION pgleases.schedule_open_job(lease pg_catalog.text, number int, epoch bigint, job bigint, run pg_catalog.text,
    timeout_ms int, idle_ms int, lock_ms int)
RETURNS TABLE (settings pg_catalog.text, name pg_catalog.text, key pg_catalog.text, partition int, kind pg_catalog.text,
    args pg_catalog.text, trigger pg_catalog.text, trying pg_catalog.text, revision bigint, waits pg_catalog.text, nonce pg_catalog.text,
    begins_us bigint, at_us bigint, due_us bigint, waits_since_us bigint, clock_us bigint)
LANGUAGE plpgsql VOLATILE ROWS 1 SET enable_seqscan = off SET jit = off AS $pgleases_body$
DECLARE
    guarded CONSTANT pg_catalog.text := pgleases.guard($1, $2, $3); -- what is read below is read after it has its lock
BEGIN
    RETURN QUERY
    SELECT pg_catalog.concat(pg_catalog.set_config('schedule.run', $5, true), pg_catalog.set_config('statement_timeout', $6::pg_catalog.text, true),
                             pg_catalog.set_config('idle_in_transaction_session_timeout', $7::pg_catalog.text, true),
                             pg_catalog.set_config('lock_timeout', $8::pg_catalog.text, true),
                             pg_catalog.set_config('client_connection_check_interval', pgleases.schedule_check_interval(), true)),
           j.name::pg_catalog.text, j.key::pg_catalog.text, j.partition, j.kind::pg_catalog.text, j.args::pg_catalog.text,
           j.trigger, j.trying::pg_catalog.text, j.revision, j.waits, j.nonce::pg_catalog.text,
           (extract(epoch FROM j.begins) OPERATOR(pg_catalog.*) 1000000)::bigint, (extract(epoch FROM j.at) OPERATOR(pg_catalog.*) 1000000)::bigint,
           CASE WHEN j.due OPERATOR(pg_catalog.<) 'infinity' THEN (extract(epoch FROM j.due) OPERATOR(pg_catalog.*) 1000000)::bigint END,
           (extract(epoch FROM j.waits_since) OPERATOR(pg_catalog.*) 1000000)::bigint,
           (extract(epoch FROM pgleases.schedule_clock()) OPERATOR(pg_catalog.*) 1000000)::bigint
    FROM pgleases.jobs AS j
    WHERE j.id OPERATOR(pg_catalog.=) $4 AND pg_catalog.pg_try_advisory_xact_lock_shared(pg_catalog.hashint8extended(j.id, j.tableoid::bigint)) IS NOT NULL;
    IF NOT FOUND THEN -- what closes it says so; and the guard keeps the partition from others all the same, until the transaction ends
        PERFORM pg_catalog.set_config('schedule.run', $5, true), pg_catalog.set_config('idle_in_transaction_session_timeout', $7::pg_catalog.text, true);
    END IF;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_open_job(pg_catalog.text, int, bigint, bigint, pg_catalog.text, int, int, int) IS 'Opens the run of a job in a transaction. See openjob.sql.';

CREATE OR REPLACE FUNCTION pgleases.schedule_fates(s pgleases.schedules, fates pg_catalog.jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    INSERT INTO pgleases.history (schedule, group_name, name, kind, since, until, ticks, fate, error, attempts, epoch, started_at, ended_at)
    SELECT s.id, s.group_name, s.name, s.kind, f.since, f.until, f.ticks, f.fate, f.error, coalesce(f.attempts, 0), f.epoch,
        f.started_at, pgleases.schedule_clock()
    FROM jsonb_to_recordset($2) AS f (since timestamptz, until timestamptz, ticks bigint, fate text, error text, attempts int,
        epoch bigint, started_at timestamptz)
    ORDER BY f.until;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_fates(pgleases.schedules, pg_catalog.jsonb) IS 'Writes down what became of ticks.';

-- Of a process that runs something: it has doubted a clock that steps. The server's own, where they agree: so all agree.
CREATE OR REPLACE FUNCTION pgleases.schedule_now(believed pg_catalog.timestamptz) RETURNS pg_catalog.timestamptz
LANGUAGE sql STABLE AS $pgleases_body$
    SELECT CASE WHEN $1 OPERATOR(pg_catalog.<) (pgleases.schedule_clock() OPERATOR(pg_catalog.-) interval '1 minute')
                  OR $1 OPERATOR(pg_catalog.>) (pgleases.schedule_clock() OPERATOR(pg_catalog.+) interval '1 minute')
                THEN $1 ELSE pgleases.schedule_clock() END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_now(pg_catalog.timestamptz) IS 'The server''s time, or, where that is off by more than a minute, what a process believes it to be.';

-- The row is locked here at the end of the run and not at its beginning: else an edit would wait for as long as the handler runs, and
-- handlers that put schedules would wait for each other.
CREATE OR REPLACE FUNCTION pgleases.schedule_close(schedule bigint, run pg_catalog.text, revision bigint,
    cursor_before pg_catalog.timestamptz, step pg_catalog.jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $pgleases_body$
DECLARE
    s     pgleases.schedules;
    t     pgleases.schedules := jsonb_populate_record(NULL::pgleases.schedules, $5);
    fates CONSTANT jsonb := $5 -> 'fates';
    total bigint;
    now   CONSTANT timestamptz := pgleases.schedule_now(($5 ->> 'now')::timestamptz);
    soon  CONSTANT timestamptz := least(now, pgleases.schedule_clock()); -- where one of both is wrong, a sweep finds it within a minute
BEGIN
    IF current_setting('schedule.run', true) IS DISTINCT FROM $2 THEN
        RAISE EXCEPTION 'the handler ended the transaction that it was given, or changed its setting schedule.run' USING ERRCODE = 'PS003';
    END IF;
    UPDATE pgleases.schedules AS r
    SET cursor = t.cursor, cursor_local = t.cursor_local, done = coalesce(t.done, r.done),
        ran_from = coalesce(t.ran_from, r.ran_from), ran_until = coalesce(t.ran_until, r.ran_until),
        trying = t.trying, failures = coalesce(t.failures, r.failures), paused_at = coalesce(r.paused_at, t.paused_at),
        disabled_at = coalesce(r.disabled_at, t.disabled_at),
        due = CASE WHEN r.revision <> $3 THEN soon ELSE coalesce(t.due, 'infinity') END, -- its owner looks what the edit made of it
        waits = t.waits, waits_since = CASE WHEN t.waits IS NOT NULL THEN coalesce(r.waits_since, now) WHEN t.due <= now THEN r.waits_since END -- it catches up
    WHERE r.id = $1 AND r.cursor = $4 RETURNING r.* INTO s;
    IF NOT FOUND THEN -- where an edit passed over these ticks while they ran, they have run all the same
        SELECT * INTO s FROM pgleases.schedules AS r WHERE r.id = $1 FOR NO KEY UPDATE;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'schedule % was deleted', $1 USING ERRCODE = 'PS001';
        END IF;
        total := (SELECT sum((f ->> 'ticks')::bigint) FROM jsonb_array_elements(fates) AS f);
        UPDATE pgleases.history AS h SET since = t.cursor, ticks = h.ticks - total
        WHERE h.schedule = $1 AND h.since = $4 AND h.until >= t.cursor AND h.fate = 'cancelled' AND h.ticks > total;
        IF NOT FOUND THEN
            DELETE FROM pgleases.history AS h
            WHERE h.schedule = $1 AND h.since = $4 AND h.until >= t.cursor AND h.fate = 'cancelled' AND h.ticks = total;
        END IF;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'schedule % has come as far as %, and the run began at %', $1, s.cursor, $4 USING ERRCODE = 'PS002';
        END IF;
        UPDATE pgleases.schedules AS r SET done = t.done WHERE r.id = $1 AND t.done > coalesce(r.done, '-infinity');
    END IF;
    IF jsonb_array_length(fates) > 0 THEN
        PERFORM pgleases.schedule_fates(s, fates);
    END IF;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_close(bigint, pg_catalog.text, bigint, pg_catalog.timestamptz, pg_catalog.jsonb) IS 'Steps a schedule''s cursor, and writes down what became of its ticks. See close.sql.';

CREATE OR REPLACE FUNCTION pgleases.schedule_done_tick(schedule bigint, run pg_catalog.text, revision bigint,
    cursor_before pg_catalog.timestamptz, tick pg_catalog.timestamptz, local_us bigint, due pg_catalog.timestamptz,
    ran_from pg_catalog.timestamptz, ran_until pg_catalog.timestamptz, attempts int, epoch bigint, started_at pg_catalog.timestamptz) RETURNS void
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET jit = off AS $pgleases_body$
BEGIN
    WITH stepped AS (
        UPDATE pgleases.schedules AS r
        SET cursor = $5, cursor_local = 'epoch'::pg_catalog.timestamp OPERATOR(pg_catalog.+) ($6 OPERATOR(pg_catalog.*) interval '1 microsecond'), due = coalesce($7, 'infinity'), done = $5, ran_from = $8, ran_until = $9, trying = NULL, failures = 0,
            waits = NULL, waits_since = CASE WHEN $7 OPERATOR(pg_catalog.<=) pgleases.schedule_now($9) THEN r.waits_since END
        WHERE r.id OPERATOR(pg_catalog.=) $1 AND r.revision OPERATOR(pg_catalog.=) $3 AND r.cursor OPERATOR(pg_catalog.=) $4
            AND pg_catalog.current_setting('schedule.run', true) OPERATOR(pg_catalog.=) $2
        RETURNING r.id, r.group_name, r.name, r.kind
    )
    INSERT INTO pgleases.history (schedule, group_name, name, kind, since, until, ticks, fate, attempts, epoch, started_at, ended_at)
    SELECT s.id, s.group_name, s.name, s.kind, $4, $5, 1, 'done', $10, $11, $12, pgleases.schedule_clock()
    FROM stepped AS s;
    IF NOT FOUND THEN -- it says why, or what is to be done
        PERFORM pgleases.schedule_close($1, $2, $3, $4, pg_catalog.jsonb_build_object(
            'cursor', $5, 'cursor_local',
            'epoch'::pg_catalog.timestamp OPERATOR(pg_catalog.+) ($6 OPERATOR(pg_catalog.*) interval '1 microsecond'), 'due', $7, 'done',
            $5, 'ran_from', $8, 'ran_until', $9, 'failures', 0, 'now', $9,
            'fates', pg_catalog.jsonb_build_array(pg_catalog.jsonb_build_object('since', $4, 'until', $5, 'ticks', 1, 'fate',
            'done', 'attempts', $10, 'epoch', $11, 'started_at', $12))));
    END IF;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_done_tick(bigint, pg_catalog.text, bigint, pg_catalog.timestamptz, pg_catalog.timestamptz, bigint, pg_catalog.timestamptz, pg_catalog.timestamptz, pg_catalog.timestamptz, int, bigint, pg_catalog.timestamptz) IS 'Steps a schedule''s cursor over a tick that is done. See done.sql.';

CREATE OR REPLACE FUNCTION pgleases.schedule_job_fates(j pgleases.jobs, fates pg_catalog.jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    INSERT INTO pgleases.history (schedule, job, group_name, name, kind, since, until, ticks, fate, error, attempts, epoch, started_at, ended_at, again)
    SELECT 0, j.id, j.group_name, j.name, j.kind, j.at, j.at, 1, f.fate, f.error, coalesce(f.attempts, 0), f.epoch, f.started_at, pgleases.schedule_clock(),
           CASE WHEN f.fate <> 'done' THEN jsonb_build_object('key', j.key, 'args', j.args, 'priority',
           j.priority, 'unique_key', j.unique_key, 'begins', j.begins) END
    FROM jsonb_to_recordset($2) AS f (fate text, error text, attempts int, epoch bigint, started_at timestamptz);
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_job_fates(pgleases.jobs, pg_catalog.jsonb) IS 'Writes down what became of a job.';

CREATE OR REPLACE FUNCTION pgleases.schedule_close_job(job bigint, run pg_catalog.text, revision bigint, step pg_catalog.jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $pgleases_body$
DECLARE
    j     pgleases.jobs;
    t     pgleases.jobs;
    fates CONSTANT jsonb := $4 -> 'fates';
    now   CONSTANT timestamptz := pgleases.schedule_now(($4 ->> 'now')::timestamptz);
BEGIN
    IF current_setting('schedule.run', true) IS DISTINCT FROM $2 THEN
        RAISE EXCEPTION 'the handler ended the transaction that it was given, or changed its setting schedule.run' USING ERRCODE = 'PS003';
    END IF;
    SELECT * INTO j FROM pgleases.jobs AS r WHERE r.id = $1 FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'job % was cancelled, or has ended', $1 USING ERRCODE = 'PS001';
    END IF;
    IF j.revision = $3 AND jsonb_array_length(fates) > 0 THEN
        DELETE FROM pgleases.jobs AS r WHERE r.id = $1;
    ELSIF j.revision = $3 THEN
        t := jsonb_populate_record(NULL::pgleases.jobs, $4);
        UPDATE pgleases.jobs AS r SET due = coalesce(t.due, 'infinity'), trying = t.trying, waits = t.waits,
            waits_since = CASE WHEN t.waits IS NOT NULL THEN coalesce(r.waits_since, now) END
        WHERE r.id = $1;
    END IF; -- else it was replaced: what ran was the one before, and this one is to run
    PERFORM pgleases.schedule_job_fates(j, fates);
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_close_job(bigint, pg_catalog.text, bigint, pg_catalog.jsonb) IS 'Ends the run of a job, and the job where it has its fate. See closejob.sql.';

CREATE OR REPLACE FUNCTION pgleases.schedule_done_job(job bigint, run pg_catalog.text, revision bigint, attempts int, epoch bigint,
    began_us bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET jit = off AS $pgleases_body$
BEGIN
    WITH ended AS (
        DELETE FROM pgleases.jobs AS r
        WHERE r.id OPERATOR(pg_catalog.=) $1 AND r.revision OPERATOR(pg_catalog.=) $3 AND pg_catalog.current_setting('schedule.run', true) OPERATOR(pg_catalog.=) $2
        RETURNING r.id, r.group_name, r.name, r.kind, r.at
    )
    INSERT INTO pgleases.history (schedule, job, group_name, name, kind, since, until, ticks, fate, attempts, epoch, started_at, ended_at)
    SELECT 0, e.id, e.group_name, e.name, e.kind, e.at, e.at, 1, 'done', $4, $5,
        'epoch'::pg_catalog.timestamptz OPERATOR(pg_catalog.+) ($6 OPERATOR(pg_catalog.*) interval '1 microsecond'),
        pgleases.schedule_clock()
    FROM ended AS e;
    IF NOT FOUND THEN -- it says why, or what is to be done
        PERFORM pgleases.schedule_close_job($1, $2, $3, pg_catalog.jsonb_build_object('fates', pg_catalog.jsonb_build_array(pg_catalog.jsonb_build_object(
            'fate', 'done', 'attempts', $4, 'epoch', $5, 'started_at',
            'epoch'::pg_catalog.timestamptz OPERATOR(pg_catalog.+) ($6 OPERATOR(pg_catalog.*) interval '1 microsecond')))));
    END IF;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_done_job(bigint, pg_catalog.text, bigint, int, bigint, bigint) IS 'Ends a job that is done, and its run. See donejob.sql.';

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
        EXIT WHEN ids IS NOT NULL OR jsonb_array_length($3) = 0 OR $4 IN ('raise', 'skip');
        IF $4 = 'replace' THEN
            UPDATE pgleases.jobs AS j
            SET key = w.key, partition = pgleases.partition_for(w.key, parts), args = coalesce(w.args, 'null'),
                priority = w.priority, at = t.at, due = greatest(t.at, now),
                revision = j.revision + 1, trying = NULL, waits = NULL, waits_since = NULL
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
COMMENT ON FUNCTION pgleases.schedule_enqueue(pg_catalog.text, int, pg_catalog.jsonb, pg_catalog.text) IS 'Puts jobs. See enqueue.sql.';

CREATE OR REPLACE FUNCTION pgleases.schedule_job(group_name pg_catalog.text, job bigint) RETURNS pg_catalog.jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' AS $pgleases_body$
BEGIN
    RETURN coalesce((SELECT to_jsonb(j) || jsonb_build_object('due', nullif(j.due, 'infinity')) FROM pgleases.jobs_status AS j
        WHERE j.group_name = $1 AND j.id = $2),
                    (SELECT jsonb_build_object('ended', to_jsonb(h)) FROM pgleases.history AS h
                    WHERE h.group_name = $1 AND h.job = $2 ORDER BY h.id DESC LIMIT 1));
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_job(pg_catalog.text, bigint) IS 'A job, or what became of it. See job.sql.';

CREATE OR REPLACE FUNCTION pgleases.schedule_jobs(group_name pg_catalog.text, kind pg_catalog.text, prefix pg_catalog.text,
    state pg_catalog.text, after bigint, most int) RETURNS SETOF pg_catalog.jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' AS $pgleases_body$
BEGIN
    RETURN QUERY SELECT to_jsonb(j) || jsonb_build_object('due', nullif(j.due, 'infinity')) FROM pgleases.jobs_status AS j
    WHERE j.group_name = $1 AND (j.kind = $2 OR $2 = '') AND starts_with(j.name, $3) AND (j.state = $4 OR $4 = '') AND j.id > $5 ORDER BY j.id LIMIT $6;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_jobs(pg_catalog.text, pg_catalog.text, pg_catalog.text, pg_catalog.text, bigint, int) IS 'Living jobs. See jobs.sql.';

CREATE OR REPLACE FUNCTION pgleases.schedule_cancel(group_name pg_catalog.text, job bigint, why pg_catalog.text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    j pgleases.jobs;
BEGIN
    DELETE FROM pgleases.jobs AS r WHERE r.group_name = $1 AND r.id = $2 RETURNING * INTO j;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM pgleases.schedule_job_fates(j, jsonb_build_array(jsonb_build_object('fate', 'cancelled', 'attempts', j.trying -> 'attempts',
        'error', coalesce($3, j.trying ->> 'error'))));
    UPDATE pgleases.schedule_requests AS q SET answered = pgleases.schedule_clock(), answer = 'taken back'
    WHERE j.trigger = 'request' AND q.id = (j.args ->> 'request')::bigint;
    RETURN true;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_cancel(pg_catalog.text, bigint, pg_catalog.text) IS 'Cancels a job. See cancel.sql.';

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
                   WHERE r.group_name = $1 AND r.name = $2 AND r.schedule = s.id AND r.fate = 'done' AND r.until <= h.since), h.since))
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
    IF NOT (h.fate IN ('dead', 'lost') OR h.fate = 'cancelled' AND h.job IS NOT NULL) THEN
        RAISE EXCEPTION '% is %', what, h.fate
            USING ERRCODE = 'object_not_in_prerequisite_state',
                HINT = 'To be retried, a tick is dead or lost, and a job is dead, lost or cancelled. Ticks that were passed over, and those that are done, can be backfilled.';
    END IF;
    IF h.retried IS NOT NULL THEN
        RAISE EXCEPTION '% was retried, as job %', what, h.retried
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'See what became of that job. If it is dead too, retry it.';
    END IF;
    IF w IS NULL THEN
        RAISE EXCEPTION '% cannot be retried: its schedule was deleted', what USING ERRCODE = 'undefined_object',
            HINT = 'Nobody knows any more what it would be run with.';
    END IF;
    retry := (pgleases.schedule_enqueue($1, 1, jsonb_build_array(w || '{"trigger": "retry"}'), 'raise'))[1];
    IF retry IS NULL THEN
        RAISE EXCEPTION '% cannot be retried: there is a living job of kind "%" with its unique key "%"', what, h.kind, w ->> 'unique_key'
            USING ERRCODE = 'unique_violation', HINT = 'That job does its work. If it does not, cancel it first.';
    END IF;
    UPDATE pgleases.history AS r SET retried = retry WHERE r.id = h.id;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_retry(pg_catalog.text, pg_catalog.text, pg_catalog.timestamptz, bigint) IS 'Runs a tick or a job that failed once more, as a job. See retry.sql.';

CREATE OR REPLACE FUNCTION pgleases.schedule_answer(request bigint, answer pg_catalog.text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    UPDATE pgleases.schedule_requests AS q SET answered = pgleases.schedule_clock(), answer = $2 WHERE q.id = $1;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_answer(bigint, pg_catalog.text) IS 'Notes what came of an operator''s request. See answer.sql.';

CREATE OR REPLACE FUNCTION pgleases.schedule_take_back(schedule bigint, OUT job bigint)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    j pgleases.jobs;
BEGIN
    SELECT r.* INTO j FROM pgleases.schedules AS s JOIN pgleases.jobs AS r ON r.group_name = s.group_name
        AND r.kind = 'schedule.request' AND r.unique_key = format('resume %s', s.id)
    WHERE s.id = $1;
    IF pgleases.schedule_cancel(j.group_name, j.id, 'it was paused again') THEN
        job := j.id;
    END IF;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_take_back(bigint) IS 'Takes back that a schedule is to be resumed. See takeback.sql.';

CREATE OR REPLACE FUNCTION pgleases.schedule_get(group_name pg_catalog.text, name pg_catalog.text, edit boolean, OUT clock_us bigint,
    OUT answer pg_catalog.jsonb)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    clock_us := (extract(epoch FROM pgleases.schedule_clock()) * 1000000)::bigint;
    WHILE $3 LOOP
        PERFORM FROM pgleases.schedules AS s WHERE s.group_name = $1 AND s.name = $2 FOR UPDATE;
        -- else another of the name was made while it waited
        EXIT WHEN FOUND OR NOT EXISTS (SELECT FROM pgleases.schedules AS s WHERE s.group_name = $1 AND s.name = $2);
    END LOOP;
    SELECT pgleases.schedule_json(s) INTO answer FROM pgleases.schedules AS s WHERE s.group_name = $1 AND s.name = $2;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_get(pg_catalog.text, pg_catalog.text, boolean) IS 'One schedule. See get.sql.';

CREATE OR REPLACE FUNCTION pgleases.schedule_put(group_name pg_catalog.text, partitions int, schedule pg_catalog.jsonb, fates pg_catalog.jsonb) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    s       pgleases.schedules := jsonb_populate_record(NULL::pgleases.schedules, $3);
    now     CONSTANT timestamptz := pgleases.schedule_clock();
    soon    timestamptz;
    written boolean;
BEGIN
    IF s.due < now + interval '1 second' THEN
        PERFORM pgleases.schedule_tell($1);
    END IF;
    s.group_name := $1;
    s.partition := pgleases.partition_for(s.key, coalesce((SELECT g.partitions FROM pgleases.schedule_groups AS g WHERE g.name = $1), $2));
    s.due := coalesce(s.due, 'infinity');
    soon := greatest(s.due, now); -- what has been due for long is not looked for each time
    s.args := coalesce(s.args, 'null'); -- that of JSON comes as that of SQL
    IF s.id = 0 THEN
        INSERT INTO pgleases.schedules AS t (group_name, name, key, partition, kind, args, rule, anchor, policy, declared, cursor, due, revision, registered)
        VALUES (s.group_name, s.name, s.key, s.partition, s.kind, s.args, s.rule, s.anchor, s.policy, s.declared, s.cursor, soon, 1, s.registered)
        ON CONFLICT DO NOTHING; -- a schedule of this name was made meanwhile
    ELSE
        UPDATE pgleases.schedules AS t
        SET key = s.key, partition = s.partition, kind = s.kind, args = s.args, rule = s.rule, anchor = s.anchor, policy = s.policy, declared = s.declared,
            cursor = s.cursor, cursor_local = s.cursor_local,
            due = CASE
                WHEN t.partition = s.partition THEN least(soon, greatest(s.due, t.due)) -- the clock may be ahead for a moment, and the owner knows what was due
                ELSE soon END,
            trying = s.trying, failures = s.failures,
            revision = s.revision, paused_at = s.paused_at, waits = s.waits, waits_since = s.waits_since, registered = s.registered,
            disabled_at = s.disabled_at, replaced = s.replaced
        WHERE t.id = s.id;
        PERFORM pgleases.schedule_fates(s, $4);
    END IF;
    written := FOUND OR s.id <> 0;
    IF $3 ? 'zone' AND NOT EXISTS (SELECT FROM pgleases.schedule_zones AS z WHERE z.group_name = $1 AND z.zone = $3 ->> 'zone') THEN
        INSERT INTO pgleases.schedule_zones (group_name, zone, data) VALUES ($1, $3 ->> 'zone', $3 ->> 'zone_data') ON CONFLICT DO NOTHING;
    END IF;
    RETURN written;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_put(pg_catalog.text, int, pg_catalog.jsonb, pg_catalog.jsonb) IS 'Writes a schedule. See put.sql.';

CREATE OR REPLACE FUNCTION pgleases.schedule_declare(group_name pg_catalog.text, names pg_catalog.text[]) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    UPDATE pgleases.schedules AS s SET registered = pgleases.schedule_clock()
    WHERE s.id IN (SELECT d.id FROM pgleases.schedules AS d
                   WHERE d.group_name = $1 AND d.name = ANY ($2) AND d.declared AND d.registered < pgleases.schedule_clock() - interval '1 day'
                   FOR NO KEY UPDATE SKIP LOCKED);
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_declare(pg_catalog.text, pg_catalog.text[]) IS 'Notes that a process declares schedules. See declare.sql.';

CREATE OR REPLACE FUNCTION pgleases.schedule_disabled(group_name pg_catalog.text, names pg_catalog.text[],
    OUT name pg_catalog.text) RETURNS SETOF pg_catalog.text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    RETURN QUERY SELECT s.name::text FROM pgleases.schedules AS s WHERE s.group_name = $1 AND s.name = ANY ($2) AND s.disabled_at IS NOT NULL ORDER BY s.name;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_disabled(pg_catalog.text, pg_catalog.text[]) IS 'Which of the schedules that a process declares are disabled. See disabled.sql.';

CREATE OR REPLACE FUNCTION pgleases.schedule_zones(group_name pg_catalog.text, OUT zone pg_catalog.text, OUT data pg_catalog.text) RETURNS SETOF record
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    RETURN QUERY SELECT z.zone::text, z.data FROM pgleases.schedule_zones AS z WHERE z.group_name = $1 ORDER BY z.zone;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_zones(pg_catalog.text) IS 'The zones of schedules, and by which zone data it was told when these are due. See zones.sql.';

CREATE OR REPLACE FUNCTION pgleases.schedule_zoned(group_name pg_catalog.text, zone pg_catalog.text, after pg_catalog.text,
    most int) RETURNS SETOF pg_catalog.jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    RETURN QUERY SELECT pgleases.schedule_json(s) FROM pgleases.schedules AS s
    WHERE s.group_name = $1 AND s.name > $3 AND starts_with(s.rule, 'CRON_TZ=' || $2 || ' ') ORDER BY s.name LIMIT $4;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_zoned(pg_catalog.text, pg_catalog.text, pg_catalog.text, int) IS 'Schedules with rules of a zone, by name. See zoned.sql.';

CREATE OR REPLACE FUNCTION pgleases.schedule_follow(group_name pg_catalog.text, zone pg_catalog.text, data pg_catalog.text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    UPDATE pgleases.schedule_zones AS z SET data = $3 WHERE z.group_name = $1 AND z.zone = $2;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_follow(pg_catalog.text, pg_catalog.text, pg_catalog.text) IS 'Notes by which zone data it is told when the schedules of a zone are due. See follow.sql.';

CREATE OR REPLACE FUNCTION pgleases.schedule_delete(schedule bigint, fates pg_catalog.jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    s pgleases.schedules;
BEGIN
    DELETE FROM pgleases.schedules AS t WHERE t.id = $1 RETURNING * INTO s;
    PERFORM pgleases.schedule_fates(s, $2);
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_delete(bigint, pg_catalog.jsonb) IS 'Deletes a schedule that get.sql has locked, and tells what became of its overdue ticks.';

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
COMMENT ON FUNCTION pgleases.schedule_list(pg_catalog.text, pg_catalog.text, pg_catalog.text, int) IS 'Schedules by name. See list.sql.';

CREATE OR REPLACE FUNCTION pgleases.schedule_history(group_name pg_catalog.text, name pg_catalog.text, before bigint, most int) RETURNS SETOF pg_catalog.jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' AS $pgleases_body$
BEGIN
    RETURN QUERY SELECT to_jsonb(h) FROM pgleases.history AS h
    WHERE h.group_name = $1 AND h.name = $2 AND h.id < $3 AND h.job IS NULL ORDER BY h.id DESC LIMIT $4;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_history(pg_catalog.text, pg_catalog.text, bigint, int) IS 'What became of a schedule''s ticks, the newest first. See history.sql.';

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
    DELETE FROM pgleases.history AS h WHERE h.id > $4 AND h.id <= up_to AND h.ended_at < $3 AND h.group_name = $1 AND (h.fate IN ('dead', 'lost')) = $2;
    IF $2 THEN
        DELETE FROM pgleases.schedule_requests AS q
        WHERE q.id IN (SELECT r.id FROM pgleases.schedule_requests AS r WHERE r.group_name = $1 AND r.at < $3 ORDER BY r.at LIMIT $5);
    END IF;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_trim(pg_catalog.text, boolean, pg_catalog.timestamptz, bigint, int) IS 'Deletes old entries of the history, a page of them. See trim.sql.';

CREATE OR REPLACE FUNCTION pgleases.schedule_make_slots(group_name pg_catalog.text, kind pg_catalog.text, most int) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    INSERT INTO pgleases.schedule_slots (group_name, kind, slot) SELECT $1, $2, n FROM generate_series(0, $3 - 1) AS n ON CONFLICT DO NOTHING;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_make_slots(pg_catalog.text, pg_catalog.text, int) IS 'Makes the slots of a kind that has a limit. See makeslots.sql.';

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
COMMENT ON FUNCTION pgleases.schedule_take(pg_catalog.text, pg_catalog.text, int, int, bigint, pg_catalog.text) IS 'Takes a slot of a kind that has a limit. See take.sql.';

CREATE OR REPLACE FUNCTION pgleases.schedule_free(group_name pg_catalog.text, kind pg_catalog.text, run pg_catalog.text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    UPDATE pgleases.schedule_slots AS s SET partition = NULL, epoch = NULL, run = NULL WHERE s.group_name = $1 AND s.kind = $2 AND s.run = $3;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_free(pg_catalog.text, pg_catalog.text, pg_catalog.text) IS 'Frees the slot of a call that has ended. See free.sql.';

-- From here to the version: for operators, as the engine's verbs are. PUBLIC may execute none of them. They run with the rights of their
-- owner, so an operator needs no others; session_user stays who it is. What SQL can do is done at once, with the rules of the Go methods.
-- What it cannot, because it knows no cron, is put as a job of kind schedule.request, which a process of the group carries out as it runs
-- any job: soon, and once, whatever crashes.

CREATE OR REPLACE FUNCTION pgleases.schedule_asked(
    verb pg_catalog.text, of_group pg_catalog.text, name pg_catalog.text, schedule bigint, job bigint, args pg_catalog.jsonb,
    actor pg_catalog.text, reason pg_catalog.text, done boolean)
RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    request bigint;
BEGIN
    INSERT INTO pgleases.schedule_requests (at, verb, group_name, name, schedule, job, args, actor, reason, answered, answer)
    VALUES (pgleases.schedule_clock(), $1, $2, $3, $4, $5, $6, pgleases.schedule_actor($7), $8,
            CASE WHEN $9 THEN pgleases.schedule_clock() END, CASE WHEN $9 THEN 'done' END)
    RETURNING id INTO request;
    RETURN request;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_asked(pg_catalog.text, pg_catalog.text, pg_catalog.text, bigint, bigint, pg_catalog.jsonb, pg_catalog.text, pg_catalog.text, boolean) IS 'Part of the verbs of operators: writes down what was asked.';

CREATE OR REPLACE FUNCTION pgleases.schedule_actor(actor pg_catalog.text) RETURNS pg_catalog.text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    RETURN CASE WHEN coalesce($1, '') = '' THEN session_user::text ELSE $1 || ' (' || session_user || ')' END;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_actor(pg_catalog.text) IS 'Part of the verbs of operators: who asks.';

CREATE OR REPLACE FUNCTION pgleases.schedule_named(of_group pg_catalog.text, name pg_catalog.text, edit boolean) RETURNS pgleases.schedules
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    s pgleases.schedules;
BEGIN
    IF $3 THEN
        SELECT * INTO s FROM pgleases.schedules AS r WHERE r.group_name = $1 AND r.name = $2 FOR UPDATE;
    ELSE
        SELECT * INTO s FROM pgleases.schedules AS r WHERE r.group_name = $1 AND r.name = $2;
    END IF;
    IF s.id IS NULL THEN
        RAISE EXCEPTION 'group "%" has no schedule "%"', $1, $2
            USING ERRCODE = 'undefined_object', HINT = 'schedules_status lists those that there are, with their groups.';
    END IF;
    RETURN s;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_named(pg_catalog.text, pg_catalog.text, boolean) IS 'Part of the verbs of operators: a schedule, locked for an edit or not.';

CREATE OR REPLACE FUNCTION pgleases.schedule_request(
    s pgleases.schedules, verb pg_catalog.text, args pg_catalog.jsonb, unique_key pg_catalog.text, actor pg_catalog.text,
    reason pg_catalog.text, OUT job bigint)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    request CONSTANT bigint := pgleases.schedule_asked($2, s.group_name, s.name, s.id, NULL, $3, $5, $6, false);
BEGIN
    job := (pgleases.schedule_enqueue(s.group_name, 1, jsonb_build_array(jsonb_build_object(
        'kind', 'schedule.request', 'trigger', 'request', 'name', s.name, 'key', 'requests of ' || s.name, 'priority', 3, 'unique_key', $4,
        'args', jsonb_build_object('request', request, 'verb', $2, 'schedule', s.id, 'name', s.name, 'rule', s.rule) || coalesce($3, '{}'))), 'skip'))[1];
    IF job IS NULL THEN -- it was asked before, and is yet to be done
        DELETE FROM pgleases.schedule_requests AS q WHERE q.id = request;
    ELSE
        UPDATE pgleases.schedule_requests AS q SET job = schedule_request.job WHERE q.id = request;
    END IF;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_request(pgleases.schedules, pg_catalog.text, pg_catalog.jsonb, pg_catalog.text, pg_catalog.text, pg_catalog.text) IS 'Part of the verbs of operators: has a process of the group do what SQL cannot. Null: it was asked before under the unique key.';

CREATE OR REPLACE FUNCTION pgleases.pause_schedule(group_name pg_catalog.text, schedule pg_catalog.text, reason pg_catalog.text,
    actor pg_catalog.text DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    s        pgleases.schedules;
    resuming bigint;
BEGIN
    PERFORM pgleases.operator('pause_schedule', $4, $3);
    s := pgleases.schedule_named($1, $2, true);
    resuming := pgleases.schedule_take_back(s.id);
    IF s.paused_at IS NOT NULL AND resuming IS NULL THEN
        RETURN false;
    END IF;
    UPDATE pgleases.schedules AS r SET paused_at = pgleases.schedule_clock(), due = 'infinity', revision = r.revision + 1 WHERE r.id = s.id;
    PERFORM pgleases.schedule_asked('pause', $1, $2, s.id, resuming, NULL, $4, $3, true);
    RETURN true;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.pause_schedule(pg_catalog.text, pg_catalog.text, pg_catalog.text, pg_catalog.text) IS 'The schedule does not run until it is resumed. A run that is under way goes on. Whether it was not paused before.';

CREATE OR REPLACE FUNCTION pgleases.resume_schedule(
    group_name pg_catalog.text, schedule pg_catalog.text, reason pg_catalog.text, actor pg_catalog.text DEFAULT NULL, catch_up boolean DEFAULT false)
RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    s pgleases.schedules;
BEGIN
    PERFORM pgleases.operator('resume_schedule', $4, $3);
    IF $5 IS NULL THEN
        RAISE EXCEPTION 'resume_schedule needs catch_up true or false, not null'
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Without it, ticks that passed are cancelled; with it, they are late ones.';
    END IF;
    s := pgleases.schedule_named($1, $2, true);
    IF s.paused_at IS NULL THEN
        RETURN false;
    END IF;
    IF NOT $5 THEN
        RETURN pgleases.schedule_request(s, 'resume', NULL, format('resume %s', s.id), $4, $3) IS NOT NULL;
    END IF;
    UPDATE pgleases.schedules AS r SET paused_at = NULL, failures = 0, due = pgleases.schedule_clock(), revision = r.revision + 1 WHERE r.id = s.id;
    PERFORM pgleases.schedule_asked('resume', $1, $2, s.id, NULL, '{"catch_up": true}', $4, $3, true);
    RETURN true;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.resume_schedule(pg_catalog.text, pg_catalog.text, pg_catalog.text, pg_catalog.text, boolean) IS 'A schedule that was paused runs again, with its next tick: those that passed are cancelled, within about a second, by a process of the group. With catch_up they are late ones, at once. Whether it was paused, and this was not asked before.';

CREATE OR REPLACE FUNCTION pgleases.delete_schedule(
    group_name pg_catalog.text, schedule pg_catalog.text, reason pg_catalog.text, actor pg_catalog.text DEFAULT NULL, OUT job bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    s pgleases.schedules;
BEGIN
    PERFORM pgleases.operator('delete_schedule', $4, $3);
    s := pgleases.schedule_named($1, $2, false);
    job := pgleases.schedule_request(s, 'delete', NULL, format('delete %s', s.id), $4, $3);
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.delete_schedule(pg_catalog.text, pg_catalog.text, pg_catalog.text, pg_catalog.text)
IS 'A process of the group deletes a schedule, within about a second: ticks that passed until then are cancelled. Its history stays. It returns the job that does that; null: it was asked before.';

CREATE OR REPLACE FUNCTION pgleases.trigger_schedule(group_name pg_catalog.text, schedule pg_catalog.text, reason pg_catalog.text,
    actor pg_catalog.text DEFAULT NULL, OUT job bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    s pgleases.schedules;
BEGIN
    PERFORM pgleases.operator('trigger_schedule', $4, $3);
    s := pgleases.schedule_named($1, $2, false);
    job := (pgleases.schedule_enqueue($1, 1, jsonb_build_array(jsonb_build_object(
        'kind', s.kind, 'trigger', 'manual', 'name', s.name, 'key', s.key, 'args', s.args, 'priority', 1)), 'skip'))[1];
    PERFORM pgleases.schedule_asked('trigger', $1, $2, s.id, job, NULL, $4, $3, true);
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.trigger_schedule(pg_catalog.text, pg_catalog.text, pg_catalog.text, pg_catalog.text) IS 'Runs a schedule now, besides its ticks, also where it is paused: as a job, whose id it returns.';

CREATE OR REPLACE FUNCTION pgleases.backfill_schedule(
    group_name pg_catalog.text, schedule pg_catalog.text, after pg_catalog.timestamptz, until pg_catalog.timestamptz,
    reason pg_catalog.text, actor pg_catalog.text DEFAULT NULL, OUT job bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' AS $pgleases_body$
DECLARE
    s pgleases.schedules;
BEGIN
    PERFORM pgleases.operator('backfill_schedule', $6, $5);
    s := pgleases.schedule_named($1, $2, false);
    IF ($3 < $4) IS NOT TRUE THEN
        RAISE EXCEPTION 'there is nothing after % up to %', coalesce($3::text, 'null'), coalesce($4::text, 'null')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'To run one tick again, give a time just before it, and the tick.';
    END IF;
    IF $4 > s.cursor THEN
        RAISE EXCEPTION 'ticks up to % are not all past: schedule "%" has come as far as %', $4, $2, s.cursor
            USING ERRCODE = 'invalid_parameter_value', HINT = 'What is not past runs by itself. To run it now, trigger it.';
    END IF;
    IF $3 < '0001-01-01' THEN
        RAISE EXCEPTION 'ticks after % are too long ago', $3 USING ERRCODE = 'invalid_parameter_value', HINT = 'At most 1,000 ticks are backfilled at once.';
    END IF;
    job := pgleases.schedule_request(s, 'backfill', jsonb_build_object('after', $3, 'until', $4), NULL, $6, $5);
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.backfill_schedule(pg_catalog.text, pg_catalog.text, pg_catalog.timestamptz, pg_catalog.timestamptz, pg_catalog.text, pg_catalog.text) IS 'Runs a schedule once more for its ticks after one instant, up to another, 1,000 at most: each as a job of the lowest priority, which a process of the group puts within about a second. It returns the job that does that; schedule_requests tells what came of it.';

CREATE OR REPLACE FUNCTION pgleases.cancel_job(job bigint, reason pg_catalog.text, actor pg_catalog.text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    j    pgleases.jobs;
    fate text;
BEGIN
    PERFORM pgleases.operator('cancel_job', $3, $2);
    SELECT * INTO j FROM pgleases.jobs AS r WHERE r.id = $1;
    IF pgleases.schedule_cancel(j.group_name, j.id, concat(pgleases.schedule_actor($3), ': ', $2)) THEN
        PERFORM pgleases.schedule_asked('cancel', j.group_name, j.name, NULL, $1, NULL, $3, $2, true);
        RETURN;
    END IF;
    SELECT h.fate INTO fate FROM pgleases.history AS h WHERE h.job = $1 ORDER BY h.id DESC LIMIT 1;
    IF fate IS NOT NULL THEN
        RAISE EXCEPTION 'job % has ended: it is %', $1, fate
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'What it did stands.';
    END IF;
    RAISE EXCEPTION 'there is no job %', coalesce($1::text, 'null')
        USING ERRCODE = 'undefined_object', HINT = 'jobs_status lists those that have not ended. What ended long ago is forgotten.';
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.cancel_job(bigint, pg_catalog.text, pg_catalog.text) IS 'Cancels a job. A run that is under way is refused its commit; what it has done outside of the database is done.';

CREATE OR REPLACE FUNCTION pgleases.retry_job(job bigint, reason pg_catalog.text, actor pg_catalog.text DEFAULT NULL, OUT retry bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    of_group text;
    name     text;
BEGIN
    PERFORM pgleases.operator('retry_job', $3, $2);
    SELECT h.group_name, h.name INTO of_group, name FROM pgleases.history AS h WHERE h.job = $1 LIMIT 1;
    IF NOT FOUND THEN
        SELECT j.group_name, j.name INTO of_group, name FROM pgleases.jobs AS j WHERE j.id = $1;
    END IF;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no job %', coalesce($1::text, 'null')
            USING ERRCODE = 'undefined_object', HINT = 'What ended long ago is forgotten.';
    END IF;
    retry := pgleases.schedule_retry(of_group, NULL, NULL, $1);
    PERFORM pgleases.schedule_asked('retry', of_group, name, NULL, retry, jsonb_build_object('job', $1), $3, $2, true);
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.retry_job(bigint, pg_catalog.text, pg_catalog.text) IS 'Runs a job that is dead, lost or cancelled once more, as a new job, whose id it returns.';

CREATE OR REPLACE FUNCTION pgleases.retry_tick(
    group_name pg_catalog.text, schedule pg_catalog.text, tick pg_catalog.timestamptz, reason pg_catalog.text,
    actor pg_catalog.text DEFAULT NULL, OUT retry bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    s pgleases.schedules;
BEGIN
    PERFORM pgleases.operator('retry_tick', $5, $4);
    s := pgleases.schedule_named($1, $2, false);
    retry := pgleases.schedule_retry($1, $2, $3, NULL);
    PERFORM pgleases.schedule_asked('retry', $1, $2, s.id, retry, jsonb_build_object('tick', $3), $5, $4, true);
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.retry_tick(pg_catalog.text, pg_catalog.text, pg_catalog.timestamptz, pg_catalog.text, pg_catalog.text) IS 'Runs a schedule once more for a tick that is dead or lost, as a job, whose id it returns. The tick keeps its fate.';

CREATE OR REPLACE FUNCTION pgleases.retry_dead(
    group_name pg_catalog.text, kind pg_catalog.text, since pg_catalog.timestamptz, reason pg_catalog.text,
    actor pg_catalog.text DEFAULT NULL, OUT retried int, OUT refused int)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    h record;
BEGIN
    PERFORM pgleases.operator('retry_dead', $5, $4);
    IF $1 IS NULL OR $2 IS NULL OR $3 IS NULL THEN
        RAISE EXCEPTION 'retry_dead needs a group, a kind and an instant, not null'
            USING ERRCODE = 'invalid_parameter_value', HINT = 'For all that the history has, give the instant -infinity.';
    END IF;
    retried := 0;
    refused := 0;
    FOR h IN SELECT r.name, r.until, r.job FROM pgleases.history AS r
             WHERE r.group_name = $1 AND r.kind = $2 AND r.fate IN ('dead', 'lost') AND r.retried IS NULL AND r.ended_at >= $3 ORDER BY r.id LIMIT 10000 LOOP
        BEGIN
            PERFORM pgleases.schedule_retry($1, h.name, h.until, h.job);
            retried := retried + 1;
        EXCEPTION WHEN undefined_object OR object_not_in_prerequisite_state OR unique_violation THEN
            refused := refused + 1;
        END;
    END LOOP;
    PERFORM pgleases.schedule_asked('retry', $1, '', NULL, NULL,
        jsonb_build_object('kind', $2, 'since', $3, 'retried', retried, 'refused', refused), $5, $4, true);
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.retry_dead(pg_catalog.text, pg_catalog.text, pg_catalog.timestamptz, pg_catalog.text, pg_catalog.text) IS 'Runs what has become dead or lost of a kind since an instant once more, as retry_tick and retry_job do, the oldest 10,000 that were not retried. It returns how many, and how many they would refuse, as those whose schedule was deleted.';

REVOKE EXECUTE ON FUNCTION pgleases.pause_schedule(pg_catalog.text, pg_catalog.text, pg_catalog.text, pg_catalog.text),
    pgleases.resume_schedule(pg_catalog.text, pg_catalog.text, pg_catalog.text, pg_catalog.text, boolean),
    pgleases.delete_schedule(pg_catalog.text, pg_catalog.text, pg_catalog.text, pg_catalog.text),
    pgleases.trigger_schedule(pg_catalog.text, pg_catalog.text, pg_catalog.text, pg_catalog.text),
    pgleases.backfill_schedule(pg_catalog.text, pg_catalog.text, pg_catalog.timestamptz, pg_catalog.timestamptz, pg_catalog.text, pg_catalog.text),
    pgleases.cancel_job(bigint, pg_catalog.text, pg_catalog.text),
    pgleases.retry_job(bigint, pg_catalog.text, pg_catalog.text),
    pgleases.retry_tick(pg_catalog.text, pg_catalog.text, pg_catalog.timestamptz, pg_catalog.text, pg_catalog.text),
    pgleases.retry_dead(pg_catalog.text, pg_catalog.text, pg_catalog.timestamptz, pg_catalog.text, pg_catalog.text) FROM PUBLIC;

-- Last, after all tables and functions: without its version the part counts as missing.
INSERT INTO pgleases.schedule_version AS v (version, min_code) VALUES (1, 1)
ON CONFLICT ((true)) DO UPDATE SET version = EXCLUDED.version, min_code = EXCLUDED.min_code WHERE v.version OPERATOR(pg_catalog.<) EXCLUDED.version;
