-- follow.sql: notes by which zone data it is told when the schedules of a zone are due.
--
-- $1 text  group
-- $2 text  the zone's name
-- $3 text  a digest of the changes of its clocks
SELECT pgleases.schedule_follow($1::pg_catalog.text, $2::pg_catalog.text, $3::pg_catalog.text)
