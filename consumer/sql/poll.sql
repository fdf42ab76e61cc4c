-- poll.sql: which partitions have a row to handle.
--
-- $1 int[]  partitions
-- $2 text   consumer
--
-- The range on the partition keeps the planner on the index of (partition, id). If the table is empty, one look at it is
-- enough for all partitions.
SELECT p.partition
FROM pg_catalog.unnest($1::int[]) AS p (partition)
CROSS JOIN LATERAL (
    SELECT FROM {table} AS q
    WHERE q.{partition} OPERATOR(pg_catalog.>=) p.partition AND q.{partition} OPERATOR(pg_catalog.<=) p.partition
      AND NOT {key} OPERATOR(pg_catalog.=) ANY (SELECT b.key FROM pgleases.consumer_blocked AS b
                                                WHERE b.consumer OPERATOR(pg_catalog.=) $2::pg_catalog.text AND b.partition OPERATOR(pg_catalog.=) p.partition)
    ORDER BY q.{partition}, q.{id}
    LIMIT 1
) AS r
WHERE EXISTS (SELECT FROM {table})
