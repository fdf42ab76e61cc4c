-- takeback.sql: takes the crash back that suspect.sql has counted, because the process lives, even if a later owner has
-- counted its own.
--
-- $1 text    consumer
-- $2 int     partition
-- $3 bigint  ID
-- $4 bigint  epoch
UPDATE pgleases.consumer_blocked AS b
SET crashes = b.crashes OPERATOR(pg_catalog.-) 1, charged = CASE WHEN b.charged OPERATOR(pg_catalog.>) $4::bigint THEN b.charged END,
    next_at = CASE WHEN b.charged OPERATOR(pg_catalog.>) $4::bigint THEN b.next_at ELSE pg_catalog.clock_timestamp() END
WHERE b.consumer OPERATOR(pg_catalog.=) $1::pg_catalog.text AND b.partition OPERATOR(pg_catalog.=) $2::int AND b.id OPERATOR(pg_catalog.=) $3::bigint
  AND b.charged OPERATOR(pg_catalog.>=) $4::bigint AND b.crashes OPERATOR(pg_catalog.>) 0
