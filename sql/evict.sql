-- evict.sql: takes away sessions that are dead, and asks for a plan of every lease that has lost an owner. One client
-- does it at a time, and only one that has watched the clock of this run of the server.
--
-- $1 bigint cutoff: what the caller's watch says the clock is at the least, microseconds since 1970
-- $2 bigint watched: how long the watch lasts, microseconds; sessions of a longer TTL are left alone
-- $3 bigint timeline, $4 bigint started, $5 bigint mark: the run of the server that was watched
-- $6 int    lock timeout, milliseconds
--
-- One row: client IDs evicted, leases that now ask for a plan, in how many microseconds the next check is due (negative:
-- another client does it), and the least TTL, in microseconds, of the expired sessions left alone; 0: none.
SELECT evicted, asked, check_due_in, unwatched
FROM pgleases.evict($1::bigint, $2::bigint, $3::bigint, $4::bigint, $5::bigint, $6::int)
