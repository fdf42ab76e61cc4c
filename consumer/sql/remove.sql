-- remove.sql: deletes handled rows. It raises an error if another number of rows was deleted, or if this is not the
-- transaction in which they were handled.
--
-- $1 int[]     for each row its partition
-- $2 bigint[]  for each row its ID
-- $3 text      the transaction
WITH d AS (
    DELETE FROM {table} AS q
    USING ROWS FROM (pg_catalog.unnest($1::int[]), pg_catalog.unnest($2::bigint[])) AS b (partition, id)
    WHERE q.{partition} OPERATOR(pg_catalog.=) b.partition AND q.{id} OPERATOR(pg_catalog.=) b.id
    RETURNING 1
)
SELECT pgleases.consumer_expect($3::pg_catalog.text, pg_catalog.cardinality($2::bigint[])::bigint, pg_catalog.count(*))::pg_catalog.text FROM d
