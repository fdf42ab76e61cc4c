-- due.sql: blocked rows that are to be handled again now, of each key the first, or to be skipped, and first those that an
-- operator has asked for.
--
-- $1 text   consumer
-- $2 int[]  partitions
--
-- Of each partition it reads a page of each turn by an index, because the rows that are not due may be many, and so may be
-- those that are. Rows that an operator skips, or has asked for, are behind no other. If no row is due, it reads no page. The
-- range on the hash keeps the planner on the index of keys.
SELECT d.partition, d.id, d.first OPERATOR(pg_catalog.>) 0, d.suspect, d.skip
FROM (
    SELECT p.partition, b.id, b.next_at, w.first, b.crashed IS NOT NULL AND NOT w.skip AS suspect, w.skip
    FROM pg_catalog.unnest($2::int[]) AS p (partition)
    CROSS JOIN (VALUES (true, true, 2), (true, false, 1), (false, true, 0), (false, false, 0)) AS w (asked, skip, first)
    CROSS JOIN LATERAL (
        SELECT b.id, b.next_at, b.crashed
        FROM pgleases.consumer_blocked AS b
        WHERE b.consumer OPERATOR(pg_catalog.=) $1::pg_catalog.text AND b.partition OPERATOR(pg_catalog.=) p.partition
          AND b.asked OPERATOR(pg_catalog.=) w.asked AND (b.skipped_by IS NOT NULL) OPERATOR(pg_catalog.=) w.skip
          AND b.next_at OPERATOR(pg_catalog.<=) pg_catalog.statement_timestamp()
          AND (w.skip OR b.id OPERATOR(pg_catalog.=) (
              SELECT e.id FROM pgleases.consumer_blocked AS e
              WHERE e.consumer OPERATOR(pg_catalog.=) $1::pg_catalog.text AND e.partition OPERATOR(pg_catalog.=) p.partition
                AND pg_catalog.hashtextextended(e.key, 0) OPERATOR(pg_catalog.>=) pg_catalog.hashtextextended(b.key, 0)
                AND pg_catalog.hashtextextended(e.key, 0) OPERATOR(pg_catalog.<=) pg_catalog.hashtextextended(b.key, 0)
                AND e.key OPERATOR(pg_catalog.=) b.key
              ORDER BY pg_catalog.hashtextextended(e.key, 0), e.id
              LIMIT 1))
        ORDER BY b.next_at
        LIMIT greatest(20, 100 OPERATOR(pg_catalog./) pg_catalog.cardinality($2::int[]))
    ) AS b
    WHERE EXISTS (SELECT FROM pgleases.consumer_blocked AS o
                  WHERE o.consumer OPERATOR(pg_catalog.=) $1::pg_catalog.text AND o.next_at OPERATOR(pg_catalog.<) 'infinity'
                    AND o.next_at OPERATOR(pg_catalog.<=) pg_catalog.statement_timestamp())
    -- Each partition's first, so that none waits for the rows of another, which may be paused.
    ORDER BY pg_catalog.row_number() OVER (PARTITION BY p.partition ORDER BY w.first DESC, b.next_at), b.next_at
    LIMIT greatest(100, pg_catalog.cardinality($2::int[]))
) AS d
ORDER BY d.first DESC, d.next_at
