-- granted.sql: what a role lacks for consumer_return.
--
-- $1 text  the consumer
--
-- The queue table, whether the role may execute consumer_return, and whether it may use the table for that.
SELECT c.queue, has_function_privilege('pgleases.consumer_return(text, bigint, text, text)', 'EXECUTE'),
       coalesce(has_table_privilege(to_regclass(c.queue), 'SELECT') AND has_table_privilege(to_regclass(c.queue), 'INSERT'), true)
FROM pgleases.consumers AS c WHERE c.name = $1::pg_catalog.text
