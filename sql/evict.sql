-- evict.sql: takes away sessions that are dead, and asks for a plan of every lease that has lost an owner. One client
-- does it at a time, and only one that has watched the clock of this run of the server.
--
-- $1 bigint cutoff: what the caller's watch says the clock is at the least, microseconds since 1970
-- $2 bigint watched: how long the watch lasts, microseconds; sessions of a longer TTL are left alone
-- $3 bigint timeline, $4 bigint started, $5 bigint mark: the run of the server that was watched
-- $6 int    lock timeout, milliseconds
--
-- Subqueries, not joins, read "due": the planner takes it for many rows, and would compile the statement at length.
--
-- One row: client IDs evicted, leases that now ask for a plan, in how many microseconds the next check is due (negative:
-- another client does it), and the least TTL, in microseconds, of the expired sessions left alone; 0: none.
WITH settings AS MATERIALIZED (
    SELECT pgleases.settings(true, $6::int) AS ok
), now AS MATERIALIZED (
    SELECT clock_timestamp() AS clock, timestamptz 'epoch' + $1::bigint * interval '1 microsecond' AS cutoff,
           $2::bigint * interval '1 microsecond' AS watched
    FROM settings
    WHERE settings.ok
), due AS MATERIALIZED (
    SELECT s.next_check_at, now.*
    FROM pgleases.server AS s, now
    WHERE (s.next_check_at <= now.clock OR s.next_check_at > now.clock + interval '1 second' + (SELECT min(c.ttl) FROM pgleases.clients AS c))
      AND now.clock >= now.cutoff
      AND s.timeline = $3::bigint AND pgleases.timeline() = $3::bigint
      AND (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint = $4::bigint
      AND (SELECT m.mark FROM pgleases.server_mark AS m) = $5::bigint
    FOR UPDATE OF s SKIP LOCKED
), expired AS MATERIALIZED (
    SELECT c.session, c.ttl, c.ttl <= (SELECT watched FROM due) AS watched
    FROM pgleases.clients AS c
    WHERE c.expires_at < (SELECT cutoff FROM due)
), living AS MATERIALIZED (
    SELECT m.lease, m.session FROM pgleases.members AS m
    JOIN pgleases.clients AS c USING (session)
    WHERE m.session NOT IN (SELECT e.session FROM expired AS e WHERE e.watched)
), gone AS MATERIALIZED (
    SELECT m.lease, m.session FROM pgleases.members AS m
    WHERE EXISTS (SELECT FROM due)
      AND NOT EXISTS (SELECT FROM living AS a WHERE a.lease = m.lease AND a.session = m.session)
), orphaned AS ( -- also those whom a death seen through another lease, or half a protocol, left behind
    SELECT p.lease
    FROM (SELECT lease, owner AS session FROM pgleases.partitions WHERE owner IS NOT NULL
          UNION SELECT lease, target FROM pgleases.partitions WHERE target IS NOT NULL) AS p
    WHERE EXISTS (SELECT FROM due)
      AND NOT EXISTS (SELECT FROM living AS a WHERE a.lease = p.lease AND a.session = p.session)
      AND p.lease IN (SELECT a.lease FROM living AS a)
), affected AS MATERIALIZED (
    SELECT l.name FROM pgleases.leases AS l
    WHERE l.name IN (SELECT g.lease FROM gone AS g UNION SELECT o.lease FROM orphaned AS o)
    ORDER BY l.name
    FOR UPDATE OF l
), dead AS MATERIALIZED ( -- checked again under the lock; who is just renewing is not dead
    SELECT c.session, c.id FROM pgleases.clients AS c
    WHERE c.session IN (SELECT e.session FROM expired AS e WHERE e.watched)
      AND c.expires_at < (SELECT cutoff FROM due)
      AND (SELECT count(*) FROM affected) >= 0
    ORDER BY c.session
    FOR UPDATE OF c SKIP LOCKED
), evicted AS (
    DELETE FROM pgleases.clients AS c USING dead WHERE c.session = dead.session
    RETURNING c.session, c.id
), left_behind AS (
    DELETE FROM pgleases.members AS m USING gone AS g
    WHERE m.lease = g.lease AND m.session = g.session
      AND (m.session IN (SELECT session FROM evicted)
           OR NOT EXISTS (SELECT FROM pgleases.clients AS c WHERE c.session = m.session))
), idle AS MATERIALIZED ( -- one that is locked is being registered: it is used, and waits for this statement's locks
    SELECT i.id, i.id IN (SELECT e.id FROM evicted AS e) AS just_now FROM pgleases.identities AS i
    WHERE i.id IN (SELECT e.id FROM evicted AS e)
       OR i.used_at < (SELECT clock FROM due) - interval '1 day'
          AND NOT EXISTS (SELECT FROM pgleases.clients AS c WHERE c.id = i.id)
    FOR UPDATE OF i SKIP LOCKED
), used AS (
    UPDATE pgleases.identities AS i SET used_at = clock_timestamp() FROM idle WHERE i.id = idle.id AND idle.just_now
), forgotten AS (
    DELETE FROM pgleases.identities AS i USING idle WHERE i.id = idle.id AND NOT idle.just_now
), asked AS (
    UPDATE pgleases.leases AS l
    SET generation = l.generation + 1, next_check_at = clock_timestamp()
    FROM affected
    WHERE l.name = affected.name
    RETURNING l.name
), clamped AS ( -- the clock stepped back
    UPDATE pgleases.clients AS c SET expires_at = (SELECT clock FROM due) + c.ttl
    WHERE c.expires_at > (SELECT clock FROM due) + c.ttl + interval '1 second'
), checked AS ( -- who could not evict all the expired leaves the check to others
    UPDATE pgleases.server AS s
    SET next_check_at = greatest((SELECT clock FROM due) + interval '50 milliseconds', coalesce(
            (SELECT min(least(c.expires_at, (SELECT clock FROM due) + c.ttl)) FROM pgleases.clients AS c
             WHERE c.session NOT IN (SELECT session FROM evicted)), 'infinity'))
    WHERE EXISTS (SELECT FROM due) AND NOT EXISTS (SELECT FROM expired AS e WHERE NOT e.watched)
    RETURNING s.next_check_at
)
SELECT coalesce((SELECT array_agg(id ORDER BY id) FROM evicted), '{}') AS evicted,
       coalesce((SELECT array_agg(name ORDER BY name) FROM asked), '{}') AS asked,
       coalesce((SELECT extract(epoch FROM least(next_check_at, clock_timestamp() + interval '11 minutes')
                                           - clock_timestamp()) * 1000000 FROM checked), -1)::bigint AS check_due_in,
       coalesce((SELECT extract(epoch FROM min(e.ttl)) * 1000000 FROM expired AS e WHERE NOT e.watched), 0)::bigint AS unwatched
