-- disabled.sql: which of the schedules that a process declares are disabled, as it did not say so for a week.
--
-- $1 text    group
-- $2 text[]  their names
--
-- A name for each.
SELECT name FROM pgleases.schedule_disabled($1::pg_catalog.text, $2::pg_catalog.text[])
