-- read.sql: locks and reads the first rows of partitions.
--
-- $1 int[]   partitions, ascending
-- $2 bigint  the ID up to which to read
-- $3 text    consumer
-- $4 int     how many rows in all
-- $5 text[]  keys to leave out
--
-- NOT = ANY, which is NOT IN, and not NOT EXISTS: that would let a row of a blocked key through if it is changed while this waits for its lock.
SELECT l.*
FROM pg_catalog.unnest($1::int[]) AS p (partition)
CROSS JOIN LATERAL (
    SELECT q.{partition}::int AS "pgleases partition", q.{id}::bigint AS "pgleases id", {key} AS "pgleases key", q.xmin AS "pgleases version"{columns}
    FROM {table} AS q
    WHERE q.{partition} OPERATOR(pg_catalog.>=) p.partition AND q.{partition} OPERATOR(pg_catalog.<=) p.partition
      AND q.{id} OPERATOR(pg_catalog.<=) $2::bigint AND NOT {key} OPERATOR(pg_catalog.=) ANY ($5::pg_catalog.text[])
      AND NOT {key} OPERATOR(pg_catalog.=) ANY (SELECT b.key FROM pgleases.consumer_blocked AS b
                                                WHERE b.consumer OPERATOR(pg_catalog.=) $3::pg_catalog.text AND b.partition OPERATOR(pg_catalog.=) p.partition)
    ORDER BY q.{partition}, q.{id}
    LIMIT $4::int
    {lock}
) AS l
LIMIT $4::int
