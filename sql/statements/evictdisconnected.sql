-- evictdisconnected.sql: with fast failover, removes sessions whose connection ended as the connection of a crashed
-- process does, and makes a plan due for every lease that lost a member, as evict.sql does. It checks the caller's
-- observations again. It does not wait for locks.
--
-- $1 bigint[], $2 bigint[], $3 int[], $4 bigint[]  sessions; the keys of their locks; the server processes that
--            held them; expiries when the lock was seen free, microseconds since 1970
-- $5 bigint abandoned, $6 bigint killed, $7 bigint fatal, $8 bigint reset: the counters when the locks were last
--            seen held
-- $9 bigint timeline, $10 bigint started, $11 bigint marker: the server incarnation
-- $12 int    lock timeout, milliseconds
-- $13 text   channel to notify; empty: do not notify
--
-- One row: client IDs of the evicted sessions, with their hosts and pids in the same order; leases that need a plan; nanoseconds until it is due for all of them;
-- false and 0, because it is no check for expired sessions.
SELECT evicted, hosts, pids, to_plan, plan_due_in * 1000, false, 0::bigint
FROM pgleases.evict_disconnected($1::bigint[], $2::bigint[], $3::int[], $4::bigint[], $5::bigint, $6::bigint, $7::bigint, $8::bigint,
                          $9::bigint, $10::bigint, $11::bigint, $12::int, $13::text)
