-- history.sql: what became of a schedule's ticks, and of the jobs that ran for it, the newest first.
--
-- $1 text    group
-- $2 text    name
-- $3 bigint  only rows whose id is less
-- $4 int     the most
--
-- A row for each, as JSON.
SELECT * FROM pgleases.schedule_history($1::pg_catalog.text, $2::pg_catalog.text, $3::bigint, $4::int)
