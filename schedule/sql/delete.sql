-- delete.sql: deletes a schedule that get.sql has locked.
--
-- $1 bigint  schedule
-- $2 jsonb   fates, as in close.sql, of its overdue ticks
SELECT pgleases.schedule_delete($1::bigint, $2::pg_catalog.jsonb)::pg_catalog.text
