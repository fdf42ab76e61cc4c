-- beyond.sql: removes what blocks keys in partitions that are gone, after the number of partitions was made smaller.
--
-- $1 text  consumer
-- $2 int   number of partitions
DELETE FROM pgleases.consumer_blocked AS b
WHERE b.consumer OPERATOR(pg_catalog.=) $1::pg_catalog.text AND b.partition OPERATOR(pg_catalog.>=) $2::int
