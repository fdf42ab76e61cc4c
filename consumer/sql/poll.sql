-- poll.sql: which partitions have rows: the last of each, and where a search stops, from two IDs on: at the first row whose
-- key is not blocked, or after a number of rows.
--
-- $1 int[]     partitions
-- $2 bigint[]  for each the ID with which a round goes on
-- $3 bigint[]  the ID with which new rows begin
-- $4 int[]     how many rows to look at, from each of the two on
-- $5 text      consumer
--
-- The range on the partition keeps the planner on the index of (partition, id), and the range on the hash on the index of
-- keys. If the table is empty, one look at it is enough for all partitions. If a partition has no row from the ID on, one look
-- at its last row is enough.
SELECT p.partition, e.id, l.tail, s.id, s.free
FROM ROWS FROM (pg_catalog.unnest($1::int[]), pg_catalog.unnest($2::bigint[]), pg_catalog.unnest($3::bigint[]), pg_catalog.unnest($4::int[]))
    AS p (partition, round, tail, most)
CROSS JOIN LATERAL (
    SELECT q.{id}::bigint AS id
    FROM {table} AS q
    WHERE q.{partition} OPERATOR(pg_catalog.>=) p.partition AND q.{partition} OPERATOR(pg_catalog.<=) p.partition
    ORDER BY q.{partition} DESC, q.{id} DESC
    LIMIT 1
) AS e
CROSS JOIN LATERAL (VALUES (false, p.round), (true, p.tail)) AS l (tail, since)
LEFT JOIN LATERAL (
    SELECT o.id, o.free
    FROM (
        SELECT q.{partition} AS partition, q.{id}::bigint AS id, pg_catalog.row_number() OVER (ORDER BY q.{partition}, q.{id}) AS seen, (
              SELECT b.id FROM pgleases.consumer_blocked AS b
              WHERE b.consumer OPERATOR(pg_catalog.=) $5::pg_catalog.text AND b.partition OPERATOR(pg_catalog.=) p.partition
                AND pg_catalog.hashtextextended(b.key, 0) OPERATOR(pg_catalog.>=) pg_catalog.hashtextextended({key}, 0)
                AND pg_catalog.hashtextextended(b.key, 0) OPERATOR(pg_catalog.<=) pg_catalog.hashtextextended({key}, 0)
                AND b.key OPERATOR(pg_catalog.=) {key}
              ORDER BY pg_catalog.hashtextextended(b.key, 0), b.id
              LIMIT 1) IS NULL AS free
        FROM {table} AS q
        WHERE e.id OPERATOR(pg_catalog.>=) l.since
          AND q.{partition} OPERATOR(pg_catalog.>=) p.partition AND q.{partition} OPERATOR(pg_catalog.<=) p.partition
          AND q.{id} OPERATOR(pg_catalog.>=) l.since
        ORDER BY q.{partition}, q.{id}
        LIMIT p.most
    ) AS o
    WHERE o.free OR o.seen OPERATOR(pg_catalog.=) p.most
    LIMIT 1
) AS s ON true
WHERE (NOT l.tail OR p.tail OPERATOR(pg_catalog.>) p.round) AND EXISTS (SELECT FROM {table})
