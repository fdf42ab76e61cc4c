-- join.sql: notes the number of partitions of a group's lease. Where it is another than before, the schedules move to their new partitions.
--
-- $1 text  group
-- $2 int   partitions
SELECT pgleases.schedule_join($1::pg_catalog.text, $2::int)::pg_catalog.text
