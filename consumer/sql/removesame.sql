-- removesame.sql: deletes those of the handled rows that were not changed since they were read, and returns how many.
--
-- $1 int[]     for each row its partition
-- $2 bigint[]  for each row its ID
-- $3 text[]    for each row its xmin
-- $4 text      the transaction
WITH s AS MATERIALIZED (
    SELECT q.{partition} AS partition, q.{id} AS id
    FROM ROWS FROM (pg_catalog.unnest($1::int[]), pg_catalog.unnest($2::bigint[]), pg_catalog.unnest($3::pg_catalog.text[])) AS b (partition, id, version)
    CROSS JOIN LATERAL (
        SELECT q.{partition}, q.{id} FROM {table} AS q
        WHERE q.{partition} OPERATOR(pg_catalog.=) b.partition AND q.{id} OPERATOR(pg_catalog.=) b.id AND q.xmin::pg_catalog.text OPERATOR(pg_catalog.=) b.version
        FOR UPDATE OF q
    ) AS q
), d AS (
    DELETE FROM {table} AS q
    USING s
    WHERE q.{partition} OPERATOR(pg_catalog.=) s.partition AND q.{id} OPERATOR(pg_catalog.=) s.id
    RETURNING 1
)
SELECT (SELECT pg_catalog.count(*) FROM d), pgleases.consumer_expect($4::pg_catalog.text, (SELECT pg_catalog.count(*) FROM s), (SELECT pg_catalog.count(*) FROM d))::pg_catalog.text
