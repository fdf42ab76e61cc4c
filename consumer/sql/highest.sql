-- highest.sql: the highest ID in each partition that has rows.
--
-- $1 int[]  partitions
SELECT p.partition, r.id
FROM pg_catalog.unnest($1::int[]) AS p (partition)
CROSS JOIN LATERAL (
    SELECT q.{id}::bigint AS id FROM {table} AS q
    WHERE q.{partition} OPERATOR(pg_catalog.>=) p.partition AND q.{partition} OPERATOR(pg_catalog.<=) p.partition
    ORDER BY q.{partition} DESC, q.{id} DESC
    LIMIT 1
) AS r
