-- settle.sql: settles the timeline after a promotion, once every owner from before has seen it or has lost its trust. Owners
-- keep their partitions, under a new epoch in a new era, above every epoch of the old server; partitions move again.
--
-- $1 bigint  time for which the caller has watched this run of the server, microseconds
-- $2 bigint timeline, $3 bigint started, $4 bigint mark: the run of the server that was watched
-- $5 bigint  31 random bits, with which the epochs of the era begin: two copies of one server may be settled in the same second
-- $6 int     lock timeout, milliseconds
--
-- One row where the timeline may be settled: whether it was. If not, a guarded transaction is open; no new guard passes until
-- the next attempt, which must follow within 2 s. No row where it is settled already, or may not be settled yet.
WITH settings AS MATERIALIZED ( -- read below, else PostgreSQL would not run it
    SELECT pgleases.settings(true, $6::int) AS ok
), due AS MATERIALIZED ( -- not while a session's TTL is longer than the watch; SKIP LOCKED: another client settles
    -- Seconds since 2020: two standbys of one server have the same era and the same next timeline, and one may be promoted
    -- after the other. Below 2^31, as an epoch begins with it.
    SELECT greatest(s.era + 1, least(floor(extract(epoch FROM clock_timestamp())) - 1577836800, 2000000000)::bigint) AS era
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
    WHERE EXISTS (SELECT FROM due) AND (SELECT count(*) FROM locked) >= 0 -- always true: leases are locked first
    ORDER BY p.lease, p.partition
    FOR UPDATE OF p SKIP LOCKED -- a guarded transaction has the others
), complete AS MATERIALIZED ( -- one row where all partitions were taken: all or nothing
    SELECT due.era FROM due
    WHERE (SELECT count(*) FROM taken) = (SELECT count(*) FROM pgleases.partitions)
), raised AS (
    UPDATE pgleases.partitions AS p
    SET epoch = greatest(p.epoch + 1, ((SELECT era FROM complete) << 32) + $5::bigint)
    FROM taken
    WHERE p.lease = taken.lease AND p.partition = taken.partition AND EXISTS (SELECT FROM complete)
), changed AS (
    UPDATE pgleases.leases AS l
    SET generation = l.generation + 1, next_check_at = clock_timestamp()
    FROM locked
    WHERE l.name = locked.name AND EXISTS (SELECT FROM complete)
)
UPDATE pgleases.server AS s -- complete is read by subqueries: for a join the planner expects many rows, and compiles (JIT)
SET timeline = CASE WHEN EXISTS (SELECT FROM complete) THEN $2::bigint ELSE s.timeline END,
    era = coalesce((SELECT era FROM complete), s.era),
    next_check_at = CASE WHEN EXISTS (SELECT FROM complete) THEN clock_timestamp() ELSE s.next_check_at END,
    settling_to = CASE WHEN EXISTS (SELECT FROM complete) THEN '-infinity' ELSE clock_timestamp() + interval '2 seconds' END
WHERE EXISTS (SELECT FROM due)
RETURNING EXISTS (SELECT FROM complete) AS settled
