-- suspect.sql: counts a crash of a crash suspect before the attempt, or takes it back after, even if a later owner has
-- counted its own. An owner that lives counts once, although it may not learn that it has counted.
--
-- $1 text    consumer
-- $2 int     partition
-- $3 bigint  ID
-- $4 bigint  epoch
-- $5 int     1, or -1 to take it back
-- $6 bigint  milliseconds until the next attempt, if the process crashes, twice as long for each crash
UPDATE pgleases.consumer_blocked AS b
SET crashes = b.crashes OPERATOR(pg_catalog.+) CASE WHEN $5::int OPERATOR(pg_catalog.>) 0 AND b.charged OPERATOR(pg_catalog.=) $4::bigint THEN 0 ELSE $5::int END,
    charged = CASE WHEN $5::int OPERATOR(pg_catalog.>) 0 THEN $4::bigint WHEN b.charged OPERATOR(pg_catalog.>) $4::bigint THEN b.charged END,
    error = CASE WHEN $5::int OPERATOR(pg_catalog.>) 0 THEN 'the process crashed' ELSE b.error END,
    next_at = CASE WHEN b.charged OPERATOR(pg_catalog.>) $4::bigint THEN b.next_at ELSE pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) CASE WHEN $5::int OPERATOR(pg_catalog.>) 0
        THEN ($6::bigint OPERATOR(pg_catalog.*) pg_catalog.power(2, least(b.crashes, 20))) OPERATOR(pg_catalog.*) '1 ms'::interval ELSE '0' END END
WHERE b.consumer OPERATOR(pg_catalog.=) $1::pg_catalog.text AND b.partition OPERATOR(pg_catalog.=) $2::int AND b.id OPERATOR(pg_catalog.=) $3::bigint
  AND ($5::int OPERATOR(pg_catalog.>) 0 OR b.charged OPERATOR(pg_catalog.>=) $4::bigint AND b.crashes OPERATOR(pg_catalog.>) 0)
