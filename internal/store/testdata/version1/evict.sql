-- evict.sql: removes dead sessions, and makes a plan due for every lease that lost a member or an owner. One client at a time
-- does it, and only a client that has watched the clock of this run of the server.
--
-- $1 bigint  cutoff: sessions that expired before it are dead. By the caller's watch, the database's clock has reached it.
--            Microseconds since 1970
-- $2 bigint  length of the watch, microseconds: sessions with a longer TTL stay
-- $3 bigint timeline, $4 bigint started, $5 bigint mark: the run of the server that was watched
-- $6 int     lock timeout, milliseconds
--
-- One row: client IDs of the evicted sessions; leases for which a plan is due now; microseconds until the next check is due
-- (negative: another client does the check, or may do it); the shortest TTL of the expired sessions that stay, microseconds
-- (0: none).
SELECT evicted, asked, check_due_in, unwatched
FROM pgleases.evict($1::bigint, $2::bigint, $3::bigint, $4::bigint, $5::bigint, $6::int)
