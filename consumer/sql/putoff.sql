-- putoff.sql: puts a blocked row that could not be handled behind others that are due, unless an operator changes it now.
--
-- $1 text    consumer
-- $2 int     partition
-- $3 bigint  ID
UPDATE pgleases.consumer_blocked AS b
SET next_at = pg_catalog.clock_timestamp(), asked = false
FROM (SELECT FROM pgleases.consumer_blocked AS o
      WHERE o.consumer OPERATOR(pg_catalog.=) $1::pg_catalog.text AND o.partition OPERATOR(pg_catalog.=) $2::int AND o.id OPERATOR(pg_catalog.=) $3::bigint
        AND o.next_at OPERATOR(pg_catalog.<=) pg_catalog.clock_timestamp()
      FOR UPDATE SKIP LOCKED) AS o
WHERE b.consumer OPERATOR(pg_catalog.=) $1::pg_catalog.text AND b.partition OPERATOR(pg_catalog.=) $2::int AND b.id OPERATOR(pg_catalog.=) $3::bigint
