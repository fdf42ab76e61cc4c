-- heartbeat.sql: renews the session, and returns everything that may give its client something to do. One HOT-updated row, no
-- flush of the WAL.
--
-- $1 bigint  session
-- $2 int     lock timeout, milliseconds
-- $3 bigint  time for which the caller has watched the clock of this run of the server, microseconds
-- $4 bigint  the clock at the caller's last heartbeat, microseconds since 1970
-- $5 bigint  the mark then; 0: it is not known whether that was its last
--
-- One row. Times are microseconds; check_due_in and due_in are the time until then: 0 for now, also where the clock stepped
-- back; a negative due_in for never. copied: the session lives, but was renewed since $4 by a copy of the caller's process. Some checks are due for that caller who has watched for long enough. The arrays have one element for each lease of which the session is a member.
SELECT alive, copied, clock, timeline, started, mark, settled, era, incarnation, check_due_in, sessions, names, generations, due_in, weights
FROM pgleases.heartbeat($1::bigint, $2::int, $3::bigint, $4::bigint, $5::bigint)
