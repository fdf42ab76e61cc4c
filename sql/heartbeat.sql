-- heartbeat.sql: renews the session, and reads all that tells a client whether it has anything else to do.
-- One HOT-updated row, no flush.
--
-- $1 bigint session
-- $2 int    lock timeout, milliseconds
--
-- One row. Times are microseconds; *_due_in is how long until then, 0 for now. Where the clock stepped back, what lies
-- further ahead than anything can is due now. The arrays hold one element for each lease that the session joined.
SELECT alive, clock, timeline, started, mark, settled, incarnation, check_due_in, sessions, names, generations, due_in, weights
FROM pgleases.heartbeat($1::bigint, $2::int)
