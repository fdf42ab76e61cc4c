-- poll.sql: which partitions have rows: the last of each, and the first whose key is not blocked.
--
-- $1 int[]     partitions
-- $2 bigint[]  for each the ID to begin with
-- $3 text      consumer
--
-- The range on the partition keeps the planner on the index of (partition, id), and the range on the hash on the index of
-- keys. If the table is empty, one look at it is enough for all partitions. If a partition has no row from the ID on, one look
-- at its last row is enough.
SELECT p.partition, e.id, r.id
FROM ROWS FROM (pg_catalog.unnest($1::int[]), pg_catalog.unnest($2::bigint[])) AS p (partition, since)
CROSS JOIN LATERAL (
    SELECT q.{id}::bigint AS id
    FROM {table} AS q
    WHERE q.{partition} OPERATOR(pg_catalog.>=) p.partition AND q.{partition} OPERATOR(pg_catalog.<=) p.partition
    ORDER BY q.{partition} DESC, q.{id} DESC
    LIMIT 1
) AS e
LEFT JOIN LATERAL (
    SELECT q.{id}::bigint AS id
    FROM {table} AS q
    WHERE e.id OPERATOR(pg_catalog.>=) p.since
      AND q.{partition} OPERATOR(pg_catalog.>=) p.partition AND q.{partition} OPERATOR(pg_catalog.<=) p.partition
      AND q.{id} OPERATOR(pg_catalog.>=) p.since AND (
          SELECT b.id FROM pgleases.consumer_blocked AS b
          WHERE b.consumer OPERATOR(pg_catalog.=) $3::pg_catalog.text AND b.partition OPERATOR(pg_catalog.=) p.partition
            AND pg_catalog.hashtextextended(b.key, 0) OPERATOR(pg_catalog.>=) pg_catalog.hashtextextended({key}, 0)
            AND pg_catalog.hashtextextended(b.key, 0) OPERATOR(pg_catalog.<=) pg_catalog.hashtextextended({key}, 0)
            AND b.key OPERATOR(pg_catalog.=) {key}
          ORDER BY pg_catalog.hashtextextended(b.key, 0), b.id
          LIMIT 1) IS NULL
    ORDER BY q.{partition}, q.{id}
    LIMIT 1
) AS r ON true
WHERE EXISTS (SELECT FROM {table})
