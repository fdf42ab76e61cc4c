-- look.sql: notes the oldest row of the queue table.
--
-- $1 text  consumer
SELECT pgleases.consumer_look($1::pg_catalog.text)::pg_catalog.text
