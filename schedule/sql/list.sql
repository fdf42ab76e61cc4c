-- list.sql: schedules by name.
--
-- $1 text  group
-- $2 text  prefix of the names
-- $3 text  the name after which to begin; empty: at the first
-- $4 int   the most
--
-- A row for each, as JSON.
SELECT * FROM pgleases.schedule_list($1::pg_catalog.text, $2::pg_catalog.text, $3::pg_catalog.text, $4::int)
