-- job.sql: a job, or what became of it.
--
-- $1 text    group
-- $2 bigint  job
--
-- The job as JSON, as jobs_status tells it; or as its row of the history does, with at for until; null: neither is there.
SELECT pgleases.schedule_job($1::pg_catalog.text, $2::bigint)
