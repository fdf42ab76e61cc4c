-- sweep.sql: removes what blocks a key although its row is gone, and lets rows be handled that were changed since they failed. It returns
-- the partitions of those, and the partitions that may have more rows, with the last ID of each that it looked at.
--
-- $1 text      consumer
-- $2 int[]     partitions
-- $3 bigint[]  for each the ID to begin with
-- $4 int       how many rows of each to look at
WITH page AS MATERIALIZED (
    SELECT b.partition, b.id, b.version, b.content
    FROM ROWS FROM (pg_catalog.unnest($2::int[]), pg_catalog.unnest($3::bigint[])) AS p (partition, since)
    CROSS JOIN LATERAL (
        SELECT b.partition, b.id, b.version, b.content
        FROM pgleases.consumer_blocked AS b
        WHERE b.consumer OPERATOR(pg_catalog.=) $1::pg_catalog.text AND b.partition OPERATOR(pg_catalog.=) p.partition
          AND b.id OPERATOR(pg_catalog.>=) p.since
        ORDER BY b.id
        LIMIT $4::int
    ) AS b
), seen AS MATERIALIZED (
    SELECT b.partition, b.id, b.version AS failed, q.version, q.same
    FROM page AS b
    LEFT JOIN LATERAL (
        SELECT q.xmin::pg_catalog.text AS version, -- a restore changes it, but not the content
               CASE WHEN q.xmin::pg_catalog.text OPERATOR(pg_catalog.<>) b.version
                    THEN coalesce(b.content OPERATOR(pg_catalog.=) pgleases.consumer_content(q, b.content), false) END AS same
        FROM {table} AS q
        WHERE q.{partition} OPERATOR(pg_catalog.>=) b.partition AND q.{partition} OPERATOR(pg_catalog.<=) b.partition AND q.{id} OPERATOR(pg_catalog.=) b.id
    ) AS q ON true
    WHERE (q.version OPERATOR(pg_catalog.=) b.version) IS NOT TRUE
), b AS MATERIALIZED (
    SELECT s.partition, s.id, s.version, s.same
    FROM seen AS s
    JOIN pgleases.consumer_blocked AS o ON o.consumer OPERATOR(pg_catalog.=) $1::pg_catalog.text AND o.partition OPERATOR(pg_catalog.=) s.partition AND o.id OPERATOR(pg_catalog.=) s.id
    WHERE o.version OPERATOR(pg_catalog.=) s.failed -- it has not failed again meanwhile
    FOR UPDATE OF o SKIP LOCKED -- what an operator or a job changes is looked at the next time
), gone AS (
    DELETE FROM pgleases.consumer_blocked AS o USING b
    WHERE o.consumer OPERATOR(pg_catalog.=) $1::pg_catalog.text AND o.partition OPERATOR(pg_catalog.=) b.partition AND o.id OPERATOR(pg_catalog.=) b.id AND b.version IS NULL
), changed AS (
    UPDATE pgleases.consumer_blocked AS o SET version = b.version, attempts = CASE WHEN b.same THEN o.attempts ELSE 0 END,
        next_at = CASE WHEN b.same THEN o.next_at ELSE pg_catalog.clock_timestamp() END FROM b
    WHERE o.consumer OPERATOR(pg_catalog.=) $1::pg_catalog.text AND o.partition OPERATOR(pg_catalog.=) b.partition AND o.id OPERATOR(pg_catalog.=) b.id AND b.version IS NOT NULL
)
SELECT (SELECT pg_catalog.array_agg(DISTINCT b.partition) FROM b), pg_catalog.array_agg(c.partition), pg_catalog.array_agg(c.last)
FROM (
    SELECT p.partition, pg_catalog.max(p.id) AS last
    FROM page AS p
    GROUP BY p.partition
    HAVING pg_catalog.count(*) OPERATOR(pg_catalog.=) $4::int
) AS c
