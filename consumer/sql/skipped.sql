-- skipped.sql: what is written about a blocked row that an operator skips.
--
-- $1 text    consumer
-- $2 int     partition
-- $3 bigint  ID
SELECT b.attempts, pg_catalog.concat(b.error OPERATOR(pg_catalog.||) '; ', 'skipped by ', b.skipped_by, ': ', b.skipped_reason)
FROM pgleases.consumer_blocked AS b
WHERE b.consumer OPERATOR(pg_catalog.=) $1::pg_catalog.text AND b.partition OPERATOR(pg_catalog.=) $2::int AND b.id OPERATOR(pg_catalog.=) $3::bigint AND b.skipped_by IS NOT NULL
