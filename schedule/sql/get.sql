-- get.sql: one schedule.
--
-- $1 text     group
-- $2 text     name
-- $3 boolean  whether to lock it for an edit
--
-- The time, microseconds since 1970; the schedule as JSON, null where there is none.
SELECT clock_us, answer FROM pgleases.schedule_get($1::pg_catalog.text, $2::pg_catalog.text, $3::boolean)
