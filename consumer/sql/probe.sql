-- probe.sql: which partitions have a row to handle, and the ID of the first.
--
-- $1 int[]     partitions
-- $2 bigint[]  for each, the ID above which to look
-- $3 text      consumer
--
-- The range on the partition keeps the planner on the index of (partition, id). If the table is empty, one look at it is
-- enough for all partitions.
SELECT p.partition, r.id
FROM ROWS FROM (pg_catalog.unnest($1::int[]), pg_catalog.unnest($2::bigint[])) AS p (partition, low)
CROSS JOIN LATERAL (
    SELECT q.{id}::bigint AS id FROM {table} AS q
    WHERE q.{partition} OPERATOR(pg_catalog.>=) p.partition AND q.{partition} OPERATOR(pg_catalog.<=) p.partition AND q.{id} OPERATOR(pg_catalog.>) p.low
      AND {key} NOT IN (SELECT b.key FROM pgleases.consumer_blocked AS b
                        WHERE b.consumer OPERATOR(pg_catalog.=) $3::pg_catalog.text AND b.partition OPERATOR(pg_catalog.=) p.partition)
    ORDER BY q.{partition}, q.{id}
    LIMIT 1
) AS r
WHERE EXISTS (SELECT FROM {table})
