-- crash.sql: after a crash, notes up to which ID a partition is watched, and makes the batch that was in hand suspect.
--
-- $1 text    consumer
-- $2 int     partition
-- $3 bigint  the epoch of the owner that crashed
-- $4 bigint  the lowest ID of its batch; null: none was noted
-- $5 bigint  the highest ID of its batch
WITH h AS (
    SELECT q.{id}::bigint AS id FROM {table} AS q
    WHERE q.{partition} OPERATOR(pg_catalog.>=) $2::int AND q.{partition} OPERATOR(pg_catalog.<=) $2::int
    ORDER BY q.{partition} DESC, q.{id} DESC -- by the index: max would read all rows
    LIMIT 1
), s AS (
    INSERT INTO pgleases.consumer_blocked AS b (consumer, partition, id, key, version, attempts, next_at, crashed)
    SELECT $1::pg_catalog.text, $2::int, q.{id}, {key}, q.xmin::pg_catalog.text, 0, pg_catalog.clock_timestamp(), $3::bigint
    FROM {table} AS q
    WHERE q.{partition} OPERATOR(pg_catalog.>=) $2::int AND q.{partition} OPERATOR(pg_catalog.<=) $2::int
      AND q.{id} OPERATOR(pg_catalog.>=) $4::bigint AND q.{id} OPERATOR(pg_catalog.<=) $5::bigint
      AND ($4::bigint OPERATOR(pg_catalog.=) $5::bigint OR NOT {key} OPERATOR(pg_catalog.=) ANY ( -- blocked rows were not in the batch, only alone
          SELECT o.key FROM pgleases.consumer_blocked AS o WHERE o.consumer OPERATOR(pg_catalog.=) $1::pg_catalog.text AND o.partition OPERATOR(pg_catalog.=) $2::int))
    ON CONFLICT (consumer, partition, id) DO UPDATE SET crashed = EXCLUDED.crashed WHERE $4::bigint OPERATOR(pg_catalog.=) $5::bigint
)
UPDATE pgleases.consumer_owners AS c
SET watched_to = (SELECT h.id FROM h)
WHERE c.consumer OPERATOR(pg_catalog.=) $1::pg_catalog.text AND c.partition OPERATOR(pg_catalog.=) $2::int
RETURNING c.watched_to IS NOT NULL
