-- own.sql: gives all partitions to a new process.
--
-- $1 text  group
-- $2 int   how many partitions there are
--
-- The epoch of the process.
SELECT pgleases.scheduletest_own($1, $2)
