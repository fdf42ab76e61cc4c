-- end.sql: notes, after guard.sql, that all that an owner ran in a partition has ended.
--
-- $1 text      group
-- $2 int       partition
-- $3 bigint    epoch
-- $4 bigint[]  schedules of which it may have counted a crash; where it did, and the run has not ended, that is taken back
-- $5 bigint[]  jobs of which it may have
-- $6 int       the most that it waits for a lock, milliseconds
SELECT pgleases.schedule_end($1::pg_catalog.text, $2::int, $3::bigint, $4::bigint[], $5::bigint[], $6::int)::pg_catalog.text
