-- unblock.sql: a row no longer blocks its key.
--
-- $1 text    consumer
-- $2 int     partition
-- $3 bigint  ID
DELETE FROM pgleases.consumer_blocked AS b
WHERE b.consumer OPERATOR(pg_catalog.=) $1::pg_catalog.text AND b.partition OPERATOR(pg_catalog.=) $2::int AND b.id OPERATOR(pg_catalog.=) $3::bigint
