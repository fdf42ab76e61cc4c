-- donejob.sql: closejob.sql for a job that is done, as most end so.
--
-- $1 bigint  job
-- $2 text    mark of the run, from open.sql
-- $3 bigint  revision that open.sql read
-- $4 int     how many attempts there were
-- $5 bigint  epoch
-- $6 bigint  when the run began, microseconds since 1970
-- $7 timestamptz  the time that it was put for, as open.sql read it
SELECT pgleases.schedule_done_job($1::bigint, $2::pg_catalog.text, $3::bigint, $4::int, $5::bigint, $6::bigint, $7::pg_catalog.timestamptz)::pg_catalog.text
