-- free.sql: frees the slot of a call outside of a transaction.
--
-- $1 text  group
-- $2 text  kind
-- $3 text  mark of the call, from take.sql
SELECT pgleases.schedule_free($1::pg_catalog.text, $2::pg_catalog.text, $3::pg_catalog.text)::pg_catalog.text
