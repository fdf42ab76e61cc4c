-- functions/history.sql: outcomes.

-- Writes the outcome of ticks of a schedule that an edit cancels, if p_ticks is not 0.
--   p_until: the last of these ticks. They begin after the schedule's cursor
--   p_error: who canceled them, and why; null: not an operator
CREATE OR REPLACE FUNCTION pgleases.schedule_canceled(s pgleases.schedules, p_until pg_catalog.timestamptz, p_ticks bigint, p_error pg_catalog.text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    INSERT INTO pgleases.history (source, schedule, group_name, name, kind, since, until, ticks, outcome, error, ended_at)
    SELECT 'tick', s.id, s.group_name, s.name, s.kind, s.cursor, p_until, p_ticks, 'canceled', p_error, pgleases.schedule_clock()
    WHERE p_ticks > 0;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_canceled(pgleases.schedules, pg_catalog.timestamptz, bigint, pg_catalog.text) IS 'Writes the outcome of canceled ticks into the history.';

-- A job's source in the history: only extra runs of schedules have a rule.
CREATE OR REPLACE FUNCTION pgleases.schedule_source(j pgleases.jobs) RETURNS pg_catalog.text
LANGUAGE sql IMMUTABLE AS $pgleases_body$ SELECT CASE WHEN j.rule IS NULL THEN 'job' ELSE 'extra' END $pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_source(pgleases.jobs) IS 'The source of a job''s row of the history.';

-- A row of the history as JSON. Arguments that are not kept are left out, because null is an
-- argument too. Clients may write any times, and JSON can hold those of the years 1 to 9999.
CREATE OR REPLACE FUNCTION pgleases.schedule_entry_json(h pgleases.history) RETURNS pg_catalog.jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' AS $pgleases_body$
BEGIN
    h.since := least(greatest(h.since, '0001-01-02 UTC'), '9999-12-30 UTC');
    h.until := least(greatest(h.until, '0001-01-02 UTC'), '9999-12-30 UTC');
    h.ended_at := least(greatest(h.ended_at, '0001-01-02 UTC'), '9999-12-30 UTC');
    IF h.started_at IS NOT NULL THEN
        h.started_at := least(greatest(h.started_at, '0001-01-02 UTC'), '9999-12-30 UTC');
    END IF;
    IF h.begins IS NOT NULL THEN
        h.begins := least(greatest(h.begins, '0001-01-02 UTC'), '9999-12-30 UTC');
    END IF;
    RETURN CASE WHEN h.args IS NULL THEN to_jsonb(h) - 'args' ELSE to_jsonb(h) END;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_entry_json(pgleases.history) IS 'A row of the history as JSON, with times within the range of JSON.';

-- The outcomes of a schedule's ticks and of its extra runs, newest first.
--   p_name: name of the schedule; null: failed and unknown jobs of the group, among the latest
--     1,000 such entries of all groups
--   p_before: only rows with lower ids
--   p_most: the most rows
-- Returns a row for each, as JSON, with what a retry needs.
CREATE OR REPLACE FUNCTION pgleases.schedule_history(p_group pg_catalog.text, p_name pg_catalog.text, p_before bigint, p_most int) RETURNS SETOF pg_catalog.jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' SET enable_seqscan = off SET jit = off AS $pgleases_body$
BEGIN
    IF p_name IS NOT NULL THEN
        RETURN QUERY SELECT pgleases.schedule_entry_json(h) FROM pgleases.history AS h
        WHERE h.group_name = p_group AND h.name = p_name AND h.source <> 'job' AND h.id < p_before ORDER BY h.id DESC LIMIT p_most;
        RETURN;
    END IF;
    RETURN QUERY SELECT pgleases.schedule_entry_json(h)
    FROM (SELECT f.id FROM pgleases.history AS f WHERE f.outcome = ANY ('{failed,unknown}'::text[])
          ORDER BY f.ended_at DESC LIMIT 1000) AS latest
    JOIN pgleases.history AS h ON h.id = latest.id
    WHERE h.group_name = p_group AND h.job IS NOT NULL AND h.id < p_before ORDER BY h.id DESC LIMIT p_most;
END
$pgleases_body$;

-- Deletes one page of old entries of the history.
--   p_failed: true for failed and unknown outcomes, false for all others
--   p_before: entries written before this time
--   p_after: only entries after this id
--   p_most: how many entries to read
-- up_to: up to this id the page is done; more: there may be another page.
CREATE OR REPLACE FUNCTION pgleases.schedule_trim(p_group pg_catalog.text, p_failed boolean, p_before pg_catalog.timestamptz, p_after bigint, p_most int, OUT up_to bigint, OUT more boolean)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    kept  bigint; -- the first entry that is not old enough
    last  bigint;
    found bigint;
BEGIN
    -- Entries written while the clock was far ahead do not stop the deletion.
    SELECT min(h.id) FILTER (WHERE h.ended_at >= p_before AND h.ended_at < pgleases.schedule_clock() + (pgleases.schedule_clock() - p_before)),
        max(h.id), count(*) INTO kept, last, found
    FROM (SELECT p.id, p.ended_at FROM pgleases.history AS p WHERE p.id > p_after ORDER BY p.id LIMIT p_most) AS h;
    up_to := coalesce(kept - 1, last, p_after);
    more := kept IS NULL AND found = p_most;
    DELETE FROM pgleases.history AS h WHERE h.id > p_after AND h.id <= up_to AND h.ended_at < p_before AND h.group_name = p_group AND (h.outcome IN ('failed', 'unknown')) = p_failed;
END
$pgleases_body$;
