-- probe.sql: which partitions have a row to handle.
--
-- $1 int[]     partitions
-- $2 bigint[]  for each, the ID above which to look
-- $3 text      consumer
--
-- The range on the partition keeps the planner on the index of (partition, id).
SELECT p.partition
FROM ROWS FROM (pg_catalog.unnest($1::int[]), pg_catalog.unnest($2::bigint[])) AS p (partition, low)
CROSS JOIN LATERAL (
    SELECT FROM {table} AS q
    WHERE q.{partition} OPERATOR(pg_catalog.>=) p.partition AND q.{partition} OPERATOR(pg_catalog.<=) p.partition AND q.{id} OPERATOR(pg_catalog.>) p.low
      AND {key} NOT IN (SELECT b.key FROM pgleases.consumer_blocked AS b
                        WHERE b.consumer OPERATOR(pg_catalog.=) $3::pg_catalog.text AND b.partition OPERATOR(pg_catalog.=) p.partition)
    ORDER BY q.{partition}, q.{id}
    LIMIT 1
) AS r
