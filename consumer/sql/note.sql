-- note.sql: notes the batch that is handled next, if the partition is still watched.
--
-- $1 text    consumer
-- $2 int     partition
-- $3 bigint  epoch
-- $4 int     how many rows it has at most
-- $5 text[]  keys to leave out
WITH f AS (
    SELECT pg_catalog.min(f.id) AS first, pg_catalog.max(f.id) AS last FROM (
        SELECT q.{id}::bigint AS id FROM {table} AS q
        WHERE q.{partition} OPERATOR(pg_catalog.>=) $2::int AND q.{partition} OPERATOR(pg_catalog.<=) $2::int
          AND NOT {key} OPERATOR(pg_catalog.=) ANY ($5::pg_catalog.text[])
          AND NOT {key} OPERATOR(pg_catalog.=) ANY (SELECT b.key FROM pgleases.consumer_blocked AS b
                                                    WHERE b.consumer OPERATOR(pg_catalog.=) $1::pg_catalog.text AND b.partition OPERATOR(pg_catalog.=) $2::int)
        ORDER BY q.{partition}, q.{id}
        LIMIT $4::int
    ) AS f
)
UPDATE pgleases.consumer_owners AS c
SET (note_first, note_last, watched_to) = (SELECT f.first, f.last, c.watched_to WHERE f.first OPERATOR(pg_catalog.<=) c.watched_to) -- otherwise null
FROM f
WHERE c.consumer OPERATOR(pg_catalog.=) $1::pg_catalog.text AND c.partition OPERATOR(pg_catalog.=) $2::int AND c.begun OPERATOR(pg_catalog.=) $3::bigint
RETURNING f.first, f.last, c.watched_to IS NOT NULL
