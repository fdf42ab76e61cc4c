-- functions/poll.sql: what is due.

-- What is due now or soon, in the partitions of a process.
--   p_fresh: partitions that it owns since its last poll. Blocked schedules and jobs there become
--     due at once, because this process may know what the last owner did not
--   p_since_us: only what is due after this instant, microseconds since 1970; ignored for fresh
--     partitions
--   p_horizon_us: how far to look ahead, microseconds
--   p_further_us: for each partition, how much further back it is to be read, microseconds
--   p_most: for each partition the most rows, for schedules, and for jobs of each priority
--   p_few: how many of these it reads also when those of higher priorities fill the answer
--   p_total: the most rows in all, of the highest priority and the earliest due time
--   p_without_keys: keys to leave out
--   p_without_kinds: kinds to leave out
--   p_schedules: ids of schedules that the process runs
--   p_jobs: the same of jobs
-- Returns one row: the database's time when the poll began, microseconds since 1970, and how long
-- it took, microseconds. Then, in the order of due, an array of each of id, job, priority,
-- partition, key, kind, due_us and the counted crashes; null if no item is due. Last those of
-- p_schedules and p_jobs that no longer exist.
CREATE OR REPLACE FUNCTION pgleases.schedule_poll(
    p_group pg_catalog.text, p_partitions int[], p_fresh int[], p_since_us bigint, p_horizon_us bigint,
    p_further_us bigint[], p_most int[], p_few int, p_total int, p_without_keys pg_catalog.text[],
    p_without_kinds pg_catalog.text[], p_schedules bigint[], p_jobs bigint[], OUT clock_us bigint, OUT took_us bigint, OUT id bigint[], OUT job boolean[],
    OUT priority int[], OUT partition int[], OUT key pg_catalog.text[], OUT kind pg_catalog.text[], OUT due_us bigint[],
    OUT crashes int[], OUT gone_schedules bigint[], OUT gone_jobs bigint[])
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $pgleases_body$
DECLARE
    now CONSTANT timestamptz := pgleases.schedule_clock();
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
                       WHERE w.group_name = p_group AND w.partition = ANY (p_fresh) AND w.blocked_reason IS NOT NULL
                           AND w.due > now
                       LIMIT 1000 FOR UPDATE SKIP LOCKED);
    END IF;
    clock_us := (extract(epoch FROM now) * 1000000)::bigint;
    SELECT array_agg(f.id), array_agg(f.job), array_agg(f.priority), array_agg(f.partition), array_agg(f.key), array_agg(f.kind),
        array_agg((extract(epoch FROM greatest(f.due, '0001-01-01 00:00+00')) * 1000000)::bigint), array_agg(f.crashes)
    INTO id, job, priority, partition, key, kind, due_us, crashes
    FROM (
        SELECT t.* FROM (
            SELECT d.* FROM pgleases.schedule_due(
                p_group, p_partitions, p_fresh, timestamptz 'epoch' + p_since_us * interval '1 microsecond',
                now + p_horizon_us * interval '1 microsecond', p_further_us, p_most, p_few, p_total, p_without_keys,
                p_without_kinds) AS d
            ORDER BY d.priority DESC, d.due, d.id LIMIT p_total
        ) AS t
        ORDER BY t.due, t.id
    ) AS f;
    gone_schedules := ARRAY(SELECT r.id FROM unnest(p_schedules) AS r (id)
                            WHERE NOT EXISTS (SELECT FROM pgleases.schedules AS s WHERE s.id = r.id));
    gone_jobs := ARRAY(SELECT r.id FROM unnest(p_jobs) AS r (id) WHERE NOT EXISTS (SELECT FROM pgleases.jobs AS j WHERE j.id = r.id));
    took_us := (extract(epoch FROM clock_timestamp() - statement_timestamp()) * 1000000)::bigint; -- not schedule_clock(), which stands still
END
$pgleases_body$;

-- Reads what schedule_poll returns, from the highest priority to the lowest. Once the rows of higher
-- priorities fill the answer, it reads only p_few of each lower one in each partition, so that they
-- are not forgotten when those that come first cannot begin. It returns the earliest of each
-- priority in each partition, so anything else there is due later than what it returns.
--   p_since, p_until: only what is due between these instants
--   others: see schedule_poll
CREATE OR REPLACE FUNCTION pgleases.schedule_due(
    p_group pg_catalog.text, p_partitions int[], p_fresh int[], p_since pg_catalog.timestamptz,
    p_until pg_catalog.timestamptz, p_further_us bigint[], p_most int[], p_few int, p_total int,
    p_without_keys pg_catalog.text[], p_without_kinds pg_catalog.text[])
RETURNS TABLE (id bigint, job boolean, priority int, partition int, key pg_catalog.text, kind pg_catalog.text,
    due pg_catalog.timestamptz, crashes int)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $pgleases_body$
DECLARE
    room bigint := least(p_total, (SELECT sum(m.most) FROM unnest(p_most) AS m (most)));
    n    bigint;
BEGIN
    FOR band IN REVERSE 3..0 LOOP
        RETURN QUERY
        SELECT d.id, d.job, band, p.partition, d.key, d.kind, d.due, d.crashes
        FROM ROWS FROM (unnest(p_partitions), unnest(p_further_us), unnest(p_most)) AS p (partition, further_us, most)
        CROSS JOIN LATERAL (
            -- behind an old snapshot, the index has many dead entries before this time
            SELECT CASE WHEN p.partition = ANY (p_fresh) THEN '-infinity'
                        ELSE p_since - p.further_us * interval '1 microsecond' END AS since,
                least(p.most, greatest(room, p_few)) AS most
        ) AS l
        CROSS JOIN LATERAL (
            (SELECT s.id, false AS job, s.key, s.kind, s.due, s.crashes FROM pgleases.schedules AS s
             WHERE band = 1 AND s.group_name = p_group AND s.partition = p.partition AND s.due BETWEEN l.since AND p_until
                 AND s.key <> ALL (p_without_keys) AND s.kind <> ALL (p_without_kinds)
             ORDER BY s.due LIMIT l.most)
            UNION ALL
            (SELECT j.id, true, j.key, j.kind, j.due, j.crashes FROM pgleases.jobs AS j
             WHERE j.group_name = p_group AND j.partition = p.partition AND j.priority = band
                 AND j.due BETWEEN l.since AND p_until
                 AND j.key <> ALL (p_without_keys) AND j.kind <> ALL (p_without_kinds)
             ORDER BY j.due LIMIT l.most)
        ) AS d;
        GET DIAGNOSTICS n = ROW_COUNT;
        room := room - n;
    END LOOP;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_due(
    pg_catalog.text, int[], int[], pg_catalog.timestamptz, pg_catalog.timestamptz, bigint[], int[], int, int,
    pg_catalog.text[], pg_catalog.text[])
    IS 'Part of schedule_poll: reads what is due.';

-- Blocks, under the guard of the partition, what is due of kinds that its owner does not register. It
-- is due again after as long as it has been blocked.
--   p_kinds: the kinds
--   p_reasons: for each of them, the reason
--   p_until_us: what is due by then, microseconds since 1970
--   p_least_ms: due again after this time at least, milliseconds
--   p_longest_ms: and at most
--   p_most: how many schedules, and how many jobs, it blocks at most
--   p_lock_ms: the most that it waits for a lock, milliseconds
-- Returns whether more may be due, and as an array of JSON what has been blocked for longest of each
-- kind; null if nothing was due.
CREATE OR REPLACE FUNCTION pgleases.schedule_block(p_lease pg_catalog.text, p_number int, p_epoch bigint, p_group pg_catalog.text, p_kinds pg_catalog.text[], p_reasons pg_catalog.text[], p_until_us bigint, p_least_ms bigint, p_longest_ms bigint, p_most int, p_lock_ms int, OUT more boolean, OUT oldest pg_catalog.jsonb)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $pgleases_body$
DECLARE
    now     CONSTANT timestamptz := pgleases.schedule_clock();
    until   CONSTANT timestamptz := timestamptz 'epoch' + p_until_us * interval '1 microsecond';
    least_  CONSTANT interval := p_least_ms * interval '1 millisecond';
    longest CONSTANT interval := p_longest_ms * interval '1 millisecond';
BEGIN
    PERFORM set_config('lock_timeout', p_lock_ms::text, true), set_config('idle_in_transaction_session_timeout', '5000', true),
        pgleases.guard(p_lease, p_number, p_epoch);
    WITH blocked_schedules AS (
        UPDATE pgleases.schedules AS s
        SET blocked_reason = p_reasons[array_position(p_kinds, s.kind)], blocked_since = coalesce(s.blocked_since, now),
            due = now + least(greatest(least_, pgleases.schedule_since(s.blocked_since)), longest)
        WHERE s.id IN (SELECT w.id FROM pgleases.schedules AS w
                       WHERE w.group_name = p_group AND w.partition = p_number AND w.due <= until AND w.kind = ANY (p_kinds) AND w.paused_at IS NULL
                       LIMIT p_most FOR NO KEY UPDATE SKIP LOCKED)
        RETURNING s.id, false AS job, s.name, s.key, s.kind, s.blocked_since
    ), blocked_jobs AS (
        UPDATE pgleases.jobs AS j
        SET blocked_reason = p_reasons[array_position(p_kinds, j.kind)], blocked_since = coalesce(j.blocked_since, now),
            due = now + least(greatest(least_, pgleases.schedule_since(j.blocked_since)), longest)
        WHERE j.id IN (SELECT w.id FROM pgleases.jobs AS w
                       WHERE w.group_name = p_group AND w.partition = p_number AND w.due <= until AND w.kind = ANY (p_kinds)
                       LIMIT p_most FOR NO KEY UPDATE SKIP LOCKED)
        RETURNING j.id, true AS job, j.name, j.key, j.kind, j.blocked_since
    ), blocked AS (
        SELECT * FROM blocked_schedules UNION ALL SELECT * FROM blocked_jobs
    )
    SELECT greatest((SELECT count(*) FROM blocked_schedules), (SELECT count(*) FROM blocked_jobs)) = p_most, (
        SELECT jsonb_agg(to_jsonb(o) || jsonb_build_object('since', o.blocked_since, 'waited', extract(epoch FROM now - o.blocked_since)))
        FROM (SELECT DISTINCT ON (b.kind) b.* FROM blocked AS b ORDER BY b.kind, b.blocked_since) AS o
    ) INTO more, oldest;
END
$pgleases_body$;

-- Blocks a schedule or a job whose row the process cannot read. It is due again after as long as it
-- has been blocked. All else in the row stays.
--   p_subject: the id of the schedule or job
--   p_is_job: true for a job
--   p_reason: the reason
--   p_least_ms: due again after this time at least, milliseconds
--   p_longest_ms: and at most
CREATE OR REPLACE FUNCTION pgleases.schedule_set_aside(p_subject bigint, p_is_job boolean, p_reason pg_catalog.text, p_least_ms bigint, p_longest_ms bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $pgleases_body$
DECLARE
    now     CONSTANT timestamptz := pgleases.schedule_clock();
    least_  CONSTANT interval := p_least_ms * interval '1 millisecond';
    longest CONSTANT interval := p_longest_ms * interval '1 millisecond';
BEGIN
    IF p_is_job THEN
        UPDATE pgleases.jobs AS j SET blocked_reason = p_reason, blocked_since = coalesce(j.blocked_since, now),
            due = now + least(greatest(least_, pgleases.schedule_since(j.blocked_since)), longest)
        WHERE j.id = p_subject;
    ELSE
        UPDATE pgleases.schedules AS s SET blocked_reason = p_reason, blocked_since = coalesce(s.blocked_since, now),
            due = now + least(greatest(least_, pgleases.schedule_since(s.blocked_since)), longest)
        WHERE s.id = p_subject AND s.paused_at IS NULL;
    END IF;
END
$pgleases_body$;
