-- register.sql: the consumer that a table has, and the table that a consumer has, with the columns that count for the order
-- of rows, after storing both if neither exists.
--
-- $1 text  consumer
-- $2 text  table
-- $3 text  column of the ID
-- $4 text  column of the key, or empty
-- $5 text  column of the partition
-- $6 text  column of the time, or empty
-- $7 int   partitions
WITH put AS (
    INSERT INTO pgleases.consumers AS c (name, queue, id_column, key_column, partition_column, time_column, partitions)
    VALUES ($1::pg_catalog.text, $2::pg_catalog.text, $3::pg_catalog.text, CASE WHEN $4::pg_catalog.text OPERATOR(pg_catalog.<>) '' THEN $4::pg_catalog.text END,
            $5::pg_catalog.text, CASE WHEN $6::pg_catalog.text OPERATOR(pg_catalog.<>) '' THEN $6::pg_catalog.text END, $7::int)
    ON CONFLICT DO NOTHING
    RETURNING c.name, c.queue
), kept AS (
    UPDATE pgleases.consumers AS c SET time_column = CASE WHEN $6::pg_catalog.text OPERATOR(pg_catalog.<>) '' THEN $6::pg_catalog.text END, partitions = $7::int
    WHERE c.name OPERATOR(pg_catalog.=) $1::pg_catalog.text AND c.queue OPERATOR(pg_catalog.=) $2::pg_catalog.text
      AND NOT (coalesce(c.time_column, '') OPERATOR(pg_catalog.=) $6::pg_catalog.text AND c.partitions OPERATOR(pg_catalog.=) $7::int)
)
SELECT name, queue, $3::pg_catalog.text, $4::pg_catalog.text, $5::pg_catalog.text FROM put
UNION ALL
SELECT c.name, c.queue, c.id_column, coalesce(c.key_column, ''), c.partition_column FROM pgleases.consumers AS c
WHERE c.name OPERATOR(pg_catalog.=) $1::pg_catalog.text OR c.queue OPERATOR(pg_catalog.=) $2::pg_catalog.text
