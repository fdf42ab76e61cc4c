-- functions/schedules.sql: schedules.

-- JSON has no infinity, so due becomes null. A local time is written as if it were in UTC, whatever
-- the zone of the session. Intervals are written in microseconds.
CREATE OR REPLACE FUNCTION pgleases.schedule_json(s pgleases.schedules) RETURNS pg_catalog.jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' AS $pgleases_body$
BEGIN
    RETURN to_jsonb(s) || jsonb_build_object('due', nullif(s.due, 'infinity'), 'cursor_local', timezone('UTC', s.cursor_local),
        'tick_local', timezone('UTC', s.tick_local), 'grace', trunc(extract(epoch FROM s.grace) * 1000000),
        'jitter', trunc(extract(epoch FROM s.jitter) * 1000000), 'clock', pgleases.schedule_clock());
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_json(pgleases.schedules) IS 'A schedule as JSON, with the time of the reading as clock.';

-- Locks a schedule for an edit.
--   p_args: arguments to compare
-- Returns the time, microseconds since 1970, and the schedule as JSON; null if it does not exist.
-- same_args in it says whether its arguments equal p_args, however numbers are written.
CREATE OR REPLACE FUNCTION pgleases.schedule_get(p_group pg_catalog.text, p_name pg_catalog.text, p_args pg_catalog.jsonb, OUT clock_us bigint, OUT answer pg_catalog.jsonb)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    clock_us := (extract(epoch FROM pgleases.schedule_clock()) * 1000000)::bigint;
    LOOP
        PERFORM FROM pgleases.schedules AS s WHERE s.group_name = p_group AND s.name = p_name FOR UPDATE;
        -- otherwise another schedule of this name was created during the wait
        EXIT WHEN FOUND OR NOT EXISTS (SELECT FROM pgleases.schedules AS s WHERE s.group_name = p_group AND s.name = p_name);
    END LOOP;
    SELECT pgleases.schedule_json(s) || jsonb_build_object('same_args', s.args = p_args) INTO answer
    FROM pgleases.schedules AS s WHERE s.group_name = p_group AND s.name = p_name;
END
$pgleases_body$;

-- Forgets the tick that has begun and has no outcome yet.
CREATE OR REPLACE FUNCTION pgleases.schedule_forget_tick(p_schedule bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    UPDATE pgleases.schedules AS s
    SET tick = NULL, tick_local = NULL, tick_missed = 0, began = NULL, attempts = 0, outages = 0, error = NULL, retry_at = NULL,
        crashes = 0, crash_epoch = NULL, call = NULL, call_epoch = NULL, call_once = false, call_began = NULL, call_ends = NULL
    WHERE s.id = p_schedule;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_forget_tick(bigint) IS 'Forgets the tick that has begun and has no outcome yet.';

-- The partition of a key.
--   p_partitions: partitions of the lease, for a group that has never run
CREATE OR REPLACE FUNCTION pgleases.schedule_partition(p_group pg_catalog.text, p_key pg_catalog.text, p_partitions int) RETURNS int
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    RETURN pgleases.partition_for(p_key, coalesce((SELECT g.partitions FROM pgleases.schedule_groups AS g WHERE g.name = p_group), p_partitions));
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_partition(pg_catalog.text, pg_catalog.text, int) IS 'The partition of a key in a group.';

-- Creates a schedule. It ticks from now on.
--   p_partitions: partitions of the lease, for a group that has never run
--   p_grace_us, p_jitter_us: microseconds
--   p_pause_after: null: never
--   p_now: the time that schedule_get returned
--   p_due: when it runs first; null: never
-- Returns whether it is created; false if another transaction has created a schedule of this name.
CREATE OR REPLACE FUNCTION pgleases.schedule_create(p_group pg_catalog.text, p_partitions int, p_name pg_catalog.text, p_key pg_catalog.text,
    p_kind pg_catalog.text, p_args pg_catalog.jsonb, p_rule pg_catalog.text, p_missed pg_catalog.text, p_overlap pg_catalog.text,
    p_grace_us bigint, p_jitter_us bigint, p_pause_after int, p_declared boolean, p_now pg_catalog.timestamptz,
    p_due pg_catalog.timestamptz) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    now CONSTANT timestamptz := pgleases.schedule_clock();
BEGIN
    INSERT INTO pgleases.schedules AS t (group_name, name, key, partition, kind, args, rule, anchor, missed, overlap, grace, jitter,
        pause_after, declared, cursor, due, revision, registered)
    VALUES (p_group, p_name, p_key, pgleases.schedule_partition(p_group, p_key, p_partitions), p_kind, p_args, p_rule, p_now, p_missed,
        p_overlap, p_grace_us * interval '1 microsecond', p_jitter_us * interval '1 microsecond', p_pause_after, p_declared, p_now,
        greatest(coalesce(p_due, 'infinity'), now), 1, p_now) -- polls do not search for what has been due for long
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM pgleases.schedule_wake(p_group, p_due);
    RETURN true;
END
$pgleases_body$;

-- Edits a schedule that schedule_get has locked. An edit that changes something raises the revision.
--   p_schedule: its id
--   p_grace_us, p_jitter_us: microseconds
--   p_pause_after: null: never
--   p_now: the time that schedule_get returned
--   p_due: when it runs next; null: never
--   p_until: with a new rule, where the cursor goes
--   p_canceled_until, p_canceled: with a new rule, the last of the canceled ticks of the old rule, and their number
CREATE OR REPLACE FUNCTION pgleases.schedule_replace(p_group pg_catalog.text, p_partitions int, p_schedule bigint, p_key pg_catalog.text,
    p_kind pg_catalog.text, p_args pg_catalog.jsonb, p_rule pg_catalog.text, p_missed pg_catalog.text, p_overlap pg_catalog.text,
    p_grace_us bigint, p_jitter_us bigint, p_pause_after int, p_declared boolean, p_now pg_catalog.timestamptz,
    p_due pg_catalog.timestamptz, p_until pg_catalog.timestamptz, p_canceled_until pg_catalog.timestamptz, p_canceled bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    now     CONSTANT timestamptz := pgleases.schedule_clock();
    grace_  CONSTANT interval := p_grace_us * interval '1 microsecond';
    jitter_ CONSTANT interval := p_jitter_us * interval '1 microsecond';
    s       pgleases.schedules;
    changes boolean;
BEGIN
    SELECT * INTO s FROM pgleases.schedules AS t WHERE t.id = p_schedule;
    changes := (s.key, s.kind, s.args, s.rule, s.missed, s.overlap, s.grace, s.jitter, s.pause_after, s.declared)
        IS DISTINCT FROM (p_key, p_kind, p_args, p_rule, p_missed, p_overlap, grace_, jitter_, p_pause_after, p_declared);
    UPDATE pgleases.schedules AS t
    SET key = p_key, partition = pgleases.schedule_partition(p_group, p_key, p_partitions), kind = p_kind, args = p_args, rule = p_rule,
        missed = p_missed, overlap = p_overlap, grace = grace_, jitter = jitter_, pause_after = p_pause_after,
        declared = p_declared, registered = p_now,
        due = greatest(coalesce(p_due, 'infinity'), now) -- polls do not search for what has been due for long
    WHERE t.id = p_schedule;
    IF changes THEN -- blocked_since stays: the blocked time does not count as lateness
        UPDATE pgleases.schedules AS t SET revision = t.revision + 1, blocked_reason = NULL WHERE t.id = p_schedule;
    END IF;
    IF s.rule <> p_rule THEN -- it begins now. The cursor may be in the future, if the clock was set back
        UPDATE pgleases.schedules AS t SET anchor = p_now, cursor = p_until, cursor_local = NULL, blocked_since = NULL WHERE t.id = p_schedule;
        PERFORM pgleases.schedule_forget_tick(p_schedule);
        s.kind := p_kind;
        PERFORM pgleases.schedule_canceled(s, p_canceled_until, p_canceled, NULL::text);
    END IF;
    PERFORM pgleases.schedule_wake(p_group, p_due);
END
$pgleases_body$;

-- Records that a process declares schedules, as it did at its start, if the last record is older
-- than a day.
--   p_names: their names
CREATE OR REPLACE FUNCTION pgleases.schedule_declare(p_group pg_catalog.text, p_names pg_catalog.text[]) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    UPDATE pgleases.schedules AS s SET registered = pgleases.schedule_clock()
    WHERE s.id IN (SELECT d.id FROM pgleases.schedules AS d
                   WHERE d.group_name = p_group AND d.name = ANY (p_names) AND d.declared AND d.registered < pgleases.schedule_clock() - interval '1 day'
                   FOR NO KEY UPDATE SKIP LOCKED);
END
$pgleases_body$;

-- A row of a status view as JSON. An infinite due becomes null, and late_ns is the lateness in
-- nanoseconds.
--   p_status: the row of the view
--   p_lateness: its lateness
CREATE OR REPLACE FUNCTION pgleases.schedule_status_json(p_status pg_catalog.jsonb, p_lateness pg_catalog.interval) RETURNS pg_catalog.jsonb
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    RETURN p_status || jsonb_build_object('due', nullif(p_status ->> 'due', 'infinity'),
        'late_ns', CASE WHEN p_lateness IS NOT NULL THEN (extract(epoch FROM greatest(least(p_lateness, interval '106751 days'), interval '-106751 days')) * 1000000000)::bigint END);
END
$pgleases_body$;

-- Schedules by name. Of those that are blocked or late it returns 1,000 at most. For late ones it
-- reads the group's part of an index. A look-up for each partition would take longer with many
-- partitions.
--   p_only: paused, blocked, failing or late; empty: all
--   p_prefix: prefix of the names
--   p_after: only names after this one; empty: all
--   p_most: the most rows
-- Returns a row for each, as JSON, with declared_at.
CREATE OR REPLACE FUNCTION pgleases.schedule_list(p_group pg_catalog.text, p_only pg_catalog.text, p_prefix pg_catalog.text, p_after pg_catalog.text, p_most int) RETURNS SETOF pg_catalog.jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' SET enable_seqscan = off SET jit = off AS $pgleases_body$
DECLARE
    long_ago CONSTANT timestamptz := pgleases.schedule_clock() - interval '10 seconds';
BEGIN
    RETURN QUERY WITH chosen AS MATERIALIZED (
        (SELECT s.id FROM pgleases.schedules AS s
         WHERE p_only = '' AND s.group_name = p_group AND s.name >= p_prefix AND s.name > p_after ORDER BY s.name LIMIT p_most)
        UNION ALL
        (SELECT s.id FROM pgleases.schedules AS s
         WHERE p_only = 'paused' AND s.group_name = p_group AND s.paused_at IS NOT NULL AND s.name >= p_prefix AND s.name > p_after ORDER BY s.name LIMIT p_most)
        UNION ALL
        (SELECT s.id FROM pgleases.schedules AS s
         WHERE p_only = 'failing' AND s.group_name = p_group AND s.failures > 0 AND s.name >= p_prefix AND s.name > p_after ORDER BY s.name LIMIT p_most)
        UNION ALL
        (SELECT f.id FROM (
            (SELECT s.id, s.name FROM pgleases.schedules AS s WHERE p_only = 'blocked' AND s.group_name = p_group AND s.blocked_reason IS NOT NULL AND starts_with(s.name, p_prefix) LIMIT 1000)
            UNION ALL
            (SELECT s.id, s.name FROM pgleases.schedules AS s WHERE p_only = 'late' AND s.group_name = p_group AND s.due < long_ago AND starts_with(s.name, p_prefix) LIMIT 1000)) AS f
         WHERE f.name > p_after ORDER BY f.name LIMIT p_most)
    )
    SELECT pgleases.schedule_json(s) || pgleases.schedule_status_json(to_jsonb(v), v.lateness) || jsonb_build_object('declared_at', CASE WHEN s.declared THEN s.registered END)
    FROM chosen AS c JOIN pgleases.schedules AS s ON s.id = c.id JOIN pgleases.schedules_status AS v ON v.id = c.id
    WHERE starts_with(s.name, p_prefix) ORDER BY s.name; -- above, this condition would read all following rows
END
$pgleases_body$;
