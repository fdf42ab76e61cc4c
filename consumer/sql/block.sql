-- block.sql: records an attempt at a row that did not succeed, unless the row was changed or deleted since.
--
-- $1 text    consumer
-- $2 int     partition
-- $3 bigint  ID
-- $4 text    the row's xmin
-- $5 int     how many attempts have failed
-- $6 text    error
-- $7 bigint  milliseconds until it is handled again; null: it is not
INSERT INTO pgleases.consumer_blocked AS b (consumer, partition, id, key, version, content, attempts, error, failed_at, next_at)
SELECT $1::pg_catalog.text, $2::int, $3::bigint, {key}, $4::pg_catalog.text, pgleases.consumer_content(q, NULL), $5::int, $6::pg_catalog.text, pg_catalog.clock_timestamp(),
       CASE WHEN $7::bigint IS NULL THEN 'infinity' ELSE pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) ($7::bigint OPERATOR(pg_catalog.*) '1 ms'::interval) END
FROM {table} AS q
WHERE q.{partition} OPERATOR(pg_catalog.>=) $2::int AND q.{partition} OPERATOR(pg_catalog.<=) $2::int AND q.{id} OPERATOR(pg_catalog.=) $3::bigint
  AND q.xmin::pg_catalog.text OPERATOR(pg_catalog.=) $4::pg_catalog.text
ON CONFLICT (consumer, partition, id) DO UPDATE
SET key = EXCLUDED.key, version = EXCLUDED.version, content = EXCLUDED.content, attempts = EXCLUDED.attempts, error = EXCLUDED.error, failed_at = EXCLUDED.failed_at, crashes = 0, crashed = NULL, charged = NULL,
    next_at = CASE WHEN b.skipped_by IS NULL THEN EXCLUDED.next_at ELSE pg_catalog.clock_timestamp() END, asked = b.skipped_by IS NOT NULL -- skipped during the attempt
