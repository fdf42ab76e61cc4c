-- functions/schedules.sql: schedules.

-- JSON has no infinity, so due becomes null. The local time is written as if it were in UTC,
-- whatever the zone of the session: the cast back to timestamp without time zone drops the zone.
CREATE OR REPLACE FUNCTION pgleases.schedule_json(s pgleases.schedules) RETURNS pg_catalog.jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' AS $pgleases_body$
BEGIN
    RETURN to_jsonb(s) || jsonb_build_object('due', nullif(s.due, 'infinity'), 'cursor_local',
        (to_jsonb(s.cursor_local) #>> '{}') || 'Z', 'clock', pgleases.schedule_clock());
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

-- Writes a schedule: a new one if its id is 0, otherwise one that schedule_get has locked.
--   p_partitions: partitions of the lease, for a group that has never run
--   p_schedule: the schedule, as schedule_get returns it
--   p_outcomes: outcomes, as in schedule_close, of ticks that the edit cancels
-- Returns whether it is written; false if another transaction has created a schedule of this name.
CREATE OR REPLACE FUNCTION pgleases.schedule_put(p_group pg_catalog.text, p_partitions int, p_schedule pg_catalog.jsonb, p_outcomes pg_catalog.jsonb) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    s   pgleases.schedules := jsonb_populate_record(NULL::pgleases.schedules, p_schedule);
    now CONSTANT timestamptz := pgleases.schedule_clock();
BEGIN
    IF s.due < now + interval '1 second' THEN
        PERFORM pgleases.notify('schedule/' || p_group);
    END IF;
    s.group_name := p_group;
    s.partition := pgleases.partition_for(s.key, coalesce((SELECT g.partitions FROM pgleases.schedule_groups AS g WHERE g.name = p_group), p_partitions));
    s.due := greatest(coalesce(s.due, 'infinity'), now); -- polls do not search for what has been due for long
    s.args := coalesce(s.args, 'null'); -- a JSON null arrives as NULL
    IF s.id = 0 THEN
        INSERT INTO pgleases.schedules AS t (group_name, name, key, partition, kind, args, rule, anchor, policy, declared, cursor, due, revision, registered)
        VALUES (s.group_name, s.name, s.key, s.partition, s.kind, s.args, s.rule, s.anchor, s.policy, s.declared, s.cursor, s.due, 1, s.registered)
        ON CONFLICT DO NOTHING; -- a schedule of this name was created meanwhile
    ELSE
        UPDATE pgleases.schedules AS t
        SET key = s.key, partition = s.partition, kind = s.kind, args = s.args, rule = s.rule, anchor = s.anchor, policy = s.policy, declared = s.declared,
            cursor = s.cursor, cursor_local = s.cursor_local, due = s.due, trying = s.trying, failures = s.failures,
            revision = s.revision, paused_at = s.paused_at, blocked_reason = s.blocked_reason, blocked_since = s.blocked_since, registered = s.registered
        WHERE t.id = s.id;
        PERFORM pgleases.schedule_outcomes(s, p_outcomes);
    END IF;
    RETURN FOUND OR s.id <> 0;
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
