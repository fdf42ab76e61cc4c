-- makeslots.sql: makes the slots of a kind that has a limit, where they are not there.
--
-- $1 text  group
-- $2 text  kind
-- $3 int   the limit
SELECT pgleases.schedule_make_slots($1::pg_catalog.text, $2::pg_catalog.text, $3::int)::pg_catalog.text
