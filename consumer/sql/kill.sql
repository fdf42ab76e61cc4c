-- kill.sql: moves a row to the dead letters, unless it was changed or deleted since its last attempt.
--
-- $1 text    consumer
-- $2 int     partition
-- $3 bigint  ID
-- $4 text    the row's xmin; null: whether it was changed does not matter
-- $5 int     how many attempts have failed
-- $6 text    error
-- $7 text    the transaction
WITH s AS MATERIALIZED (
    SELECT {key} AS key, pg_catalog.to_jsonb(q) AS content FROM {table} AS q
    WHERE q.{partition} OPERATOR(pg_catalog.>=) $2::int AND q.{partition} OPERATOR(pg_catalog.<=) $2::int AND q.{id} OPERATOR(pg_catalog.=) $3::bigint
      AND ($4::pg_catalog.text IS NULL OR q.xmin::pg_catalog.text OPERATOR(pg_catalog.=) $4::pg_catalog.text)
    FOR UPDATE
), d AS (
    DELETE FROM {table} AS q USING s
    WHERE q.{partition} OPERATOR(pg_catalog.=) $2::int AND q.{id} OPERATOR(pg_catalog.=) $3::bigint
    RETURNING 1
), put AS (
    INSERT INTO pgleases.consumer_dead_letters (consumer, id, partition, key, content, attempts, error)
    SELECT $1::pg_catalog.text, $3::bigint, $2::int, s.key, s.content, $5::int, $6::pg_catalog.text FROM s
), freed AS (
    DELETE FROM pgleases.consumer_blocked AS b
    WHERE b.consumer OPERATOR(pg_catalog.=) $1::pg_catalog.text AND b.partition OPERATOR(pg_catalog.=) $2::int AND b.id OPERATOR(pg_catalog.=) $3::bigint
)
SELECT pgleases.consumer_expect($7::pg_catalog.text, (SELECT pg_catalog.count(*) FROM s), (SELECT pg_catalog.count(*) FROM d))::pg_catalog.text
