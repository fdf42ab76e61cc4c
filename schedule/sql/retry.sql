-- retry.sql: runs a tick or a job that failed once more, as a job.
--
-- $1 text         group
-- $2 text         name of the schedule; null: it is a job
-- $3 timestamptz  the tick; null: it is a job
-- $4 bigint       the job; null: it is a tick
--
-- The new job. 42704: it is not in the history, or its schedule was deleted. 55000: it is not such that it can be retried. 23505: its unique key is taken.
SELECT pgleases.schedule_retry($1::pg_catalog.text, $2::pg_catalog.text, $3::pg_catalog.timestamptz, $4::bigint)
