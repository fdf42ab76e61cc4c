-- cancel.sql: cancels a job.
--
-- $1 text    group
-- $2 bigint  job
--
-- Whether it was there.
SELECT pgleases.schedule_cancel($1::pg_catalog.text, $2::bigint, NULL)
