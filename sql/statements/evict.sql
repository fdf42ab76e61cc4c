-- evict.sql: removes expired sessions, and makes a plan due for every lease that lost a member. One client at a time
-- does this, and only a client that has watched the clock of this server incarnation. It does not wait for row locks.
--
-- $1 bigint  cutoff: sessions that expired before it are evicted. According to the caller's watch, the database's
--            clock has reached it. Microseconds since 1970
-- $2 bigint  length of the watch, microseconds: sessions with a longer TTL stay
-- $3 bigint  the caller's TTL, microseconds: a check that is further ahead was set before the clock stepped back
-- $4 bigint timeline, $5 bigint started, $6 bigint marker: the server incarnation that was watched
-- $7 int     lock timeout, milliseconds
--
-- One row: client IDs of the evicted sessions, with their hosts and pids in the same order; leases that need a plan; nanoseconds until it is due for all of them;
-- whether the caller made the check, otherwise another client makes it, or may make it; nanoseconds until the next check
-- is due for the caller, if it made this one. A plan is due 50 ms after the last one was begun plus 5 us for each partition, so that many expired sessions
-- cost few plans.
SELECT evicted, hosts, pids, to_plan, plan_due_in * 1000, made, check_due_in * 1000
FROM pgleases.evict($1::bigint, $2::bigint, $3::bigint, $4::bigint, $5::bigint, $6::bigint, $7::int)
