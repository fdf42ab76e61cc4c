-- remove.sql: deletes handled rows. It raises an error if another number of rows was deleted, or if this is not the
-- transaction in which they were handled. A call of the function would cost each batch what half of a DELETE costs.
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
SELECT CASE WHEN pg_catalog.pg_current_xact_id_if_assigned()::pg_catalog.text OPERATOR(pg_catalog.=) $3::pg_catalog.text
             AND pg_catalog.count(*) OPERATOR(pg_catalog.=) pg_catalog.cardinality($2::bigint[]) THEN ''
            ELSE pgleases.consumer_expect($3::pg_catalog.text, pg_catalog.cardinality($2::bigint[])::bigint, pg_catalog.count(*))::pg_catalog.text END
FROM d
