-- functions/poll.sql: what is due.

-- What is due now or soon, in the partitions of a process.
--   p_fresh: partitions that it owns since its last poll. Blocked schedules and jobs there become
--     due at once, because this process may know what the last owner did not
--   p_since_us: only what is due after this instant, microseconds since 1970; ignored for fresh
--     partitions
--   p_horizon_us: how far to look ahead, microseconds
--   p_most: the most rows of each partition, for schedules, and for jobs of each priority
--   p_without_keys: keys to leave out
--   p_without_kinds: kinds to leave out
-- Returns one row: the database's time when the poll began, microseconds since 1970, and how long
-- it took, microseconds. Then, in the order of due, an array of each of id, job, priority,
-- partition, key, kind, due_us and the counted crashes; null if no item is due.
CREATE OR REPLACE FUNCTION pgleases.schedule_poll(p_group pg_catalog.text, p_partitions int[], p_fresh int[], p_since_us bigint, p_horizon_us bigint, p_most int, p_without_keys pg_catalog.text[], p_without_kinds pg_catalog.text[], OUT clock_us bigint, OUT took_us bigint, OUT id bigint[], OUT job boolean[], OUT priority int[], OUT partition int[], OUT key pg_catalog.text[], OUT kind pg_catalog.text[], OUT due_us bigint[], OUT crashes int[])
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $pgleases_body$
DECLARE
    now   CONSTANT timestamptz := pgleases.schedule_clock();
    since CONSTANT timestamptz := timestamptz 'epoch' + p_since_us * interval '1 microsecond';
    until CONSTANT timestamptz := now + p_horizon_us * interval '1 microsecond';
BEGIN
    IF cardinality(p_fresh) > 0 THEN
        -- Few enough for a fast poll. The others become due when they have been blocked twice as
        -- long, and within 1 hour.
        UPDATE pgleases.schedules AS s SET due = now
        WHERE s.id IN (SELECT w.id FROM pgleases.schedules AS w
                       WHERE w.group_name = p_group AND w.partition = ANY (p_fresh) AND w.blocked_reason IS NOT NULL
                           AND w.paused_at IS NULL AND w.due > now
                       LIMIT 1000 FOR UPDATE SKIP LOCKED);
        UPDATE pgleases.jobs AS j SET due = now
        WHERE j.id IN (SELECT w.id FROM pgleases.jobs AS w
                       WHERE w.group_name = p_group AND w.partition = ANY (p_fresh) AND w.blocked_reason IS NOT NULL AND w.due > now
                       LIMIT 1000 FOR UPDATE SKIP LOCKED);
    END IF;
    clock_us := (extract(epoch FROM now) * 1000000)::bigint;
    SELECT array_agg(f.id), array_agg(f.job), array_agg(f.priority), array_agg(f.partition), array_agg(f.key), array_agg(f.kind),
        array_agg((extract(epoch FROM f.due) * 1000000)::bigint), array_agg(coalesce((f.trying ->> 'crashes')::int, 0))
    INTO id, job, priority, partition, key, kind, due_us, crashes
    FROM (
        SELECT d.*, p.partition
        FROM unnest(p_partitions) AS p (partition)
        CROSS JOIN LATERAL (
            (SELECT s.id, false AS job, 1 AS priority, s.key, s.kind, s.due, s.trying FROM pgleases.schedules AS s
            WHERE s.group_name = p_group AND s.partition = p.partition AND s.due <= until AND s.key <> ALL (p_without_keys) AND s.kind <> ALL (p_without_kinds)
              -- behind an old snapshot, the index has many dead entries before this time
              AND s.due > CASE WHEN p.partition = ANY (p_fresh) THEN '-infinity' ELSE since END
            ORDER BY s.due LIMIT p_most)
            UNION ALL
            SELECT b.* FROM generate_series(0, 3) AS band (priority)
            CROSS JOIN LATERAL (
                SELECT j.id, true, j.priority, j.key, j.kind, j.due, j.trying FROM pgleases.jobs AS j
                WHERE j.group_name = p_group AND j.partition = p.partition AND j.priority = band.priority AND j.due <= until
                    AND j.key <> ALL (p_without_keys) AND j.kind <> ALL (p_without_kinds)
                  AND j.due > CASE WHEN p.partition = ANY (p_fresh) THEN '-infinity' ELSE since END
                ORDER BY j.due LIMIT p_most
            ) AS b
        ) AS d
        ORDER BY d.due, d.id
    ) AS f;
    took_us := (extract(epoch FROM clock_timestamp() - statement_timestamp()) * 1000000)::bigint; -- not schedule_clock(), which stands still
END
$pgleases_body$;
