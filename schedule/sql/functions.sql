-- functions.sql: the functions of package schedule, then the version. It runs after schema.sql. Idempotent: functions are replaced.
--
-- They run in transactions of the application's too, under any search_path: so each sets its own.
--
-- Schedules and fates come and go as JSON, in which a time is the same under all settings of a session.

-- Commits that notify wait for each other, all of the server's: so the first in each fifth of a second tells for the others, whose processes look again when that
-- is over. The value is the number of that fifth, then a bit for each group that was told of in it; groups may share one. Where two race, both tell.
CREATE OR REPLACE FUNCTION pgleases.schedule_tell(group_name pg_catalog.text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    fifth CONSTANT bigint := (extract(epoch FROM clock_timestamp()) * 5)::bigint;
    mine  CONSTANT bigint := 1::bigint << (hashtext($1) & 2147483647) % 24;
    told  bigint;
BEGIN
    SELECT t.last_value INTO told FROM pgleases.schedule_told AS t;
    IF told >> 24 <> fifth THEN
        told := fifth << 24;
    ELSIF told & mine <> 0 THEN
        RETURN;
    END IF;
    PERFORM setval('pgleases.schedule_told', told | mine), pg_notify('pgleases_schedule_' || md5($1), '');
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_tell(pg_catalog.text) IS 'Tells processes, at the commit, that something was put that is due before they look.';

-- infinity is none in JSON. A local time goes as if it were one of UTC, whatever the session's zone: a timestamp without a zone drops the zone when it
-- comes.
CREATE OR REPLACE FUNCTION pgleases.schedule_json(s pgleases.schedules) RETURNS pg_catalog.jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' AS $pgleases_body$
BEGIN
    RETURN to_jsonb(s) || jsonb_build_object('due', nullif(s.due, 'infinity'), 'cursor_local', (to_jsonb(s) ->> 'cursor_local') || 'Z', 'clock', pgleases.schedule_clock(),
                                             'living', (SELECT count(*) FROM pgleases.jobs AS j WHERE j.schedule = s.id));
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_json(pgleases.schedules) IS 'A schedule, with the time at which it was read.';

CREATE OR REPLACE FUNCTION pgleases.schedule_job_json(j pgleases.jobs) RETURNS pg_catalog.jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' AS $pgleases_body$
BEGIN
    RETURN to_jsonb(j) || jsonb_build_object('job', true, 'due', nullif(j.due, 'infinity'), 'clock', pgleases.schedule_clock());
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_job_json(pgleases.jobs) IS 'A job, with the time at which it was read.';

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

CREATE OR REPLACE FUNCTION pgleases.schedule_look(group_name pg_catalog.text, partitions int[], fresh int[], since_us bigint, horizon_us bigint, most int, but pg_catalog.text[],
    OUT clock_us bigint, OUT answer pg_catalog.jsonb)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    now   CONSTANT timestamptz := pgleases.schedule_clock();
    since CONSTANT timestamptz := timestamptz 'epoch' + $4 * interval '1 microsecond';
    until CONSTANT timestamptz := now + $5 * interval '1 microsecond';
BEGIN
    -- Few enough that no look takes long for it: the others are due within a minute.
    UPDATE pgleases.schedules AS s SET due = now
    WHERE s.id IN (SELECT w.id FROM pgleases.schedules AS w
                   WHERE w.group_name = $1 AND w.partition = ANY ($3) AND w.waits IS NOT NULL AND w.paused_at IS NULL AND w.disabled_at IS NULL AND w.due > now
                   LIMIT 1000 FOR UPDATE SKIP LOCKED);
    UPDATE pgleases.jobs AS j SET due = now
    WHERE j.id IN (SELECT w.id FROM pgleases.jobs AS w
                   WHERE w.group_name = $1 AND w.partition = ANY ($3) AND w.waits IS NOT NULL AND w.due > now
                   LIMIT 1000 FOR UPDATE SKIP LOCKED);
    clock_us := (extract(epoch FROM now) * 1000000)::bigint;
    SELECT coalesce(jsonb_agg(jsonb_build_object('id', d.id, 'job', d.job, 'priority', d.priority, 'partition', p.partition, 'key', d.key, 'kind', d.kind,
                                                 'due_us', (extract(epoch FROM d.due) * 1000000)::bigint,
                                                 'crashes', coalesce((d.trying ->> 'crashes')::int, 0)) ORDER BY d.due, d.id), '[]')
    INTO answer
    FROM unnest($2) AS p (partition)
    CROSS JOIN LATERAL (
        (SELECT s.id, false AS job, 1 AS priority, s.key, s.kind, s.due, s.trying FROM pgleases.schedules AS s
        WHERE s.group_name = $1 AND s.partition = p.partition AND s.due <= until AND s.key <> ALL ($7)
          AND s.due > CASE WHEN p.partition = ANY ($3) THEN '-infinity' ELSE since END -- behind an old snapshot, dead entries of the index pile up before it
        ORDER BY s.due LIMIT $6)
        UNION ALL
        SELECT b.* FROM generate_series(0, 3) AS band (priority)
        CROSS JOIN LATERAL (
            SELECT j.id, true, j.priority, j.key, j.kind, j.due, j.trying FROM pgleases.jobs AS j
            WHERE j.group_name = $1 AND j.partition = p.partition AND j.priority = band.priority AND j.due <= until AND j.key <> ALL ($7)
              AND j.due > CASE WHEN p.partition = ANY ($3) THEN '-infinity' ELSE since END
            ORDER BY j.due LIMIT $6
        ) AS b
    ) AS d;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_look(pg_catalog.text, int[], int[], bigint, bigint, int, pg_catalog.text[]) IS 'What is due soon. See look.sql.';

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

CREATE OR REPLACE FUNCTION pgleases.schedule_end(group_name pg_catalog.text, partition int, epoch bigint, charged bigint[], charged_jobs bigint[], lock_ms int) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    PERFORM set_config('lock_timeout', $6::text, true);
    UPDATE pgleases.jobs AS j
    SET trying = j.trying || jsonb_build_object('crashes', (j.trying ->> 'crashes')::int - 1, 'epoch', 0)
    WHERE j.id = ANY ($5) AND (j.trying ->> 'epoch')::bigint = $3;
    UPDATE pgleases.schedules AS s
    SET trying = s.trying || jsonb_build_object('crashes', (s.trying ->> 'crashes')::int - 1, 'epoch', 0)
    WHERE s.id = ANY ($4) AND (s.trying ->> 'epoch')::bigint = $3;
    UPDATE pgleases.schedule_owners AS o SET closed = $3 WHERE o.group_name = $1 AND o.partition = $2 AND o.opened = $3;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_end(pg_catalog.text, int, bigint, bigint[], bigint[], int) IS 'Notes that all that an owner ran has ended. See end.sql.';

CREATE OR REPLACE FUNCTION pgleases.schedule_open(id bigint, job boolean, run pg_catalog.text, timeout_ms int, idle_ms int, lock_ms int) RETURNS pg_catalog.jsonb
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    PERFORM set_config('schedule.run', $3, true), set_config('statement_timeout', $4::text, true),
            set_config('idle_in_transaction_session_timeout', $5::text, true), set_config('lock_timeout', $6::text, true);
    BEGIN
        PERFORM set_config('client_connection_check_interval', '500', true);
    EXCEPTION WHEN invalid_parameter_value THEN -- the server's system cannot do it
    END;
    -- The lock only shows that this runs, see schedule_runs.
    IF $2 THEN
        RETURN (SELECT pgleases.schedule_job_json(j) FROM pgleases.jobs AS j
                WHERE j.id = $1 AND pg_try_advisory_xact_lock_shared(hashint8extended(j.id, j.tableoid::bigint)) IS NOT NULL);
    END IF;
    RETURN (SELECT pgleases.schedule_json(s) FROM pgleases.schedules AS s
            WHERE s.id = $1 AND pg_try_advisory_xact_lock_shared(hashint8extended(s.id, s.tableoid::bigint)) IS NOT NULL);
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_open(bigint, boolean, pg_catalog.text, int, int, int) IS 'Opens a run in a transaction. See open.sql.';

CREATE OR REPLACE FUNCTION pgleases.schedule_fates(s pgleases.schedules, fates pg_catalog.jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    INSERT INTO pgleases.history (schedule, group_name, name, kind, since, until, ticks, fate, error, attempts, epoch, started_at, ended_at)
    SELECT s.id, s.group_name, s.name, s.kind, f.since, f.until, f.ticks, f.fate, f.error, coalesce(f.attempts, 0), f.epoch, f.started_at, pgleases.schedule_clock()
    FROM jsonb_to_recordset($2) AS f (since timestamptz, until timestamptz, ticks bigint, fate text, error text, attempts int, epoch bigint, started_at timestamptz)
    ORDER BY f.until;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_fates(pgleases.schedules, pg_catalog.jsonb) IS 'Writes down what became of ticks.';

-- The row is locked here at the end of the run and not at its beginning: else an edit would wait for as long as the handler runs, and
-- handlers that put schedules would wait for each other.
CREATE OR REPLACE FUNCTION pgleases.schedule_close(schedule bigint, run pg_catalog.text, revision bigint, cursor_before pg_catalog.timestamptz, step pg_catalog.jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    s     pgleases.schedules;
    t     pgleases.schedules := jsonb_populate_record(NULL::pgleases.schedules, $5);
    fates CONSTANT jsonb := $5 -> 'fates';
    total CONSTANT bigint := (SELECT sum((f ->> 'ticks')::bigint) FROM jsonb_array_elements(fates) AS f);
    now   CONSTANT timestamptz := pgleases.schedule_clock();
BEGIN
    IF current_setting('schedule.run', true) IS DISTINCT FROM $2 THEN
        RAISE EXCEPTION 'the handler ended the transaction that it was given, or changed its setting schedule.run' USING ERRCODE = 'PS003';
    END IF;
    SELECT * INTO s FROM pgleases.schedules AS r WHERE r.id = $1 FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'schedule % was deleted', $1 USING ERRCODE = 'PS001';
    END IF;
    IF s.cursor = $4 THEN
        UPDATE pgleases.schedules AS r
        SET cursor = t.cursor, cursor_local = t.cursor_local, done = coalesce(t.done, r.done),
            ran_from = coalesce(t.ran_from, r.ran_from), ran_until = coalesce(t.ran_until, r.ran_until),
            trying = t.trying, failures = t.failures, paused_at = coalesce(r.paused_at, t.paused_at), disabled_at = coalesce(r.disabled_at, t.disabled_at),
            due = CASE WHEN s.revision <> $3 THEN coalesce(t.ran_until, now) ELSE coalesce(t.due, 'infinity') END, -- its owner looks what the edit made of it
            waits = t.waits, waits_since = CASE WHEN t.waits IS NOT NULL THEN coalesce(r.waits_since, now) WHEN t.due <= now THEN r.waits_since END -- it catches up
        WHERE r.id = $1;
        IF jsonb_array_length($5 -> 'ticks') > 0 THEN
            INSERT INTO pgleases.jobs (group_name, key, partition, kind, name, trigger, schedule, nonce, tick_since, begins, missed, args, priority, at, due)
            SELECT s.group_name, w.key, pgleases.partition_for(w.key, g.partitions), s.kind, s.name, 'tick', s.id, s.nonce, w.since, w.begins, w.missed, s.args, 1, w.at, now
            FROM jsonb_to_recordset($5 -> 'ticks') AS w (key text, since timestamptz, begins timestamptz, missed bigint, at timestamptz), pgleases.schedule_groups AS g
            WHERE g.name = s.group_name;
            PERFORM pgleases.schedule_tell(s.group_name);
        END IF;
        IF s.revision = $3 AND ($5 ->> 'full')::int > (SELECT count(*) FROM pgleases.jobs AS j WHERE j.schedule = $1) THEN
            UPDATE pgleases.schedules AS r SET due = now WHERE r.id = $1; -- one has ended since it was counted
        END IF;
    ELSE -- where an edit passed over these ticks while they ran, they have run all the same
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
    PERFORM pgleases.schedule_fates(s, fates);
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_close(bigint, pg_catalog.text, bigint, pg_catalog.timestamptz, pg_catalog.jsonb) IS 'Steps a schedule''s cursor, and writes down what became of its ticks. See close.sql.';

CREATE OR REPLACE FUNCTION pgleases.schedule_job_fates(j pgleases.jobs, fates pg_catalog.jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    INSERT INTO pgleases.history (schedule, job, group_name, name, kind, since, until, ticks, fate, error, attempts, epoch, started_at, ended_at, again)
    SELECT coalesce(j.schedule, 0), CASE WHEN j.schedule IS NULL THEN j.id END, j.group_name, j.name, j.kind, coalesce(j.tick_since, j.at), j.at, 1, f.fate, f.error, coalesce(f.attempts, 0), f.epoch, f.started_at, pgleases.schedule_clock(),
           CASE WHEN f.fate <> 'done' AND j.schedule IS NULL THEN jsonb_build_object('key', j.key, 'args', j.args, 'priority', j.priority, 'unique_key', j.unique_key, 'begins', j.begins) END
    FROM jsonb_to_recordset($2) AS f (fate text, error text, attempts int, epoch bigint, started_at timestamptz);
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_job_fates(pgleases.jobs, pg_catalog.jsonb) IS 'Writes down what became of a job.';

-- The schedule's row is locked, before the job's: so whoever counts its ticks there sees this one either gone, or to be told of here.
CREATE OR REPLACE FUNCTION pgleases.schedule_tick_ended(j pgleases.jobs, fate pg_catalog.text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    s       pgleases.schedules;
    paused  boolean;
    waiting boolean;
BEGIN
    SELECT * INTO s FROM pgleases.schedules AS r WHERE r.id = j.schedule FOR NO KEY UPDATE;
    s.failures := CASE $2 WHEN 'done' THEN 0 WHEN 'dead' THEN s.failures + 1 ELSE s.failures END;
    paused := s.paused_at IS NULL AND $2 = 'dead' AND s.failures >= nullif((s.policy ->> 'pause_after')::int, 0);
    waiting := s.paused_at IS NULL AND NOT coalesce(paused, false) AND s.due = 'infinity';
    UPDATE pgleases.schedules AS r
    SET failures = s.failures, done = CASE WHEN $2 = 'done' THEN greatest(r.done, j.at) ELSE r.done END,
        paused_at = CASE WHEN paused THEN pgleases.schedule_clock() ELSE r.paused_at END,
        due = CASE WHEN paused THEN 'infinity' WHEN waiting THEN pgleases.schedule_clock() ELSE r.due END
    WHERE r.id = j.schedule;
    IF waiting THEN
        PERFORM pgleases.schedule_tell(j.group_name);
    END IF;
    RETURN coalesce(paused, false);
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_tick_ended(pgleases.jobs, pg_catalog.text) IS 'Tells a schedule whose ticks may overlap that one has ended. Whether that has paused it.';

CREATE OR REPLACE FUNCTION pgleases.schedule_close_job(job bigint, run pg_catalog.text, revision bigint, step pg_catalog.jsonb) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    j     pgleases.jobs;
    t     pgleases.jobs := jsonb_populate_record(NULL::pgleases.jobs, $4);
    fates CONSTANT jsonb := $4 -> 'fates';
BEGIN
    IF current_setting('schedule.run', true) IS DISTINCT FROM $2 THEN
        RAISE EXCEPTION 'the handler ended the transaction that it was given, or changed its setting schedule.run' USING ERRCODE = 'PS003';
    END IF;
    PERFORM FROM pgleases.schedules AS s WHERE s.id = ($4 ->> 'tick_of')::bigint FOR NO KEY UPDATE; -- before the job: as those who delete both
    SELECT * INTO j FROM pgleases.jobs AS r WHERE r.id = $1 FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'job % was cancelled, or has ended', $1 USING ERRCODE = 'PS001';
    END IF;
    IF j.revision = $3 AND jsonb_array_length(fates) > 0 THEN
        DELETE FROM pgleases.jobs AS r WHERE r.id = $1;
    ELSIF j.revision = $3 THEN
        UPDATE pgleases.jobs AS r SET due = coalesce(t.due, 'infinity'), trying = t.trying, waits = t.waits,
            waits_since = CASE WHEN t.waits IS NOT NULL THEN coalesce(r.waits_since, pgleases.schedule_clock()) END
        WHERE r.id = $1;
    END IF; -- else it was replaced: what ran was the one before, and this one is to run
    PERFORM pgleases.schedule_job_fates(j, fates);
    RETURN j.schedule IS NOT NULL AND jsonb_array_length(fates) > 0 AND pgleases.schedule_tick_ended(j, fates -> 0 ->> 'fate');
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_close_job(bigint, pg_catalog.text, bigint, pg_catalog.jsonb) IS 'Ends the run of a job, and the job where it has its fate. See closejob.sql.';

CREATE OR REPLACE FUNCTION pgleases.schedule_enqueue(of_group pg_catalog.text, partitions int, jobs pg_catalog.jsonb, taken pg_catalog.text, OUT ids bigint[])
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    now   CONSTANT timestamptz := pgleases.schedule_clock();
    parts CONSTANT int := coalesce((SELECT g.partitions FROM pgleases.schedule_groups AS g WHERE g.name = $1), $2);
    due   timestamptz; -- the first
BEGIN
    LOOP
        WITH made AS (
            INSERT INTO pgleases.jobs AS j (group_name, key, partition, kind, name, trigger, begins, unique_key, args, priority, at, due)
            SELECT $1, w.key, pgleases.partition_for(w.key, parts), w.kind, coalesce(w.name, w.unique_key, ''), w.trigger, w.begins, w.unique_key, coalesce(w.args, 'null'), w.priority, t.at,
                   greatest(t.at, now + w.n * interval '1 microsecond') -- in their order
            FROM ROWS FROM (jsonb_to_recordset($3) AS (key text, kind text, name text, trigger text, begins timestamptz, unique_key text, args jsonb, priority int, at timestamptz, in_us bigint))
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
            SET key = w.key, partition = pgleases.partition_for(w.key, parts), args = coalesce(w.args, 'null'), priority = w.priority, at = t.at, due = greatest(t.at, now),
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
    RETURN coalesce((SELECT pgleases.schedule_job_json(j) FROM pgleases.jobs AS j WHERE j.group_name = $1 AND j.id = $2),
                    (SELECT jsonb_build_object('ended', to_jsonb(h)) FROM pgleases.history AS h WHERE h.group_name = $1 AND h.job = $2 ORDER BY h.id DESC LIMIT 1));
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_job(pg_catalog.text, bigint) IS 'A job, or what became of it. See job.sql.';

CREATE OR REPLACE FUNCTION pgleases.schedule_cancel(group_name pg_catalog.text, job bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    j pgleases.jobs;
BEGIN
    PERFORM FROM pgleases.schedules AS s WHERE s.id = (SELECT r.schedule FROM pgleases.jobs AS r WHERE r.id = $2) FOR NO KEY UPDATE;
    DELETE FROM pgleases.jobs AS r WHERE r.group_name = $1 AND r.id = $2 RETURNING * INTO j;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM pgleases.schedule_job_fates(j, '[{"fate": "cancelled"}]');
    IF j.schedule IS NOT NULL THEN
        PERFORM pgleases.schedule_tick_ended(j, 'cancelled');
    END IF;
    RETURN true;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_cancel(pg_catalog.text, bigint) IS 'Cancels a job. See cancel.sql.';

CREATE OR REPLACE FUNCTION pgleases.schedule_get(group_name pg_catalog.text, name pg_catalog.text, edit boolean, OUT clock_us bigint, OUT answer pg_catalog.jsonb)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    clock_us := (extract(epoch FROM pgleases.schedule_clock()) * 1000000)::bigint;
    IF $3 THEN
        PERFORM FROM pgleases.schedules AS s WHERE s.group_name = $1 AND s.name = $2 FOR UPDATE;
    END IF;
    SELECT pgleases.schedule_json(s) INTO answer FROM pgleases.schedules AS s WHERE s.group_name = $1 AND s.name = $2;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_get(pg_catalog.text, pg_catalog.text, boolean) IS 'One schedule. See get.sql.';

CREATE OR REPLACE FUNCTION pgleases.schedule_put(group_name pg_catalog.text, partitions int, schedule pg_catalog.jsonb, fates pg_catalog.jsonb) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    s       pgleases.schedules := jsonb_populate_record(NULL::pgleases.schedules, $3);
    now     CONSTANT timestamptz := pgleases.schedule_clock();
    written boolean;
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
            cursor = s.cursor, cursor_local = s.cursor_local, due = s.due, trying = s.trying, failures = s.failures, revision = s.revision, paused_at = s.paused_at, waits = s.waits, waits_since = s.waits_since, registered = s.registered, disabled_at = s.disabled_at, replaced = s.replaced
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

CREATE OR REPLACE FUNCTION pgleases.schedule_zones(group_name pg_catalog.text, OUT zone pg_catalog.text, OUT data pg_catalog.text) RETURNS SETOF record
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    RETURN QUERY SELECT z.zone::text, z.data FROM pgleases.schedule_zones AS z WHERE z.group_name = $1 ORDER BY z.zone;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_zones(pg_catalog.text) IS 'The zones of schedules, and by which zone data it was told when these are due. See zones.sql.';

CREATE OR REPLACE FUNCTION pgleases.schedule_zoned(group_name pg_catalog.text, zone pg_catalog.text, after pg_catalog.text, most int) RETURNS SETOF pg_catalog.jsonb
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
    j pgleases.jobs;
BEGIN
    DELETE FROM pgleases.schedules AS t WHERE t.id = $1 RETURNING * INTO s;
    PERFORM pgleases.schedule_fates(s, $2);
    FOR j IN DELETE FROM pgleases.jobs AS r WHERE r.schedule = $1 RETURNING * LOOP
        PERFORM pgleases.schedule_job_fates(j, '[{"fate": "cancelled"}]');
    END LOOP;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_delete(bigint, pg_catalog.jsonb) IS 'Deletes a schedule that get.sql has locked, and tells what became of its overdue ticks.';

CREATE OR REPLACE FUNCTION pgleases.schedule_list(group_name pg_catalog.text, prefix pg_catalog.text, after pg_catalog.text, most int) RETURNS SETOF pg_catalog.jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    RETURN QUERY SELECT pgleases.schedule_json(s) FROM pgleases.schedules AS s
    WHERE s.group_name = $1 AND s.name >= $2 AND s.name > $3 AND starts_with(s.name, $2) ORDER BY s.name LIMIT $4;
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
    SELECT min(h.id) FILTER (WHERE h.ended_at >= $3 AND h.ended_at < pgleases.schedule_clock() + (pgleases.schedule_clock() - $3)), max(h.id), count(*) INTO kept, last, found
    FROM (SELECT p.id, p.ended_at FROM pgleases.history AS p WHERE p.id > $4 ORDER BY p.id LIMIT $5) AS h;
    up_to := coalesce(kept - 1, last, $4);
    more := kept IS NULL AND found = $5;
    DELETE FROM pgleases.history AS h WHERE h.id > $4 AND h.id <= up_to AND h.ended_at < $3 AND h.group_name = $1 AND (h.fate IN ('dead', 'lost')) = $2;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_trim(pg_catalog.text, boolean, pg_catalog.timestamptz, bigint, int) IS 'Deletes old entries of the history, a page of them. See trim.sql.';

-- Last, after all tables and functions: without its version the part counts as missing.
INSERT INTO pgleases.schedule_version AS v (version, min_code) VALUES (1, 1)
ON CONFLICT ((true)) DO UPDATE SET version = EXCLUDED.version, min_code = EXCLUDED.min_code WHERE v.version OPERATOR(pg_catalog.<) EXCLUDED.version;
