-- zoned.sql: schedules whose rules have a zone, by name.
--
-- $1 text  group
-- $2 text  the zone's name
-- $3 text  only names after this
-- $4 int   how many at most
--
-- Each as get.sql returns it.
SELECT pgleases.schedule_zoned($1::pg_catalog.text, $2::pg_catalog.text, $3::pg_catalog.text, $4::int)
