-- time.sql: sets the time of the test.
--
-- $1 timestamptz: the time
UPDATE pgleases.scheduletest SET now = $1
