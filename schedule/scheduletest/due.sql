-- due.sql: what a process begins next at the time of the test.
--
-- $1 text      group
-- $2 bigint[]  schedules that are not to be begun yet
-- $3 bigint[]  jobs that are not
--
-- One row: when the next is due after now, microseconds since 1970, null: nothing is known; then what is due now, its id null: nothing.
-- State is another after each change of when it is due.
SELECT * FROM pgleases.scheduletest_due($1, $2, $3)
