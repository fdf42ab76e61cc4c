-- settle.sql: after a promotion, once every owner of before has seen it or has stopped: owners keep what they have
-- under a new epoch of a new era, above all that the old server may have given out, and partitions move again.
--
-- $1 bigint watched: how long the caller has watched this run of the server, microseconds
-- $2 bigint timeline, $3 bigint started, $4 bigint mark: the run of the server that was watched
-- $5 int    lock timeout, milliseconds
--
-- One row where it may be settled: whether it was. If not, a guarded transaction is open; no new one passes until the
-- next attempt, which shall follow within 2 s.
WITH settings AS MATERIALIZED (
    SELECT pgleases.settings(true, $5::int) AS ok
), due AS MATERIALIZED (
    SELECT greatest(s.era + 1, $2::bigint) AS era
    FROM pgleases.server AS s, settings
    WHERE settings.ok AND s.timeline <> $2::bigint AND pgleases.timeline() = $2::bigint
      AND (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint = $3::bigint
      AND (SELECT m.mark FROM pgleases.server_mark AS m) = $4::bigint
      AND NOT EXISTS (SELECT FROM pgleases.clients AS c WHERE c.ttl > $1::bigint * interval '1 microsecond')
    FOR UPDATE OF s SKIP LOCKED
), locked AS MATERIALIZED (
    SELECT l.name FROM pgleases.leases AS l
    WHERE EXISTS (SELECT FROM due)
    ORDER BY l.name
    FOR UPDATE OF l
), taken AS MATERIALIZED (
    SELECT p.lease, p.partition FROM pgleases.partitions AS p
    WHERE EXISTS (SELECT FROM due) AND (SELECT count(*) FROM locked) >= 0
    ORDER BY p.lease, p.partition
    FOR UPDATE OF p SKIP LOCKED
), complete AS MATERIALIZED ( -- all or nothing: a guarded transaction that is open postpones it
    SELECT due.era FROM due
    WHERE (SELECT count(*) FROM taken) = (SELECT count(*) FROM pgleases.partitions)
), raised AS (
    UPDATE pgleases.partitions AS p
    SET epoch = greatest(p.epoch + 1, (SELECT era FROM complete) << 32)
    FROM taken
    WHERE p.lease = taken.lease AND p.partition = taken.partition AND EXISTS (SELECT FROM complete)
), changed AS (
    UPDATE pgleases.leases AS l
    SET generation = l.generation + 1, next_check_at = clock_timestamp()
    FROM locked
    WHERE l.name = locked.name AND EXISTS (SELECT FROM complete)
)
UPDATE pgleases.server AS s -- subqueries, not joins, read "complete": the planner would think of many rows, and compile
SET timeline = CASE WHEN EXISTS (SELECT FROM complete) THEN $2::bigint ELSE s.timeline END,
    era = coalesce((SELECT era FROM complete), s.era),
    next_check_at = CASE WHEN EXISTS (SELECT FROM complete) THEN clock_timestamp() ELSE s.next_check_at END,
    settling_to = CASE WHEN EXISTS (SELECT FROM complete) THEN '-infinity' ELSE clock_timestamp() + interval '2 seconds' END
WHERE EXISTS (SELECT FROM due)
RETURNING EXISTS (SELECT FROM complete) AS settled
