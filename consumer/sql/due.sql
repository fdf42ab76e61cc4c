-- due.sql: blocked rows that are to be handled again now, of each key the first, or to be skipped, and first those that an
-- operator has asked for.
--
-- $1 text   consumer
-- $2 int[]  partitions
SELECT d.partition, d.id, d.first OPERATOR(pg_catalog.>) 0, d.suspect, d.skip
FROM (
    SELECT b.partition, b.id, b.next_at, f.first, b.crashed IS NOT NULL AND b.skipped_by IS NULL AS suspect, b.skipped_by IS NOT NULL AS skip
    FROM pgleases.consumer_blocked AS b
    CROSS JOIN LATERAL (SELECT CASE WHEN NOT b.asked THEN 0 WHEN b.skipped_by IS NULL THEN 1 ELSE 2 END AS first) AS f
    WHERE b.consumer OPERATOR(pg_catalog.=) $1::pg_catalog.text AND b.partition OPERATOR(pg_catalog.=) ANY ($2::int[])
      AND b.next_at OPERATOR(pg_catalog.<=) pg_catalog.clock_timestamp()
      AND (b.skipped_by IS NOT NULL
           OR (b.partition, b.key, b.id) OPERATOR(pg_catalog.=) ANY ( -- one hash for all: with EXISTS, 10,000 due keys of a partition took more than a minute
               SELECT e.partition, e.key, pg_catalog.min(e.id) FROM pgleases.consumer_blocked AS e
               WHERE e.consumer OPERATOR(pg_catalog.=) $1::pg_catalog.text AND e.partition OPERATOR(pg_catalog.=) ANY ($2::int[])
               GROUP BY e.partition, e.key))
    -- Each partition's first, so that none waits for the rows of another, which may be paused.
    ORDER BY pg_catalog.row_number() OVER (PARTITION BY b.partition ORDER BY f.first DESC, b.next_at), b.next_at
    LIMIT greatest(100, pg_catalog.cardinality($2::int[]))
) AS d
ORDER BY d.first DESC, d.next_at
