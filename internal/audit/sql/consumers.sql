-- consumers.sql: the consumers, and whether this role sees all rows of their queue tables. A name that a consumer has is
-- used only if it is that of a table, and its columns have types of the system. So no code of others runs here.
--
-- One row for each: its name; the queue table, its column of the ID and that of the partition; whether the role may read
-- it; the number of blocked rows, and of dead letters.
SELECT c.name, c.queue, c.id_column, c.partition_column,
       coalesce(pg_catalog.has_schema_privilege(r.relnamespace, 'USAGE') AND pg_catalog.has_table_privilege(r.oid, 'SELECT')
                AND NOT pg_catalog.row_security_active(r.oid)
                AND (SELECT count(*) FROM pg_catalog.pg_attribute AS a
                     WHERE a.attrelid = r.oid AND a.attname IN (c.id_column, c.partition_column)
                       AND a.atttypid IN ('int4'::regtype, 'int8'::regtype)) = 2, false),
       (SELECT count(*) FROM pgleases.consumer_blocked AS b WHERE b.consumer = c.name),
       (SELECT count(*) FROM pgleases.consumer_dead_letters AS d WHERE d.consumer = c.name)
FROM pgleases.consumers AS c
LEFT JOIN (SELECT r.oid, r.relnamespace, pg_catalog.format('%I.%I', n.nspname, r.relname) AS name
           FROM pg_catalog.pg_class AS r JOIN pg_catalog.pg_namespace AS n ON n.oid = r.relnamespace
           WHERE r.relkind IN ('r', 'p')) AS r ON r.name = c.queue
ORDER BY c.name
