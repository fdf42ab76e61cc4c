-- open.sql: opens a run in the transaction, after guard.sql: sets its limits, marks it, and reads the schedule.
--
-- $1 bigint  schedule
-- $2 text    mark of the run, random; close.sql finds it where the transaction is still the same
-- $3 int     the most that one statement takes, milliseconds; 0: no limit
-- $4 int     the most that the transaction may be idle, milliseconds
-- $5 int     the most that a statement waits for a lock, milliseconds
--
-- The schedule with the time, as JSON; null: there is none.
SELECT pgleases.schedule_open($1::bigint, $2::pg_catalog.text, $3::int, $4::int, $5::int)
