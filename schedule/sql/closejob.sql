-- closejob.sql: the last statement of a job's run before COMMIT: ends the job where it has its outcome, and writes that down. Where that cannot be, it raises.
--
-- $1 bigint  job
-- $2 text    mark of the run, from open.sql
-- $3 bigint  revision that open.sql read; where it was replaced since, that one stays, to be run
-- $4 jsonb   the step: due; trying; blocked_reason; outcomes, as in close.sql, one or none; each with key and args of what ran, and until, the time that it was put for
--
-- PS001: the job was canceled, or has ended. PS003: this is not the transaction that open.sql was in.
SELECT pgleases.schedule_close_job($1::bigint, $2::pg_catalog.text, $3::bigint, $4::pg_catalog.jsonb)::pg_catalog.text
