-- own.sql: gives all partitions to a new process.
--
-- $1 text: group
--
-- $2 int: number of partitions
--
-- Returns the epoch of the process.
SELECT pgleases.scheduletest_own($1, $2)
