-- misplaced.sql: the first rows whose partition is not that of their key.
--
-- $1 int  partitions
SELECT q.id, coalesce(q.partition::pg_catalog.text, 'NULL'), q.key, pgleases.partition_for(q.key, $1::int)
FROM (SELECT q.{id}::bigint AS id, q.{partition} AS partition, {key} AS key FROM {table} AS q LIMIT 1000) AS q
WHERE (q.partition OPERATOR(pg_catalog.=) pgleases.partition_for(q.key, $1::int)) IS NOT TRUE
LIMIT 1
