-- declare.sql: notes that a process declares schedules, which it said when it started: those for which nobody has for a day.
--
-- $1 text    group
-- $2 text[]  their names
SELECT pgleases.schedule_declare($1::pg_catalog.text, $2::pg_catalog.text[])
