-- place.sql: moves schedules and jobs to the partitions of their keys: these, and all in partitions that there are none of. They were put
-- in a transaction that was open while the number of partitions changed.
--
-- $1 text      group
-- $2 int       how many partitions there are
-- $3 bigint[]  schedules
-- $4 bigint[]  jobs
SELECT pgleases.schedule_place($1::pg_catalog.text, $2::int, $3::bigint[], $4::bigint[])
