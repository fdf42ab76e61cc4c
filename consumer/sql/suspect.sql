-- suspect.sql: counts a crash of a crash suspect before the attempt. An owner counts once, although it may not learn that
-- it has counted.
--
-- $1 text    consumer
-- $2 int     partition
-- $3 bigint  ID
-- $4 bigint  epoch
-- $5 bigint  milliseconds until the next attempt, if the process crashes, twice as long for each crash
-- $6 bigint  milliseconds that it waits at most
UPDATE pgleases.consumer_blocked AS b
SET crashes = b.crashes OPERATOR(pg_catalog.+) CASE WHEN b.charged OPERATOR(pg_catalog.=) $4::bigint THEN 0 ELSE 1 END, charged = $4::bigint, error = 'the process crashed',
    next_at = pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) (least($5::bigint OPERATOR(pg_catalog.*) pg_catalog.power(2, least(b.crashes, 20)), $6::bigint) OPERATOR(pg_catalog.*) '1 ms'::interval)
WHERE b.consumer OPERATOR(pg_catalog.=) $1::pg_catalog.text AND b.partition OPERATOR(pg_catalog.=) $2::int AND b.id OPERATOR(pg_catalog.=) $3::bigint
