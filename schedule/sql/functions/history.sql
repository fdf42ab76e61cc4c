-- functions/history.sql: outcomes.

CREATE OR REPLACE FUNCTION pgleases.schedule_outcomes(s pgleases.schedules, p_outcomes pg_catalog.jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    INSERT INTO pgleases.history (schedule, group_name, name, kind, since, until, ticks, outcome, error, attempts, epoch, started_at, ended_at, again)
    SELECT s.id, s.group_name, s.name, s.kind, f.since, f.until, f.ticks, f.outcome, f.error, coalesce(f.attempts, 0), f.epoch,
        f.started_at, pgleases.schedule_clock(), CASE WHEN f.outcome IN ('failed', 'unknown') THEN jsonb_build_object('rule', f.rule, 'begins', f.begins) END
    FROM jsonb_to_recordset(p_outcomes) AS f (since timestamptz, until timestamptz, ticks bigint, outcome text, error text, attempts int,
        epoch bigint, started_at timestamptz, rule text, begins timestamptz)
    ORDER BY f.until;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_outcomes(pgleases.schedules, pg_catalog.jsonb) IS 'Writes the outcomes of ticks into the history.';

CREATE OR REPLACE FUNCTION pgleases.schedule_job_outcomes(j pgleases.jobs, p_outcomes pg_catalog.jsonb) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    INSERT INTO pgleases.history (schedule, job, group_name, name, kind, since, until, ticks, outcome, error, attempts, epoch, started_at, ended_at, again)
    SELECT CASE WHEN j.unique_key = j.name THEN -1 ELSE 0 END, j.id, j.group_name, j.name, j.kind, coalesce(f.until, j.at), coalesce(f.until, j.at), 1, f.outcome, f.error, coalesce(f.attempts, 0), f.epoch, f.started_at, pgleases.schedule_clock(),
           CASE WHEN f.outcome <> 'succeeded' THEN jsonb_build_object('key', coalesce(f.key, j.key), 'args', coalesce(f.args, j.args), 'priority',
           j.priority, 'unique_key', j.unique_key, 'begins', j.begins, 'rule', j.rule, 'nonce', coalesce(f.nonce, j.nonce), 'revision', j.revision) END
    FROM jsonb_to_recordset(p_outcomes) AS f (until timestamptz, key text, args jsonb, nonce uuid, outcome text, error text, attempts int, epoch bigint, started_at timestamptz);
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_job_outcomes(pgleases.jobs, pg_catalog.jsonb) IS 'Writes the outcomes of a job into the history.';

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
        RETURN QUERY SELECT coalesce(h.again, '{}') || to_jsonb(h) - 'again' FROM pgleases.history AS h
        WHERE h.group_name = p_group AND h.name = p_name AND h.schedule >= 0 AND h.id < p_before ORDER BY h.id DESC LIMIT p_most;
        RETURN;
    END IF;
    RETURN QUERY SELECT coalesce(h.again, '{}') || to_jsonb(h) - 'again' FROM (SELECT f.* FROM pgleases.history AS f WHERE f.outcome = ANY ('{failed,unknown}'::text[]) ORDER BY f.ended_at DESC LIMIT 1000) AS h
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
    IF p_failed THEN
        DELETE FROM pgleases.schedule_changes AS q
        WHERE q.id IN (SELECT r.id FROM pgleases.schedule_changes AS r WHERE r.group_name = p_group AND r.at < p_before ORDER BY r.at LIMIT p_most);
    END IF;
END
$pgleases_body$;
