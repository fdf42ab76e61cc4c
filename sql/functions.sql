-- functions.sql: the functions, then the first rows of the tables. It runs after schema.sql. Idempotent: functions are
-- replaced, rows that exist stay.
--
-- No search_path may let a stranger's operator or type be called by the role that calls one of these. A function in PL/pgSQL sets its
-- own search_path. Where that would cost too much, in what runs once for each row or each statement, and in the heads of the
-- functions, all is named with its schema.
--
-- Nor may a function of a stranger, by a name from here, be called: the server prefers one that
-- takes a text where an argument has no type. So each argument of a call has the type that the
-- function takes.
--
-- For applications: partition_for, guard and guard_lock. For operators: drain, cordon, pause, freeze, pin and their opposites, evict_client,
-- drop_lease and new_server_generation. The others are parts of the statements beside this file.

-- The timeline is read from the name of the current WAL file, which changes at the moment of a promotion. Servers that were made
-- apart, as by pg_upgrade or from a dump, may be on timelines of one number: so the system
-- identifier is added to it. Each is asked for by itself, as a server may refuse the one or the
-- other. With the rights of its owner, so that all roles are told the same: else clients of two
-- roles would accept it against each other for ever.
--
-- Aurora has no timelines, and a clone has the identifier of its origin. There it is the instance,
-- and the start of its server.
CREATE OR REPLACE FUNCTION pgleases.timeline() RETURNS bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER AS $pgleases_body$
DECLARE
    number bigint := 0;
    instance pg_catalog.text;
BEGIN
    IF pg_catalog.to_regproc('pg_catalog.aurora_version') IS NULL THEN
        BEGIN
            number := ('x'::pg_catalog.text OPERATOR(pg_catalog.||) pg_catalog.lpad(pg_catalog.left(
                pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8), 16, '0'::pg_catalog.text))::bit(64)::bigint;
        EXCEPTION WHEN OTHERS THEN -- a standby, or a server that does not allow it
        END;
    ELSE
        BEGIN
            instance := pg_catalog.aurora_db_instance_identifier();
        EXCEPTION WHEN OTHERS THEN -- it is older
            BEGIN
                instance := (SELECT pg_catalog.max(s.server_id) FROM pg_catalog.aurora_replica_status() AS s
                             WHERE s.session_id OPERATOR(pg_catalog.=) 'MASTER_SESSION_ID'::pg_catalog.text);
            EXCEPTION WHEN OTHERS THEN -- the start alone tells servers apart
            END;
        END;
        number := pg_catalog.hashtextextended(pg_catalog.concat(instance, ' ', extract(epoch FROM pg_catalog.pg_postmaster_start_time())), 0::bigint)
                  OPERATOR(pg_catalog.&) 1099511627775;
    END IF;
    RETURN number OPERATOR(pg_catalog.+) (SELECT c.system_identifier FROM pg_catalog.pg_control_system() AS c);
EXCEPTION WHEN OTHERS THEN -- a server, or an owner of this function, that may not ask for it
    RETURN number;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.timeline() IS 'Names the server and its timeline now: the system identifier plus the timeline''s number, which rises with a promotion; on Aurora, plus a number for the instance and the start of its server. What the server does not tell counts as 0.';

-- Where two copies of one server are accepted in the same second, the microseconds of their starts keep the epochs apart.
CREATE OR REPLACE FUNCTION pgleases.first_epoch(generation bigint) RETURNS bigint
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    IF $1 = 0 THEN
        RETURN 0; -- nothing was accepted yet
    END IF;
    RETURN ($1 << 32) + ((extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint & 2147483647);
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.first_epoch(bigint) IS 'The first epoch that a partition is given in a server generation.';

-- A statement sets its own settings, because behind a pooler there is no session to keep them. It calls this function in a CTE and reads the result in
-- what follows, because PostgreSQL does not run a SELECT in a CTE that nothing reads. IS NOT NULL is always true: it makes
-- one boolean of both calls. In PL/pgSQL, because the server would parse SQL anew for each statement.
CREATE OR REPLACE FUNCTION pgleases.settings(durable boolean, lock_ms int) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $pgleases_body$
BEGIN
    RETURN pg_catalog.set_config('synchronous_commit',
               CASE WHEN NOT $1 THEN 'off'
                    WHEN pg_catalog.current_setting('synchronous_commit') OPERATOR(pg_catalog.=) 'off'::pg_catalog.text THEN 'on'
                    ELSE pg_catalog.current_setting('synchronous_commit') END, true) IS NOT NULL
       AND pg_catalog.set_config('lock_timeout', $2::pg_catalog.text, true) IS NOT NULL;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.settings(boolean, int) IS 'For the calling statement only: whether its commit waits for the flush of the WAL, and how many milliseconds the statement waits for a lock. Always true.';

-- Sets the column changed of leases. A trigger does, so that what operators change counts too.
CREATE OR REPLACE FUNCTION pgleases.lease_changed() RETURNS trigger
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    NEW.changed := pg_current_xact_id();
    RETURN NEW;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.lease_changed() IS 'Notes in a lease which transaction has changed it.';
CREATE OR REPLACE TRIGGER changed BEFORE INSERT OR UPDATE ON pgleases.leases FOR EACH ROW EXECUTE FUNCTION pgleases.lease_changed();

-- A function, because the server keeps a function's plans for each connection; as plain SQL, planned every time, a heartbeat
-- costs four times as much. It updates the session's own row and waits for no flush: a crash that loses the update also
-- removes the boot marker, and without it no watch goes on.
--
-- Two copies of one process, as of a virtual machine's snapshot that was started twice, have one session. They are told apart by
-- the time of the last renewal: where that is later than the last one of which the caller knows, the other copy made it. An
-- earlier one tells nothing: a crash or a promotion lost the renewals since. Times of two server incarnations are not compared.
--
-- Leases are returned again only after a change of one of them. The UPDATE's snapshot shows both
-- what has changed and from which transaction on it may have missed a change: a transaction that
-- commits later is not below the snapshot's xmin, whatever the order in which transactions begin
-- and commit. Every statement that changes members changes their lease too. A snapshot of another
-- server incarnation says nothing, because a crash may lose transactions, and their numbers are
-- given again.
--
-- It reads the leases that the caller names, by key: its cost does not grow with the leases of
-- others. To ask the members which these are would make it an eighth dearer. A caller that joins a
-- lease names none at its next heartbeat, so that all are returned. The names are a subquery: an
-- array of one name would look so cheap that the server would plan it each time.
--
-- What is above the snapshot's xmax was written on another server, of which this database is a dump.
--
-- What runs every time names all with its schema, as a search_path of its own would take a tenth of the time, and is one
-- statement. Its cost is that of getting ready for it: of each table, and of each function and operator in it. So it tells times as they are,
-- what is due is left to the caller, and it returns one text. IS NULL makes one boolean of two calls.
CREATE OR REPLACE FUNCTION pgleases.heartbeat(
    session bigint, lock_ms int, renewed double precision, renewed_marker bigint, started double precision, marker bigint, seen pg_catalog.xid8, leases pg_catalog.text[])
RETURNS pg_catalog.text
LANGUAGE plpgsql VOLATILE AS $pgleases_body$
DECLARE
    told pg_catalog.text;
    unchanged boolean; -- the server is in the incarnation given, and its leases are as they were told
BEGIN
    unchanged := pg_catalog.set_config('synchronous_commit', 'off', true) IS NULL OR pg_catalog.set_config('lock_timeout', $2::pg_catalog.text, true) IS NULL;
    UPDATE pgleases.clients AS c SET expires_at = pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) c.ttl
    WHERE c.session OPERATOR(pg_catalog.=) $1
      AND (c.expires_at OPERATOR(pg_catalog.-) c.ttl) OPERATOR(pg_catalog.<=) pg_catalog.to_timestamp($3)
      AND c.incarnation OPERATOR(pg_catalog.>=) 0 -- else it is revoked
    RETURNING
        pg_catalog.concat_ws(' ', extract(epoch FROM c.expires_at), extract(epoch FROM c.ttl),
            coalesce((SELECT pg_catalog.concat_ws(' ', s.accepted_timeline, s.generation, extract(epoch FROM s.next_check_at), s.sessions, extract(epoch FROM s.unwatched))
                      FROM pgleases.server AS s), 'none'), -- somebody has deleted the row
            coalesce((SELECT i.incarnation FROM pgleases.identities AS i WHERE i.id OPERATOR(pg_catalog.=) c.id), 0),
            pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())),
        pg_catalog.pg_postmaster_start_time() OPERATOR(pg_catalog.=) pg_catalog.to_timestamp($5)
            AND EXISTS (SELECT FROM pgleases.boot_marker AS m WHERE m.marker OPERATOR(pg_catalog.=) $6)
            AND NOT EXISTS (SELECT FROM pgleases.leases AS l
                            WHERE l.name OPERATOR(pg_catalog.=) ANY ((SELECT $8)::pg_catalog.text[]) AND l.changed OPERATOR(pg_catalog.>=) $7
                              AND l.changed OPERATOR(pg_catalog.<) pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot()))
    INTO told, unchanged;
    IF unchanged THEN
        RETURN told;
    END IF;
    IF told IS NULL AND $3 OPERATOR(pg_catalog.<) double precision 'infinity'
       AND NOT EXISTS (SELECT FROM pgleases.boot_marker AS m WHERE m.marker OPERATOR(pg_catalog.=) $4) THEN
        RETURN pgleases.heartbeat($1, $2, double precision 'infinity', $4, $5, $6, $7, $8); -- of another incarnation, or not known: whatever the last renewal was
    END IF;
    RETURN pgleases.tell($1, told);
END
$pgleases_body$;

CREATE OR REPLACE FUNCTION pgleases.tell(session bigint, renewed pg_catalog.text) RETURNS pg_catalog.text
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    now CONSTANT timestamptz := clock_timestamp();
    run CONSTANT text := concat_ws(' ', pgleases.timeline(), extract(epoch FROM pg_postmaster_start_time()),
                                   coalesce((SELECT m.marker FROM pgleases.boot_marker AS m), 0));
BEGIN
    IF $2 IS NULL THEN
        RETURN (SELECT concat_ws(' ', CASE WHEN EXISTS (SELECT FROM pgleases.clients AS c WHERE c.session = $1 AND c.incarnation >= 0)
                                      THEN 'copied' ELSE 'gone' END, -- revoked is gone, too
                                 extract(epoch FROM now), s.accepted_timeline, s.generation, run)
                FROM pgleases.server AS s);
    END IF;
    -- due_in: negative for none, 0 also where the clock stepped back.
    RETURN (SELECT concat_ws(' ', $2, run, string_agg(concat_ws(' ', l.generation,
                       CASE WHEN l.next_check_at = 'infinity' THEN -0.000001
                            WHEN l.next_check_at > now + interval '1 second' + l.partitions * interval '50 microseconds' THEN 0
                            ELSE greatest(extract(epoch FROM l.next_check_at - now), 0) END,
                       m.weight), ' '),
                   coalesce(array_agg(l.name), '{}'))
            FROM pgleases.members AS m
            JOIN pgleases.leases AS l ON l.name = m.lease
            WHERE m.session = $1);
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.tell(bigint, pg_catalog.text) IS 'The answer to a heartbeat with the server incarnation and the leases in it, after what is told each time; null: the session is gone, or a copy has renewed it.';

-- With the rights of its owner, as clients may not delete events; so it takes no argument. It looks at the first event alone where none is old.
-- An event that is dated ahead was written by a clock that was: it would keep those behind it until then, and their number would have no bound.
-- One of a transaction that is yet to come is of another server, of which this database is a dump: the first number is given to it, as it is the
-- older one.
CREATE OR REPLACE FUNCTION pgleases.trim_events() RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $pgleases_body$
DECLARE
    age CONSTANT interval := (SELECT least(k.age, interval '1000 years') FROM pgleases.events_kept AS k); -- there is no time 10,000 years ago
    old CONSTANT timestamptz := clock_timestamp() - age;
    ahead CONSTANT timestamptz := clock_timestamp() + age + interval '1 day';
BEGIN
    UPDATE pgleases.events AS e SET tx = '0'
    WHERE e.ctid = ANY (ARRAY(
        SELECT f.ctid FROM pgleases.events AS f
        WHERE f.tx > greatest(pg_snapshot_xmax(pg_current_snapshot()), pg_current_xact_id())
          AND NOT EXISTS (SELECT FROM pgleases.events AS o WHERE o.tx = '0' AND o.id = f.id)
        ORDER BY f.tx DESC, f.id DESC LIMIT 1000 FOR UPDATE OF f SKIP LOCKED));
    IF (SELECT e.at < old OR e.at > ahead FROM pgleases.events AS e ORDER BY e.tx, e.id LIMIT 1) THEN
        DELETE FROM pgleases.events AS e
        WHERE e.ctid = ANY (ARRAY(
            SELECT o.ctid FROM (SELECT f.ctid, f.at FROM pgleases.events AS f ORDER BY f.tx, f.id LIMIT 1000 FOR UPDATE SKIP LOCKED) AS o
            WHERE o.at < old OR o.at > ahead));
    END IF;
END
$pgleases_body$;
REVOKE EXECUTE ON FUNCTION pgleases.trim_events() FROM PUBLIC;
COMMENT ON FUNCTION pgleases.trim_events() IS 'Deletes some events that are older than events_kept says. Checks for expired sessions call it.';

-- A function, because of its first statement: of all clients that see the check due, one does it; the others end there.
-- Locks are taken in one order: leases by name, then clients, then members. It waits for none of them, because the lock on the
-- server's row keeps every other check from being made: what is locked is left to the next check.
--
-- It reads the clients once, into sessions: behind an old snapshot that table has every heartbeat
-- since. For the same reason it names clients by an array, which has them looked up by their key,
-- and compiles nothing (JIT). It reads nothing else of live sessions: with a million partitions it
-- takes as long as with ten. All that can wait is left to tidy.
CREATE OR REPLACE FUNCTION pgleases.evict(
    cutoff bigint, watched bigint, ttl bigint, timeline bigint, started bigint, marker bigint, lock_ms int,
    OUT evicted pg_catalog.text[], OUT asked pg_catalog.text[], OUT plan_due_in bigint, OUT check_due_in bigint)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET jit = off AS $pgleases_body$
DECLARE
    now timestamptz := clock_timestamp();
    silent timestamptz := timestamptz 'epoch' + $1 * interval '1 microsecond'; -- sessions that expired before it are dead
    longest interval := $2 * interval '1 microsecond';
    before bigint[]; -- evicted earlier; members still if a lease was locked, or a join under way
BEGIN
    PERFORM pgleases.settings(true, $7);
    evicted := '{}';
    asked := '{}';
    plan_due_in := 0;
    check_due_in := -1;
    -- Is a check due, for all or for who has watched for so long, or did the clock step back? And is this still the incarnation of the
    -- server that was watched? SKIP LOCKED, as a lock on the row means that another client does the check.
    SELECT s.left_behind INTO before FROM pgleases.server AS s
    WHERE (s.next_check_at <= now
           OR s.unwatched > interval '0' AND s.unwatched <= longest
           OR s.next_check_at > now + interval '1 second' + $3 * interval '1 microsecond')
      AND now >= silent
      AND s.accepted_timeline = $4 AND pgleases.timeline() = $4
      AND (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint = $5
      AND (SELECT m.marker FROM pgleases.boot_marker AS m) = $6
    FOR UPDATE OF s SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    WITH sessions AS MATERIALIZED (
        SELECT c.session, c.id, c.ttl, c.expires_at,
               c.expires_at < silent AND c.ttl <= longest AS dead,
               c.expires_at < silent AND c.ttl > longest AS unwatched -- it may be dead: it stays for who has watched for longer
        FROM pgleases.clients AS c
    ), gone AS MATERIALIZED (
        SELECT m.lease, m.session, s.session IS NULL AS lost
        FROM pgleases.members AS m
        LEFT JOIN sessions AS s ON s.session = m.session
        WHERE m.session = ANY (before || ARRAY(SELECT d.session FROM sessions AS d WHERE d.dead)) AND s.dead IS NOT FALSE
    ), locked AS MATERIALIZED ( -- a plan of these is due
        SELECT l.name FROM pgleases.leases AS l
        WHERE l.name = ANY (ARRAY(SELECT g.lease FROM gone AS g))
        ORDER BY l.name
        FOR UPDATE OF l SKIP LOCKED
    ), dead AS MATERIALIZED ( -- read again under the lock; SKIP LOCKED, as a locked session renews itself or joins a lease
        SELECT c.session FROM pgleases.clients AS c
        WHERE c.session = ANY (ARRAY(SELECT s.session FROM sessions AS s WHERE s.dead))
          AND c.expires_at < silent
          AND (SELECT count(*) FROM locked) >= 0 -- always true: it has the leases locked before the clients
        ORDER BY c.session
        FOR UPDATE OF c SKIP LOCKED
    ), evicted AS (
        DELETE FROM pgleases.clients AS c WHERE c.session = ANY (ARRAY(SELECT d.session FROM dead AS d))
        RETURNING c.session, c.id
    ), told AS (
        INSERT INTO pgleases.events (cause, from_id) SELECT 'evicted', e.id FROM evicted AS e ORDER BY e.id
    ), left_behind AS ( -- not one whose session renewed itself meanwhile
        DELETE FROM pgleases.members AS m USING gone AS g
        WHERE m.lease = g.lease AND m.session = g.session
          AND (m.lease IN (SELECT l.name FROM locked AS l) OR NOT EXISTS (SELECT FROM pgleases.leases AS l WHERE l.name = m.lease))
          AND (g.lost OR m.session IN (SELECT e.session FROM evicted AS e))
    ), idle AS MATERIALIZED ( -- SKIP LOCKED: a locked ID is in use, by a registration that waits for this statement
        SELECT i.id FROM pgleases.identities AS i WHERE i.id = ANY (ARRAY(SELECT e.id FROM evicted AS e)) FOR UPDATE OF i SKIP LOCKED
    ), used AS ( -- the day that an ID is kept begins now
        UPDATE pgleases.identities AS i SET used_at = clock_timestamp() WHERE i.id = ANY (ARRAY(SELECT idle.id FROM idle))
    ), asked AS (
        UPDATE pgleases.leases AS l
        SET generation = l.generation + 1,
            next_check_at = CASE WHEN l.planned_at <= clock_timestamp() -- else the clock stepped back
                                 THEN greatest(clock_timestamp(), l.planned_at + interval '50 milliseconds' + l.partitions * interval '5 microseconds')
                                 ELSE clock_timestamp() END
        FROM locked
        WHERE l.name = locked.name
        RETURNING l.name, l.next_check_at
    ), ahead AS MATERIALIZED ( -- further than a heartbeat can set it: the clock stepped back. Not now, which may be long ago
        SELECT c.session FROM pgleases.clients AS c
        WHERE c.session = ANY (ARRAY(SELECT s.session FROM sessions AS s WHERE s.expires_at > now + s.ttl + interval '1 second'))
          AND c.expires_at > clock_timestamp() + c.ttl + interval '1 second'
        ORDER BY c.session
        FOR NO KEY UPDATE OF c SKIP LOCKED
    ), clamped AS (
        UPDATE pgleases.clients AS c SET expires_at = least(c.expires_at, clock_timestamp() + c.ttl)
        WHERE c.session = ANY (ARRAY(SELECT a.session FROM ahead AS a))
    ), rest AS MATERIALIZED (
        SELECT count(*) AS sessions,
               min(least(s.expires_at, now + s.ttl)) FILTER (WHERE NOT s.unwatched) AS expires_at,
               min(s.ttl) FILTER (WHERE s.unwatched) AS unwatched
        FROM sessions AS s
        WHERE s.session NOT IN (SELECT e.session FROM evicted AS e)
    ), checked AS (
        UPDATE pgleases.server AS s
        SET sessions = rest.sessions,
            unwatched = coalesce(rest.unwatched, interval '0'),
            checks = s.checks + 1,
            left_behind = ARRAY(SELECT e.session FROM evicted AS e UNION SELECT g.session FROM gone AS g WHERE g.lost),
            next_check_at = greatest(now + interval '50 milliseconds',
                CASE WHEN (SELECT count(*) FROM locked) < (SELECT count(*) FROM pgleases.leases AS l WHERE l.name = ANY (ARRAY(SELECT g.lease FROM gone AS g)))
                     THEN least(rest.expires_at, now + interval '100 milliseconds') -- for those that are locked
                     ELSE least(coalesce(rest.expires_at, 'infinity'), -- an override that cannot be ended now is left to the next check
                                (SELECT CASE WHEN min(w.until) <= now THEN now + interval '100 milliseconds' ELSE min(w.until) END
                                 FROM pgleases.overrides AS w WHERE w.until < 'infinity')) END)
        FROM rest
        RETURNING s.next_check_at, rest.unwatched
    )
    -- 11 minutes are more than any TTL: infinity less a time is an error.
    SELECT coalesce((SELECT array_agg(e.id ORDER BY e.id) FROM evicted AS e), '{}'),
           coalesce((SELECT array_agg(a.name ORDER BY a.name) FROM asked AS a), '{}'),
           coalesce((SELECT greatest(extract(epoch FROM max(a.next_check_at) - clock_timestamp()) * 1000000, 0) FROM asked AS a), 0),
           (SELECT greatest(extract(epoch FROM least(c.next_check_at, clock_timestamp() + interval '11 minutes',
                                                     clock_timestamp() + (c.unwatched - longest)) - clock_timestamp()) * 1000000, 0)
            FROM checked AS c)
    INTO evicted, asked, plan_due_in, check_due_in;
END
$pgleases_body$;

-- 32 blocks, about 2,000 rows, by address. The next check looks at the next ones, so a check costs
-- the same however large the table is.
CREATE OR REPLACE FUNCTION pgleases.part(relation pg_catalog.regclass, OUT first tid, OUT beyond tid)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    blocks CONSTANT bigint := pg_relation_size($1) / current_setting('block_size')::bigint;
    block CONSTANT bigint := 32 * (SELECT s.checks % (blocks / 32 + 1) FROM pgleases.server AS s);
BEGIN
    first := format('(%s,0)', block)::tid;
    beyond := format('(%s,0)', block + 32)::tid;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.part(pg_catalog.regclass) IS 'The part of a table at which the present check for expired sessions looks.';

-- Orphans come of changes by hand. It is not a part of evict, so that no failure here undoes an
-- eviction, or delays one.
CREATE OR REPLACE FUNCTION pgleases.tidy(lock_ms int) RETURNS pg_catalog.text[]
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $pgleases_body$
DECLARE
    m CONSTANT record := pgleases.part('pgleases.members'::regclass);
    p CONSTANT record := pgleases.part('pgleases.partitions'::regclass);
    i CONSTANT record := pgleases.part('pgleases.identities'::regclass);
    asked text[];
BEGIN
    PERFORM pgleases.settings(true, $1);
    WITH lost AS MATERIALIZED ( -- members without a session
        SELECT o.lease, o.session FROM pgleases.members AS o
        WHERE o.ctid >= m.first AND o.ctid < m.beyond
          AND (SELECT c.session FROM pgleases.clients AS c WHERE c.session = o.session) IS NULL
    ), owned AS MATERIALIZED (
        SELECT o.lease, o.owner, o.target FROM pgleases.partitions AS o WHERE o.ctid >= p.first AND o.ctid < p.beyond
    ), orphaned AS MATERIALIZED ( -- owners and targets that are no living members
        SELECT o.lease
        FROM (SELECT lease, owner AS session FROM owned WHERE owner IS NOT NULL
              UNION SELECT lease, target FROM owned WHERE target IS NOT NULL) AS o
        WHERE (SELECT n.session FROM pgleases.members AS n
               CROSS JOIN LATERAL (SELECT FROM pgleases.clients AS c WHERE c.session = n.session OFFSET 0) AS c
               WHERE n.lease = o.lease AND n.session = o.session) IS NULL
    ), locked AS MATERIALIZED ( -- for orphans only if no plan is due or under way, and it has a member
        SELECT l.name FROM pgleases.leases AS l
        WHERE l.name = ANY (ARRAY(SELECT g.lease FROM lost AS g UNION SELECT o.lease FROM orphaned AS o))
          AND (l.name IN (SELECT g.lease FROM lost AS g)
               OR (l.next_check_at = 'infinity'
                   OR l.next_check_at > clock_timestamp() + interval '1 second' + l.partitions * interval '50 microseconds') -- the clock stepped back
               AND EXISTS (SELECT FROM pgleases.members AS o
                           WHERE o.lease = l.name AND (SELECT c.session FROM pgleases.clients AS c WHERE c.session = o.session) IS NOT NULL))
        ORDER BY l.name
        FOR UPDATE OF l SKIP LOCKED
    ), left_behind AS (
        DELETE FROM pgleases.members AS o USING lost AS g
        WHERE o.lease = g.lease AND o.session = g.session
          AND (o.lease IN (SELECT l.name FROM locked AS l) OR (SELECT l.name FROM pgleases.leases AS l WHERE l.name = o.lease) IS NULL)
    ), planned AS (
        UPDATE pgleases.leases AS l SET generation = l.generation + 1, next_check_at = clock_timestamp()
        WHERE l.name = ANY (ARRAY(SELECT k.name FROM locked AS k))
        RETURNING l.name
    )
    SELECT coalesce(array_agg(n.name ORDER BY n.name), '{}') INTO asked FROM planned AS n;
    DELETE FROM pgleases.identities AS d
    WHERE d.id = ANY (ARRAY(
        SELECT o.id FROM pgleases.identities AS o
        WHERE o.ctid >= i.first AND o.ctid < i.beyond AND o.used_at < clock_timestamp() - interval '1 day'
          AND o.id NOT IN (SELECT c.id FROM pgleases.clients AS c)
        FOR UPDATE OF o SKIP LOCKED)); -- a locked ID is in use
    PERFORM pgleases.trim_events();
    IF EXISTS (SELECT FROM pgleases.overrides AS w WHERE w.until < 'infinity') THEN
        asked := ARRAY(SELECT DISTINCT n FROM unnest(asked || pgleases.end_overrides()) AS n ORDER BY n);
    END IF;
    RETURN asked;
END
$pgleases_body$;

-- From here to evict_disconnected: fast failover.

-- The lock is the session's, not the transaction's: it lasts until the connection ends. The key is written before the client trusts itself
-- on this connection: else the end of an earlier connection could be taken for the client's. So could it where this statement comes late, from
-- an earlier connection: of a session's keys the lowest is the last one.
CREATE OR REPLACE FUNCTION pgleases.hold_liveness(session bigint, presence bigint, lock_ms int) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    PERFORM pgleases.settings(true, $3);
    INSERT INTO pgleases.presences AS p (session, presence, pid)
    SELECT c.session, $2, pg_backend_pid() FROM pgleases.clients AS c WHERE c.session = $1
    ON CONFLICT ON CONSTRAINT presences_pkey DO UPDATE SET presence = EXCLUDED.presence, pid = EXCLUDED.pid WHERE EXCLUDED.presence < p.presence;
    DELETE FROM pgleases.presences AS p
    WHERE p.session = ANY (ARRAY(
        SELECT o.session FROM pgleases.presences AS o
        WHERE NOT EXISTS (SELECT FROM pgleases.clients AS c WHERE c.session = o.session)
        FOR UPDATE OF o SKIP LOCKED));
    IF EXISTS (SELECT FROM pgleases.presences AS p WHERE p.session = $1 AND p.presence <> $2) THEN
        RETURN false;
    END IF;
    IF NOT pg_try_advisory_lock($2) THEN -- last, as an error leaves it held, and a client repeats this with another key
        RAISE EXCEPTION 'another connection holds advisory lock %', $2 USING ERRCODE = 'lock_not_available';
    END IF;
    RETURN true;
END
$pgleases_body$;

-- The counters come first: what ends a session between them and the locks is counted later, and seen as a change.
CREATE OR REPLACE FUNCTION pgleases.watch_liveness(
    session bigint, known bigint,
    OUT watches boolean, OUT abandoned bigint, OUT killed bigint, OUT fatal bigint, OUT reset bigint,
    OUT digest bigint, OUT held bigint[], OUT pids int[], OUT free bigint[], OUT free_sessions bigint[], OUT free_expiries bigint[],
    OUT stranger int)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET jit = off AS $pgleases_body$
DECLARE
    here CONSTANT oid := (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database());
BEGIN
    abandoned := 0;
    killed := 0;
    fatal := 0;
    reset := 0;
    digest := 0;
    held := '{}';
    pids := '{}';
    free := '{}';
    free_sessions := '{}';
    free_expiries := '{}';
    stranger := 0;
    watches := (SELECT count(*) < 2 FROM (SELECT FROM pgleases.presences AS p
                                          WHERE p.session < $1 AND EXISTS (SELECT FROM pgleases.clients AS c WHERE c.session = p.session)
                                          ORDER BY p.session LIMIT 2) AS before);
    IF NOT watches THEN
        RETURN;
    END IF;
    SELECT s.abandoned, s.killed, s.fatal, s.reset FROM pgleases.session_ends() AS s INTO abandoned, killed, fatal, reset;
    SELECT coalesce(bit_xor(p.presence) FILTER (WHERE l.granted), 0),
           coalesce(array_agg(p.presence) FILTER (WHERE l.granted), '{}'), coalesce(array_agg(l.pid) FILTER (WHERE l.granted), '{}'),
           coalesce(array_agg(p.presence) FILTER (WHERE l.pid IS NULL), '{}'), coalesce(array_agg(c.session) FILTER (WHERE l.pid IS NULL), '{}'),
           coalesce(array_agg((extract(epoch FROM c.expires_at) * 1000000)::bigint) FILTER (WHERE l.pid IS NULL), '{}'),
           coalesce(min(l.pid) FILTER (WHERE l.pid <> p.pid), 0) -- who waits has it when the client dies
    FROM pgleases.presences AS p
    JOIN pgleases.clients AS c ON c.session = p.session
    LEFT JOIN (SELECT (k.classid::bigint << 32) | k.objid::bigint AS presence, k.pid, k.granted FROM pg_locks AS k
               WHERE k.locktype = 'advisory' AND k.objsubid = 1 AND k.database = here
                 AND k.mode = 'ExclusiveLock') AS l -- not who only looks, in evict_disconnected
           ON l.presence = p.presence
    INTO digest, held, pids, free, free_sessions, free_expiries, stranger;
    IF digest = $2 THEN -- the keys are random: these are the ones that the caller knows
        held := '{}';
        pids := '{}';
    END IF;
END
$pgleases_body$;

-- Functions, not the view pg_stat_database, which would read all of them.
CREATE OR REPLACE FUNCTION pgleases.session_ends(OUT abandoned bigint, OUT killed bigint, OUT fatal bigint, OUT reset bigint)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    SELECT pg_stat_get_db_sessions_abandoned(d.oid), pg_stat_get_db_sessions_killed(d.oid), pg_stat_get_db_sessions_fatal(d.oid),
           coalesce((extract(epoch FROM pg_stat_get_db_stat_reset_time(d.oid)) * 1000000)::bigint, 0)
    FROM pg_database AS d WHERE d.datname = current_database()
    INTO abandoned, killed, fatal, reset;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.session_ends() IS 'How many sessions in this database were abandoned by their clients, killed, and ended by a fatal error, since a reset.';

-- A lock is free before its session's end is counted. Whoever is not among the server's processes any more has been counted. So the lock comes
-- first, then the process, then the counters: as many sessions were abandoned as there are to be evicted, and none has
-- ended in another way.
--
-- Who is dead is made to have expired long ago; evict does the rest. This row of the server keeps all other evictions from the sessions. The
-- notification has the next two clients look out.
CREATE OR REPLACE FUNCTION pgleases.evict_disconnected(
    sessions bigint[], presences bigint[], pids int[], expiries bigint[], abandoned bigint, killed bigint, fatal bigint, reset bigint,
    timeline bigint, started bigint, marker bigint, lock_ms int, channel pg_catalog.text,
    OUT evicted pg_catalog.text[], OUT asked pg_catalog.text[], OUT plan_due_in bigint)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET jit = off AS $pgleases_body$
DECLARE
    dead bigint[] := '{}';
    r record;
BEGIN
    PERFORM pgleases.settings(true, $12);
    evicted := '{}';
    asked := '{}';
    plan_due_in := 0;
    PERFORM FROM pgleases.server AS s
    WHERE s.accepted_timeline = $9 AND pgleases.timeline() = $9
      AND (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint = $10
      AND (SELECT m.marker FROM pgleases.boot_marker AS m) = $11
    FOR UPDATE OF s SKIP LOCKED; -- another client evicts
    IF NOT FOUND THEN
        RETURN;
    END IF;
    FOR r IN
        SELECT p.session, p.presence, e.pid
        FROM unnest($1, $2, $3, $4) AS e (session, presence, pid, expiry)
        JOIN pgleases.clients AS c ON c.session = e.session
        JOIN pgleases.presences AS p ON p.session = e.session
        WHERE p.presence = e.presence AND (extract(epoch FROM c.expires_at) * 1000000)::bigint = e.expiry
        ORDER BY p.session
        FOR UPDATE OF c, p SKIP LOCKED -- a locked session renews itself, or has another connection
    LOOP
        IF pg_try_advisory_xact_lock_shared(r.presence) AND NOT EXISTS (SELECT FROM pg_stat_activity AS a WHERE a.pid = r.pid) THEN
            dead := dead || r.session;
        END IF;
    END LOOP;
    PERFORM FROM pgleases.session_ends() AS s
    WHERE s.abandoned - $5 >= cardinality(dead) AND s.killed = $6 AND s.fatal = $7 AND s.reset = $8;
    IF NOT FOUND OR cardinality(dead) = 0 THEN
        RETURN;
    END IF;
    UPDATE pgleases.clients AS c SET expires_at = timestamptz 'epoch' WHERE c.session = ANY (dead);
    UPDATE pgleases.server AS s SET next_check_at = timestamptz 'epoch';
    SELECT e.evicted, e.asked, e.plan_due_in
    FROM pgleases.evict(1::bigint, 660000000::bigint, 0::bigint, $9, $10, $11, $12) AS e
    INTO evicted, asked, plan_due_in;
    IF $13 <> '' THEN
        PERFORM pg_notify($13, string_agg(n.session::text, ','))
        FROM (SELECT p.session FROM pgleases.presences AS p JOIN pgleases.clients AS c ON c.session = p.session
              ORDER BY p.session LIMIT 2) AS n
        HAVING count(*) > 0;
    END IF;
END
$pgleases_body$;

-- From here to apply they are functions for their plans, which the server keeps for each connection: to plan them anew cost more
-- than to carry out what is usual, a few partitions. A plan that is kept has to be good for one row and for 65,536, whatever the tables held when it was made.
-- So rows are looked up by their key or their address (ctid), and the planner has no choice: it does not join in another way what
-- stands in LATERAL with OFFSET 0 or FOR UPDATE, and does not read a whole table (enable_seqscan). What is compared with many members
-- is compared by hash, as every IN is that is no condition of WHERE. For nulls such an IN is slow, so they are kept from it.

CREATE OR REPLACE FUNCTION pgleases.read(
    session bigint, leases pg_catalog.text[],
    OUT name pg_catalog.text, OUT generation bigint, OUT timeline bigint, OUT started bigint, OUT accepted_timeline bigint, OUT server_generation bigint,
    OUT partitions int[], OUT epochs bigint[], OUT moving boolean[], OUT paused pg_catalog.text[], OUT drained pg_catalog.text[])
RETURNS SETOF record
LANGUAGE plpgsql STABLE -- one snapshot
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off
AS $pgleases_body$
BEGIN
    RETURN QUERY
    SELECT l.name, l.generation, pgleases.timeline(), (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint,
           s.accepted_timeline, s.generation, coalesce(o.partitions, '{}'), coalesce(o.epochs, '{}'), coalesce(o.moving, '{}'),
           (SELECT ARRAY[w.actor, w.reason] FROM pgleases.overrides AS w WHERE w.verb = 'pause' AND w.lease = l.name),
           (SELECT ARRAY[w.actor, w.reason] FROM pgleases.overrides AS w JOIN pgleases.clients AS c ON c.id = w.client WHERE w.verb = 'drain' AND c.session = $1)
    FROM pgleases.server AS s, pgleases.leases AS l
    LEFT JOIN (
        SELECT p.lease, array_agg(p.partition) AS partitions, array_agg(p.epoch) AS epochs,
               array_agg(p.target IS DISTINCT FROM p.owner) AS moving
        FROM (SELECT p.lease, p.partition, p.epoch, p.target, p.owner FROM pgleases.partitions AS p
              WHERE p.owner = $1 AND (p.lease = ANY ($2)) IS TRUE -- IS TRUE: by the index on owner
              ORDER BY p.lease, p.partition) AS p
        GROUP BY p.lease
    ) AS o ON o.lease = l.name
    WHERE l.name = ANY ($2);
END
$pgleases_body$;

-- Releases of several owners run side by side: none waits for another's flush. So a release that changes nothing but owners holds the
-- row of the lease in the weakest mode, and does not write to it: announce does, in a transaction that waits for no flush. FOR KEY
-- SHARE keeps plans, evictions and leaves from the lease. A session that is gone releases nothing: a plan may have read that.
CREATE OR REPLACE FUNCTION pgleases.release(
    session bigint, leases pg_catalog.text[], partitions int[], epochs bigint[], successors bigint[],
    leaving pg_catalog.text[], planned bigint[], ending pg_catalog.text[], last_join bigint, lock_ms int, channel pg_catalog.text,
    OUT released_leases pg_catalog.text[], OUT released_partitions int[], OUT owners bigint[], OUT new_epochs bigint[],
    OUT busy_leases pg_catalog.text[], OUT busy_partitions int[], OUT left_leases pg_catalog.text[], OUT asking pg_catalog.text[])
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off
AS $pgleases_body$
DECLARE
    names CONSTANT text[] := ARRAY(SELECT DISTINCT n FROM unnest($2 || $6) AS n);
    as_planned text[]; -- leases to leave that are as the plan of the successors read them
    first bigint;
    present bigint; -- the server generation
    drained text[] := '{}';
    alive boolean;
    drains boolean; -- the client, by an override
    concerned bigint[];
    due text[]; -- leases for which a plan is due
BEGIN
    PERFORM pgleases.settings(true, $10);
    IF cardinality($8) > 0 THEN
        PERFORM FROM pgleases.leases AS l WHERE l.name = ANY (names) ORDER BY l.name FOR UPDATE;
    ELSE
        PERFORM FROM pgleases.leases AS l WHERE l.name = ANY (names) ORDER BY l.name FOR KEY SHARE;
    END IF;
    PERFORM FROM pgleases.clients AS c WHERE c.session = $1 FOR KEY SHARE; -- it is not evicted before this is committed
    alive := FOUND;
    IF alive THEN
        SELECT s.generation, pgleases.first_epoch(s.generation) INTO present, first
        FROM pgleases.server AS s WHERE s.accepted_timeline = pgleases.timeline(); -- the server is accepted
    END IF;
    drains := EXISTS (SELECT FROM pgleases.overrides AS w
                      WHERE w.verb = 'drain' AND w.client = (SELECT c.id FROM pgleases.clients AS c WHERE c.session = $1));
    as_planned := ARRAY(SELECT l.name FROM unnest($6, $7) AS g (lease, generation)
                        JOIN pgleases.leases AS l ON l.name = g.lease AND l.generation = g.generation);

    WITH taken AS MATERIALIZED (
        SELECT p.place, p.lease, p.owner_id, b.epoch >> 32 < present AND NOT (p.lease = ANY ($6)) AS renewed,
               CASE WHEN b.successor <> 0 AND p.lease = ANY (as_planned) THEN b.successor ELSE p.target END AS target
        FROM (SELECT * FROM unnest($2, $3, $4, $5) AS b (lease, partition, epoch, successor) ORDER BY lease, partition) AS b
        CROSS JOIN LATERAL ( -- IS TRUE keeps the planner from the index on owner: by the key is faster
            SELECT p.ctid AS place, p.lease, p.target, p.owner_id
            FROM pgleases.partitions AS p
            WHERE p.lease = b.lease AND p.partition = b.partition AND (p.owner = $1) IS TRUE AND p.epoch = b.epoch
            FOR UPDATE SKIP LOCKED -- a guarded transaction has the others
        ) AS p
        WHERE present IS NOT NULL
    ), successors AS MATERIALIZED ( -- those that are living members
        SELECT n.lease, n.session, c.id
        FROM (SELECT DISTINCT k.lease, CASE WHEN k.renewed THEN $1 ELSE k.target END AS session FROM taken AS k) AS n
        CROSS JOIN LATERAL (
            SELECT c.id FROM pgleases.members AS m JOIN pgleases.clients AS c ON c.session = m.session
            WHERE m.lease = n.lease AND m.session = n.session
            OFFSET 0
        ) AS c
        WHERE NOT (n.session = $1 AND n.lease = ANY ($6))
    ), released AS (
        UPDATE pgleases.partitions AS p
        SET owner = h.session, target = CASE WHEN k.renewed THEN k.target ELSE h.session END,
            epoch = greatest(p.epoch + 1, first),
            owner_id = coalesce(h.id, p.owner_id),
            preferred_owner_id = CASE WHEN h.id = p.preferred_owner_id THEN NULL
                           WHEN h.id <> p.owner_id
                            AND (p.lease = ANY ($6) OR drains
                                 OR p.lease IN (SELECT own.lease FROM pgleases.members AS own WHERE own.session = $1 AND own.weight = 0))
                           THEN p.owner_id
                           ELSE p.preferred_owner_id END,
            owned_since = CASE WHEN h.session IS NOT NULL THEN clock_timestamp() END,
            asked_at = CASE WHEN CASE WHEN k.renewed THEN k.target ELSE h.session END IS DISTINCT FROM h.session THEN p.asked_at END
        FROM taken AS k
        LEFT JOIN successors AS h ON h.lease = k.lease AND h.session = CASE WHEN k.renewed THEN $1 ELSE k.target END
        WHERE p.ctid = k.place
        RETURNING p.lease, p.partition, p.owner, p.epoch, k.renewed, k.owner_id AS from_id, h.id AS to_id
    ), told AS (
        INSERT INTO pgleases.events (lease, cause, from_id, to_id, partitions, generation)
        SELECT r.lease, 'handed over', r.from_id, r.to_id, range_agg(int4range(r.partition, r.partition, '[]')),
               (SELECT l.generation FROM pgleases.leases AS l WHERE l.name = r.lease)
        FROM released AS r
        WHERE NOT r.renewed
        GROUP BY r.lease, r.from_id, r.to_id
    )
    SELECT coalesce(array_agg(r.lease), '{}'), coalesce(array_agg(r.partition), '{}'), coalesce(array_agg(coalesce(r.owner, 0)), '{}'),
           coalesce(array_agg(r.epoch), '{}'), coalesce(array_agg(DISTINCT r.lease) FILTER (WHERE r.owner IS NULL), '{}')
    FROM (SELECT * FROM released ORDER BY lease, partition) AS r
    INTO released_leases, released_partitions, owners, new_epochs, due;

    busy_leases := '{}';
    busy_partitions := '{}';
    IF alive AND cardinality(released_partitions) < cardinality($3) THEN
        SELECT coalesce(array_agg(b.lease), '{}'), coalesce(array_agg(b.partition), '{}')
        FROM (SELECT * FROM unnest($2, $3, $4) AS b (lease, partition, epoch) ORDER BY lease, partition) AS b
        CROSS JOIN LATERAL (
            SELECT FROM pgleases.partitions AS p
            WHERE p.lease = b.lease AND p.partition = b.partition AND (p.owner = $1) IS TRUE AND p.epoch = b.epoch
        ) AS p
        INTO busy_leases, busy_partitions;
    END IF;

    left_leases := '{}';
    asking := '{}';
    IF cardinality($8) > 0 THEN
        WITH rest AS MATERIALIZED ( -- still owned in leases to leave
            SELECT DISTINCT p.lease FROM pgleases.partitions AS p
            WHERE p.owner = $1 AND (p.lease = ANY ($8)) IS TRUE
        ), gone AS (
            DELETE FROM pgleases.members AS m
            WHERE m.session = $1 AND m.lease = ANY ($8) AND m.lease NOT IN (SELECT lease FROM rest) AND m.join_number <= $9
            RETURNING m.lease
        ), told AS (
            INSERT INTO pgleases.events (lease, cause, from_id, generation)
            SELECT g.lease, 'left', (SELECT c.id FROM pgleases.clients AS c WHERE c.session = $1),
                   (SELECT l.generation FROM pgleases.leases AS l WHERE l.name = g.lease)
            FROM gone AS g
        ), drained AS (
            UPDATE pgleases.members AS m SET weight = 0
            WHERE m.session = $1 AND m.lease IN (SELECT lease FROM rest) AND m.weight <> 0 AND m.join_number <= $9
            RETURNING m.lease
        )
        SELECT coalesce((SELECT array_agg(g.lease ORDER BY g.lease) FROM gone AS g), '{}'),
               coalesce((SELECT array_agg(d.lease) FROM drained AS d), '{}')
        INTO left_leases, drained;
        -- A plan is due, unless what was released went where the plan without this session has it.
        due := due || ARRAY(SELECT g FROM unnest(left_leases) AS g WHERE NOT (g = ANY (as_planned)));
        concerned := ARRAY(SELECT DISTINCT r.owner FROM unnest(released_leases, owners) AS r (lease, owner)
                           WHERE r.owner <> 0 AND r.lease = ANY (left_leases));
        IF $11 <> '' AND cardinality(concerned) > 0 THEN
            PERFORM pg_notify($11, CASE WHEN cardinality(concerned) > 100 THEN 'all' ELSE array_to_string(concerned, ',') END);
        END IF;
    ELSIF cardinality(due) > 0 THEN -- by name, as the lock held until here lets others change them
        PERFORM FROM pgleases.leases AS l WHERE l.name = ANY (due) ORDER BY l.name FOR NO KEY UPDATE;
    END IF;
    IF cardinality(due) + cardinality(left_leases) + cardinality(drained) > 0 THEN
        WITH changed AS (
            UPDATE pgleases.leases AS l
            SET generation = l.generation + 1,
                next_check_at = CASE WHEN l.name = ANY (due) AND EXISTS (SELECT FROM pgleases.members AS m WHERE m.lease = l.name AND m.weight > 0)
                                      AND NOT EXISTS (SELECT FROM pgleases.overrides AS w WHERE w.lease = l.name AND w.verb = 'pause')
                                     THEN least(l.next_check_at, clock_timestamp())
                                     ELSE l.next_check_at END
            WHERE l.name = ANY (due) OR l.name = ANY (left_leases) OR l.name = ANY (drained)
            RETURNING l.name, l.next_check_at
        )
        SELECT coalesce(array_agg(c.name ORDER BY c.name), '{}') FROM changed AS c WHERE c.next_check_at <= clock_timestamp()
        INTO asking;
    END IF;
END
$pgleases_body$;

CREATE OR REPLACE FUNCTION pgleases.announce(leases pg_catalog.text[], sessions bigint[], lock_ms int, channel pg_catalog.text) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off
AS $pgleases_body$
BEGIN
    PERFORM pgleases.settings(false, $3);
    PERFORM FROM pgleases.leases AS l WHERE l.name = ANY ($1) ORDER BY l.name FOR NO KEY UPDATE;
    UPDATE pgleases.leases AS l SET generation = l.generation + 1 WHERE l.name = ANY ($1);
    IF $4 <> '' AND cardinality($2) > 0 THEN
        PERFORM pg_notify($4, CASE WHEN cardinality($2) > 100 THEN 'all' ELSE array_to_string($2, ',') END);
    END IF;
END
$pgleases_body$;

CREATE OR REPLACE FUNCTION pgleases.snapshot(
    leases pg_catalog.text[], alone boolean,
    OUT name pg_catalog.text, OUT generation bigint, OUT partitions int,
    OUT sessions bigint[], OUT ids pg_catalog.text[], OUT incarnations bigint[], OUT weights int[],
    OUT drained boolean[], OUT cordoned boolean[], OUT paused boolean, OUT frozen boolean, OUT pinned int[], OUT pinned_to pg_catalog.text[],
    OUT owners bigint[], OUT targets bigint[], OUT owner_ids pg_catalog.text[], OUT preferred_owner_ids pg_catalog.text[], OUT numbers pg_catalog.text)
RETURNS SETOF record
LANGUAGE plpgsql STABLE -- all of it reads one snapshot
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_sort = off SET jit = off
SET work_mem = '64MB' -- for 65,536 partitions: less is written to a file
AS $pgleases_body$
DECLARE
    related text[] := $1;
BEGIN
    IF NOT $2 THEN
        related := $1 || ARRAY(
            SELECT DISTINCT other.lease -- each session once, as many leases may be named that it is a member of
            FROM (SELECT DISTINCT m.session FROM pgleases.members AS m WHERE m.lease = ANY ($1)) AS m
            CROSS JOIN LATERAL (SELECT o.lease FROM pgleases.members AS o WHERE o.session = m.session OFFSET 0) AS other);
    END IF;
    RETURN QUERY
    SELECT l.name, l.generation, l.partitions, m.sessions, m.ids, m.incarnations, m.weights, m.drained, m.cordoned,
        v.verbs LIKE '%pause%', v.verbs LIKE '%freeze%', v.pinned, v.pinned_to,
           h.owners, h.targets, h.owner_ids, h.preferred_owner_ids, h.numbers
    FROM pgleases.leases AS l
    CROSS JOIN LATERAL (
        SELECT coalesce(array_agg(a.session), '{}') AS sessions, coalesce(array_agg(a.id), '{}') AS ids,
               coalesce(array_agg(a.incarnation), '{}') AS incarnations, coalesce(array_agg(a.weight), '{}') AS weights,
               coalesce(array_agg(a.verbs LIKE '%drain%'), '{}') AS drained, coalesce(array_agg(a.verbs LIKE '%cordon%'), '{}') AS cordoned
        FROM (SELECT m.session, c.id, c.incarnation, m.weight,
                     coalesce((SELECT string_agg(w.verb, ' ') FROM pgleases.overrides AS w WHERE w.client = c.id AND w.lease IS NULL), '') AS verbs
              FROM pgleases.members AS m
              CROSS JOIN LATERAL (SELECT c.id, c.incarnation FROM pgleases.clients AS c WHERE c.session = m.session OFFSET 0) AS c
              WHERE m.lease = l.name
              ORDER BY c.id, c.incarnation, m.session) AS a
    ) AS m
    CROSS JOIN LATERAL (
        SELECT coalesce(array_agg(coalesce(p.owner, 0)), '{}') AS owners, coalesce(array_agg(coalesce(p.target, 0)), '{}') AS targets,
               coalesce(array_agg(coalesce(p.owner_id, '')), '{}') AS owner_ids, coalesce(array_agg(coalesce(p.preferred_owner_id, '')), '{}') AS preferred_owner_ids,
               coalesce(string_agg(array_to_string(p.numbers, ','), ';'), '') AS numbers
        FROM (SELECT p.owner, p.target, p.owner_id, p.preferred_owner_id, array_agg(p.partition) AS numbers
              FROM pgleases.partitions AS p
              WHERE p.lease = l.name
              GROUP BY p.owner, p.target, p.owner_id, p.preferred_owner_id) AS p
    ) AS h
    CROSS JOIN LATERAL (
        SELECT coalesce(string_agg(w.verb, ' ') FILTER (WHERE w.partition IS NULL), '') AS verbs,
               coalesce(array_agg(w.partition) FILTER (WHERE w.verb = 'pin'), '{}') AS pinned,
               coalesce(array_agg(w.client) FILTER (WHERE w.verb = 'pin'), '{}') AS pinned_to
        FROM pgleases.overrides AS w WHERE w.lease = l.name AND (w.partition < l.partitions) IS NOT FALSE
    ) AS v
    WHERE l.name = ANY (related) AND l.partitions > 0
    ORDER BY l.name;
END
$pgleases_body$;

-- The leases are locked first. What follows is a statement of its own, with a snapshot of its own: it sees all that was committed
-- while this one waited, and while it lasts no release, join or other plan of these leases is carried out. So who owns a partition
-- does not change from there on; a fence may raise its epoch.
CREATE OR REPLACE FUNCTION pgleases.apply(
    names pg_catalog.text[], generations bigint[], successor_leases pg_catalog.text[], successors bigint[],
    leases pg_catalog.text[], firsts int[], lasts int[], moves int[], lock_ms int, again bigint, channel pg_catalog.text,
    OUT applied boolean, OUT unaccepted boolean, OUT asked int, OUT given int, OUT left_over int, OUT moved pg_catalog.text[])
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off AS $pgleases_body$
DECLARE
    successor_ids text[];
    unchanged int;
    lowest bigint; -- epoch
    late text[] := '{}';
    concerned bigint[] := '{}'; -- sessions to notify
    free_places tid[]; -- what is not an owner's to hand over: by move
    free_epochs bigint[];
    free_successors int[];
BEGIN
    PERFORM pgleases.settings(true, $9);
    applied := false;
    unaccepted := false;
    asked := 0;
    given := 0;
    left_over := 0;
    moved := '{}';
    PERFORM FROM (SELECT r.name, r.generation FROM unnest($1, $2) AS r (name, generation) ORDER BY r.name COLLATE "C") AS r
    CROSS JOIN LATERAL (SELECT FROM pgleases.leases AS l WHERE l.name = r.name AND l.generation = r.generation FOR UPDATE) AS l;
    GET DIAGNOSTICS unchanged = ROW_COUNT;
    SELECT pgleases.first_epoch(s.generation) INTO lowest FROM pgleases.server AS s
    WHERE s.accepted_timeline = pgleases.timeline() AND unchanged = cardinality($1);
    IF NOT FOUND THEN -- a lease has changed, or the server is not accepted
        unaccepted := NOT EXISTS (SELECT FROM pgleases.server AS s WHERE s.accepted_timeline = pgleases.timeline());
        RETURN;
    END IF;
    applied := true;
    IF cardinality($8) > 0 THEN
        successor_ids := ARRAY( -- null: no living member
            SELECT c.id
            FROM unnest($3, $4) WITH ORDINALITY AS h (lease, session, number)
            LEFT JOIN LATERAL (
                SELECT c.id FROM pgleases.members AS m JOIN pgleases.clients AS c ON c.session = m.session
                WHERE m.lease = h.lease AND m.session = h.session
                OFFSET 0
            ) AS c ON true
            ORDER BY h.number);
        WITH moves AS MATERIALIZED ( -- without those to sessions that are no living members any more
            SELECT p.place, p.epoch, p.successor,
                   p.owner IS NOT NULL AND (p.lease, p.owner) IN (
                       SELECT m.lease, m.session FROM pgleases.members AS m
                       CROSS JOIN LATERAL (SELECT FROM pgleases.clients AS c WHERE c.session = m.session OFFSET 0) AS c
                       WHERE m.lease = ANY ($1)) AS kept
            FROM (SELECT p.place, p.lease, p.owner, p.epoch, $8[r.before + p.partition - r.first + 1] AS successor
                  FROM (SELECT r.lease, r.first, r.last, sum(r.last - r.first + 1) OVER (ORDER BY r.number) - (r.last - r.first + 1) AS before
                        FROM unnest($5, $6, $7) WITH ORDINALITY AS r (lease, first, last, number)) AS r
                  CROSS JOIN LATERAL (
                      SELECT p.ctid AS place, p.lease, p.partition, p.owner, p.epoch FROM pgleases.partitions AS p
                      WHERE p.lease = r.lease AND p.partition BETWEEN r.first AND r.last
                      OFFSET 0
                  ) AS p
                  WHERE r.lease = ANY ($1)) AS p
            WHERE p.successor > 0 AND ($4[p.successor] = 0 OR successor_ids[p.successor] IS NOT NULL)
        ), asked AS ( -- an UPDATE of these columns does not wait for a guard's lock
            UPDATE pgleases.partitions AS p
            SET target = nullif($4[m.successor], 0),
                asked_at = CASE WHEN $4[m.successor] <> p.owner THEN clock_timestamp() END
            FROM moves AS m
            WHERE m.kept AND p.ctid = m.place
            RETURNING p.lease, p.owner
        )
        SELECT d.asked, m.kept - d.asked, d.leases, d.owners, m.places, m.epochs, m.successors
        FROM (SELECT coalesce(sum(d.asked), 0) AS asked, coalesce(array_agg(DISTINCT d.lease), '{}') AS leases,
            coalesce(array_agg(DISTINCT d.owner), '{}') AS owners
              FROM (SELECT a.lease, a.owner, count(*) AS asked FROM asked AS a GROUP BY a.lease, a.owner) AS d) AS d,
             (SELECT count(*) FILTER (WHERE m.kept) AS kept, array_agg(m.place) FILTER (WHERE NOT m.kept) AS places,
                     array_agg(m.epoch) FILTER (WHERE NOT m.kept) AS epochs, array_agg(m.successor) FILTER (WHERE NOT m.kept) AS successors
              FROM moves AS m) AS m
        INTO asked, left_over, moved, concerned, free_places, free_epochs, free_successors;
        IF left_over > 0 THEN -- their epochs rose meanwhile
            late := $5;
        END IF;
    END IF;
    -- An address stays the row's until then: the snapshot of the statement that calls this keeps VACUUM from it.
    IF cardinality(free_places) > 0 THEN -- a statement of its own: a client that joins has the server plan it only where it is needed
        WITH moves AS MATERIALIZED (
            SELECT m.place, m.epoch, nullif($4[m.successor], 0) AS target, successor_ids[m.successor] AS target_id
            FROM unnest(free_places, free_epochs, free_successors) AS m (place, epoch, successor)
        ), free AS MATERIALIZED ( -- FOR UPDATE, else a former owner's guard would pass; SKIP LOCKED, else an open guard would block, or a stranger
            SELECT p.place, m.target, m.target_id, p.owner_id
            FROM moves AS m
            CROSS JOIN LATERAL (
                SELECT p.ctid AS place, p.owner_id FROM pgleases.partitions AS p
                WHERE p.ctid = m.place AND p.epoch = m.epoch -- also once it is locked
                FOR UPDATE SKIP LOCKED
            ) AS p
        ), given AS (
            UPDATE pgleases.partitions AS p
            SET owner = f.target, target = f.target,
                epoch = greatest(p.epoch + 1, lowest),
                owner_id = coalesce(f.target_id, p.owner_id),
                preferred_owner_id = CASE WHEN f.target_id = p.preferred_owner_id THEN NULL
                               WHEN p.owner_id IS NOT NULL AND f.target_id <> p.owner_id
                                AND (p.owner IS NOT NULL OR (p.lease, p.owner_id) NOT IN ( -- the last owner released it, and is a member still
                                     SELECT m.lease, c.id FROM pgleases.members AS m
                                     CROSS JOIN LATERAL (SELECT c.id FROM pgleases.clients AS c WHERE c.session = m.session OFFSET 0) AS c
                                     WHERE m.lease = ANY ($1) AND m.weight > 0
                                       AND NOT EXISTS (SELECT FROM pgleases.overrides AS w WHERE w.verb = 'drain' AND w.client = c.id)))
                               THEN p.owner_id
                               ELSE p.preferred_owner_id END,
                owned_since = CASE WHEN f.target IS NOT NULL THEN clock_timestamp() END,
                asked_at = NULL
            FROM free AS f
            WHERE p.ctid = f.place
            RETURNING p.lease, p.owner, p.partition, f.owner_id AS from_id, f.target_id AS to_id
        ), told AS (
            INSERT INTO pgleases.events (lease, cause, from_id, to_id, partitions, generation)
            SELECT g.lease, 'given', g.from_id, g.to_id, range_agg(int4range(g.partition, g.partition, '[]')),
                   (SELECT l.generation FROM pgleases.leases AS l WHERE l.name = g.lease)
            FROM given AS g
            GROUP BY g.lease, g.from_id, g.to_id
        ), done AS MATERIALIZED (
            SELECT g.lease, g.owner, count(*) AS given FROM given AS g GROUP BY g.lease, g.owner
        )
        SELECT coalesce(sum(d.given), 0),
               left_over + cardinality(free_places) - coalesce(sum(d.given), 0),
               moved || ARRAY(SELECT DISTINCT d.lease FROM done AS d),
               CASE WHEN coalesce(sum(d.given), 0) < cardinality(free_places) THEN
                   late || ARRAY(SELECT p.lease FROM moves AS m
                                 CROSS JOIN LATERAL (SELECT p.lease FROM pgleases.partitions AS p WHERE p.ctid = m.place OFFSET 0) AS p
                                 GROUP BY p.lease
                                 HAVING count(*) > (SELECT coalesce(sum(d.given), 0) FROM done AS d WHERE d.lease = p.lease))
               ELSE late END,
               ARRAY(SELECT DISTINCT o FROM unnest(concerned || ARRAY(SELECT d.owner FROM done AS d WHERE d.owner IS NOT NULL)) AS o)
        FROM done AS d
        INTO given, left_over, moved, late, concerned;
    END IF;
    UPDATE pgleases.leases AS l
    SET generation = l.generation + CASE WHEN l.name IN (SELECT c.name FROM unnest(moved) AS c (name)) THEN 1 ELSE 0 END,
        planned_at = clock_timestamp(),
        next_check_at = CASE WHEN $10 >= 0 THEN clock_timestamp() + $10 * interval '1 microsecond'
                             WHEN l.name IN (SELECT c.name FROM unnest(late) AS c (name)) THEN clock_timestamp() - $10 * interval '1 microsecond'
                             ELSE 'infinity' END
    WHERE l.name = ANY ($1);
    IF $11 <> '' AND cardinality(concerned) > 0 THEN
        PERFORM pg_notify($11, CASE WHEN cardinality(concerned) > 100 THEN 'all' ELSE array_to_string(concerned, ',') END);
    END IF;
END
$pgleases_body$;

-- In PL/pgSQL, as the server would run SQL as a statement for each row, and under some settings
-- compile it each time.
CREATE OR REPLACE FUNCTION pgleases.partition_for(key pg_catalog.text, partitions int) RETURNS int
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $pgleases_body$
BEGIN
    RETURN ((('x'::pg_catalog.text OPERATOR(pg_catalog.||) pg_catalog.encode(pg_catalog.substr(
                  pg_catalog.sha256(pg_catalog.convert_to($1, 'UTF8')), 1, 8), 'hex'))::bit(64)::bigint
             OPERATOR(pg_catalog.&) 9223372036854775807) OPERATOR(pg_catalog.%) $2::bigint)::int;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.partition_for(pg_catalog.text, int) IS 'The partition of a key in a lease with that many partitions: the first 8 bytes of SHA-256 of its UTF-8, big-endian, without the sign bit, modulo the number.';

-- The row lock is the fence: without it a former owner would pass while the takeover is not committed. It lasts to the
-- caller's commit, and a takeover passes over the partition until then (FOR UPDATE SKIP LOCKED). A guard that waited for a
-- takeover finds the new epoch, and is refused.
--
-- An evicted owner is refused even before a takeover, and a revoked one at once. So is an epoch of an earlier server generation: its owner has to renew
-- the ownership first.
--
-- Its plan is kept (plan_cache_mode): a server that compared what it costs in transactions with other settings, as in runs of schedules,
-- would plan it each time. Nor is it compiled, under whatever settings: without sequential scans it
-- seems to cost very much.
CREATE OR REPLACE FUNCTION pgleases.guard(lease pg_catalog.text, partition int, epoch bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SET plan_cache_mode = force_generic_plan SET jit = off AS $pgleases_body$
BEGIN
    PERFORM FROM pgleases.partitions AS p
    WHERE p.lease OPERATOR(pg_catalog.=) $1 AND p.partition OPERATOR(pg_catalog.=) $2 AND p.epoch OPERATOR(pg_catalog.=) $3
      AND EXISTS (SELECT FROM pgleases.clients AS c WHERE c.session OPERATOR(pg_catalog.=) p.owner AND c.incarnation OPERATOR(pg_catalog.>=) 0)
      AND ($3 OPERATOR(pg_catalog.>>) 32) OPERATOR(pg_catalog.>=) (SELECT s.generation FROM pgleases.server AS s)
    FOR KEY SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'partition % of lease "%" is not owned under epoch %', $2, $1, $3
            USING ERRCODE = 'PL001',
                  HINT = 'It has or had another owner since, or a failover ended the epoch. Roll back and leave the work to the owner.';
    END IF;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.guard(pg_catalog.text, int, bigint) IS 'Raises PL001 unless the partition is owned under this epoch, by a session that was not evicted. After it, the partition keeps owner and epoch until the transaction ends.';

-- From here to new_server_generation: for operators. Each verb is an override, or takes one back, and a plan of the leases concerned is due at once: ownership
-- changes by what changes it always. So a verb is safe, outlives whoever gave it, and is undone by its opposite. PUBLIC may execute none of
-- them. They run with the rights of their owner, so an operator needs no others; session_user stays who it is.

-- Begins a verb, and returns who gave it. For what a verb locks heartbeats wait, and whoever takes over from the dead: so its transaction does not stay
-- open, whatever its operator does. A second without a heartbeat is the least TTL.
CREATE OR REPLACE FUNCTION pgleases.operator(verb pg_catalog.text, actor pg_catalog.text, reason pg_catalog.text) RETURNS pg_catalog.text
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    IF coalesce($3, '') = '' THEN
        RAISE EXCEPTION '% needs a reason', $1
            USING ERRCODE = 'invalid_parameter_value', HINT = 'It is written down beside what was done: say why, for whoever wonders.';
    END IF;
    IF octet_length($3) > 4000 OR octet_length($2) > 255 THEN
        RAISE EXCEPTION '%: the reason has % bytes, the actor %', $1, octet_length($3), coalesce(octet_length($2), 0)
            USING ERRCODE = 'invalid_parameter_value',
                HINT = 'All who look read them again and again. Give 4,000 bytes at most to a reason, and 255 to an actor.';
    END IF;
    PERFORM pgleases.settings(true, 5000);
    PERFORM set_config('idle_in_transaction_session_timeout', '500', true), set_config('statement_timeout', '10000', true);
    RETURN CASE WHEN coalesce($2, '') = '' THEN session_user::text ELSE $2 || ' (' || session_user || ')' END;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.operator(pg_catalog.text, pg_catalog.text, pg_catalog.text) IS 'Part of the verbs of operators: begins one, bounds how long its transaction stays open, and returns who gave it.';

-- A plan that has read its leases before an override finds other generations. Nor is an override missed by the plan of a lease that the client joins
-- meanwhile: a join locks the client's row, so either this waits for it and sees it, or it waits for this.
CREATE OR REPLACE FUNCTION pgleases.override(
    verb pg_catalog.text, back boolean, lease pg_catalog.text, partition int, client pg_catalog.text,
    actor pg_catalog.text, reason pg_catalog.text, until pg_catalog.timestamptz, force boolean)
RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    opposite CONSTANT text := CASE $1 WHEN 'pause' THEN 'resume' ELSE 'un' || $1 END;
    who CONSTANT text := pgleases.operator(CASE WHEN $2 THEN opposite ELSE $1 END, $6, $7);
    names text[]; -- the leases concerned
    lacking text;
BEGIN
    IF NOT $2 AND ($8 IS NULL OR $8 <= clock_timestamp()) THEN
        RAISE EXCEPTION '% until % would be over', $1, coalesce($8::text, 'null')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Give a time to come, or infinity.';
    END IF;
    IF NOT $2 AND (octet_length(coalesce($5, $3)) BETWEEN 1 AND 255) IS NOT TRUE THEN
        RAISE EXCEPTION '% for a name of % bytes', $1, coalesce(octet_length(coalesce($5, $3)), 0)
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Names of leases and client IDs have 1 to 255 bytes.';
    END IF;
    IF $3 IS NOT NULL AND NOT $2 AND NOT EXISTS (SELECT FROM pgleases.leases AS l WHERE l.name = $3 AND l.partitions > 0) THEN
        IF $1 <> 'pause' THEN
            RAISE EXCEPTION 'lease "%" does not exist', $3 USING ERRCODE = 'undefined_object';
        END IF;
        RAISE WARNING 'lease "%" does not exist yet: its pause begins when it is made', $3 USING ERRCODE = 'undefined_object';
    END IF;
    IF $1 = 'pin' AND NOT $2 AND $5 IS NULL THEN
        RAISE EXCEPTION '% to null', $1 USING ERRCODE = 'invalid_parameter_value', HINT = 'Name a client.';
    END IF;
    IF $1 = 'pin' AND NOT $2 AND NOT coalesce($4 >= 0 AND $4 < (SELECT l.partitions FROM pgleases.leases AS l WHERE l.name = $3), false) THEN
        RAISE EXCEPTION 'lease "%" has no partition %', $3, coalesce($4::text, 'null')
            USING ERRCODE = 'undefined_object', HINT = format('It has those from 0 to %s.', (SELECT l.partitions - 1
                FROM pgleases.leases AS l WHERE l.name = $3));
    END IF;
    PERFORM pg_advisory_xact_lock(hashtextextended('override', 'pgleases.overrides'::regclass::bigint)); -- one verb at a time
    IF NOT $2 AND $5 IS NOT NULL AND $8 = 'infinity' AND NOT EXISTS (SELECT FROM pgleases.identities AS i WHERE i.id = $5) THEN
        RAISE EXCEPTION 'client "%" is not known', $5
            USING ERRCODE = 'undefined_object', HINT = 'Known is who was here in the last day. To override one that is to come, say until when.';
    END IF;
    -- Leases before the server before clients.
    names := pgleases.leases_of($3, $5);
    PERFORM FROM pgleases.leases AS l WHERE l.name = ANY (names) ORDER BY l.name FOR UPDATE;
    UPDATE pgleases.server AS s SET next_check_at = $8 WHERE NOT $2 AND s.next_check_at > $8;
    PERFORM FROM pgleases.clients AS c WHERE c.id = $5 AND $3 IS NULL ORDER BY c.session FOR UPDATE;
    names := pgleases.leases_of($3, $5);
    IF $1 = 'drain' AND NOT $2 AND NOT $9 THEN
        SELECT string_agg(n, ', ' ORDER BY n) INTO lacking
        FROM unnest(names) AS n
        WHERE (SELECT bool_and(c.id = $5) -- null: nobody works on it anyhow
               FROM pgleases.members AS m JOIN pgleases.clients AS c ON c.session = m.session
               WHERE m.lease = n AND m.weight > 0 AND c.incarnation >= 0
                 AND NOT EXISTS (SELECT FROM pgleases.overrides AS w WHERE w.verb = 'drain' AND w.client = c.id));
        IF lacking IS NOT NULL THEN
            RAISE EXCEPTION 'client "%" is the last that works on: %', $5, lacking
                USING ERRCODE = 'object_in_use', HINT = 'Their partitions would have no owner. If that is what you want, add force => true.';
        END IF;
    END IF;
    DELETE FROM pgleases.overrides AS w WHERE w.verb = $1 AND w.lease IS NOT DISTINCT FROM $3 AND w.partition IS NOT DISTINCT FROM $4
      AND (w.client IS NOT DISTINCT FROM $5 OR $4 IS NOT NULL);
    IF $2 AND NOT FOUND THEN
        RAISE EXCEPTION 'there is no % of "%" to take back', $1, coalesce($3 || '/' || $4, $3, $5) USING ERRCODE = 'undefined_object';
    END IF;
    IF NOT $2 THEN
        INSERT INTO pgleases.overrides (verb, lease, partition, client, until, since, actor, reason)
        VALUES ($1, $3, $4, $5, $8, clock_timestamp(), who, $7);
    END IF;
    UPDATE pgleases.leases AS l
    SET generation = l.generation + 1, next_check_at = least(l.next_check_at, clock_timestamp())
    WHERE l.name = ANY (names);
    INSERT INTO pgleases.events (lease, cause, actor, reason, from_id, to_id, partitions, generation)
    VALUES ($3, CASE WHEN $2 THEN opposite ELSE $1 END, who, $7, CASE WHEN $4 IS NULL THEN $5 END, CASE WHEN $4 IS NOT NULL THEN $5 END,
            CASE WHEN $4 IS NOT NULL THEN int4multirange(int4range($4, $4, '[]')) END, (SELECT l.generation - 1 FROM pgleases.leases AS l WHERE l.name = $3));
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.override(pg_catalog.text, boolean, pg_catalog.text, int, pg_catalog.text, pg_catalog.text, pg_catalog.text, pg_catalog.timestamptz, boolean) IS 'Part of the verbs of operators: writes an override, or takes it back.';

CREATE OR REPLACE FUNCTION pgleases.leases_of(lease pg_catalog.text, client pg_catalog.text) RETURNS pg_catalog.text[]
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    RETURN CASE WHEN $1 IS NOT NULL THEN ARRAY[$1]
                ELSE ARRAY(SELECT DISTINCT m.lease FROM pgleases.members AS m JOIN pgleases.clients AS c ON c.session = m.session
                           WHERE c.id = $2 ORDER BY m.lease) END;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.leases_of(pg_catalog.text, pg_catalog.text) IS 'Part of the verbs of operators: the lease, or else the leases of the client, that an override concerns.';

-- Waits for nobody, as a check for expired sessions calls it: what is locked ends at the next one. So do those beyond 200, as nobody
-- dead is taken out meanwhile; and a lease is changed once, as an UPDATE passes over the versions that those before it left.
CREATE OR REPLACE FUNCTION pgleases.end_overrides() RETURNS pg_catalog.text[]
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    names text[];
    asked text[] := '{}';
    locked int;
    w record;
BEGIN
    FOR w IN SELECT o.ctid AS place, o.verb, o.lease, o.partition, o.client FROM pgleases.overrides AS o WHERE o.until <= clock_timestamp()
             ORDER BY o.until, o.verb, o.lease, o.partition, o.client LIMIT 200 FOR UPDATE SKIP LOCKED LOOP
        names := ARRAY(SELECT l.name FROM pgleases.leases AS l WHERE l.name = ANY (pgleases.leases_of(w.lease, w.client)) ORDER BY l.name);
        SELECT count(*) INTO locked
        FROM (SELECT FROM pgleases.leases AS l WHERE l.name = ANY (names) ORDER BY l.name FOR UPDATE SKIP LOCKED) AS l;
        CONTINUE WHEN locked < cardinality(names);
        SELECT count(*) INTO locked
        FROM (SELECT FROM pgleases.clients AS c WHERE c.id = w.client AND w.lease IS NULL ORDER BY c.session FOR UPDATE SKIP LOCKED) AS c;
        CONTINUE WHEN locked < (SELECT count(*) FROM pgleases.clients AS c WHERE c.id = w.client AND w.lease IS NULL)
                   OR w.lease IS NULL AND names <> pgleases.leases_of(NULL::text, w.client);
        DELETE FROM pgleases.overrides AS o WHERE o.ctid = w.place;
        INSERT INTO pgleases.events (lease, cause, reason, from_id, to_id, partitions)
        VALUES (w.lease, CASE w.verb WHEN 'pause' THEN 'resume' ELSE 'un' || w.verb END, 'its time is over',
                CASE WHEN w.partition IS NULL THEN w.client END, CASE WHEN w.partition IS NOT NULL THEN w.client END,
                CASE WHEN w.partition IS NOT NULL THEN int4multirange(int4range(w.partition, w.partition, '[]')) END);
        asked := asked || ARRAY(SELECT n FROM unnest(names) AS n WHERE NOT (n = ANY (asked)));
    END LOOP;
    UPDATE pgleases.leases AS l
    SET generation = l.generation + 1, next_check_at = least(l.next_check_at, clock_timestamp())
    WHERE l.name = ANY (asked);
    RETURN asked;
END
$pgleases_body$;
REVOKE EXECUTE ON FUNCTION pgleases.end_overrides() FROM PUBLIC; -- in an open transaction, it keeps clients from their rows
COMMENT ON FUNCTION pgleases.end_overrides() IS 'Ends the overrides whose time is over. Checks for expired sessions call it. It returns the leases for which a plan is due.';

CREATE OR REPLACE FUNCTION pgleases.drain(
    client pg_catalog.text, reason pg_catalog.text, actor pg_catalog.text DEFAULT NULL, until pg_catalog.timestamptz DEFAULT 'infinity',
    force boolean DEFAULT false)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $pgleases_body$
    SELECT pgleases.override('drain'::text, false, NULL::text, NULL::int, $1, $3, $2, $4, $5);
$pgleases_body$;
COMMENT ON FUNCTION pgleases.drain(pg_catalog.text, pg_catalog.text, pg_catalog.text, pg_catalog.timestamptz, boolean) IS 'The client shall own nothing: its work ends, then others get its partitions. Refused for the last that works on a lease, unless forced.';

CREATE OR REPLACE FUNCTION pgleases.undrain(
    client pg_catalog.text, reason pg_catalog.text, actor pg_catalog.text DEFAULT NULL)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $pgleases_body$
    SELECT pgleases.override('drain'::text, true, NULL::text, NULL::int, $1, $3, $2, NULL::timestamptz, false);
$pgleases_body$;
COMMENT ON FUNCTION pgleases.undrain(pg_catalog.text, pg_catalog.text, pg_catalog.text) IS 'Takes a drain back: the client gets its own partitions again.';

CREATE OR REPLACE FUNCTION pgleases.cordon(
    client pg_catalog.text, reason pg_catalog.text, actor pg_catalog.text DEFAULT NULL, until pg_catalog.timestamptz DEFAULT 'infinity')
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $pgleases_body$
    SELECT pgleases.override('cordon'::text, false, NULL::text, NULL::int, $1, $3, $2, $4, false);
$pgleases_body$;
COMMENT ON FUNCTION pgleases.cordon(pg_catalog.text, pg_catalog.text, pg_catalog.text, pg_catalog.timestamptz) IS 'The client gets no further partitions, and keeps what it has. Where all members are cordoned, they get what has no owner.';

CREATE OR REPLACE FUNCTION pgleases.uncordon(
    client pg_catalog.text, reason pg_catalog.text, actor pg_catalog.text DEFAULT NULL)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $pgleases_body$
    SELECT pgleases.override('cordon'::text, true, NULL::text, NULL::int, $1, $3, $2, NULL::timestamptz, false);
$pgleases_body$;
COMMENT ON FUNCTION pgleases.uncordon(pg_catalog.text, pg_catalog.text, pg_catalog.text) IS 'Takes a cordon back.';

CREATE OR REPLACE FUNCTION pgleases.pause(
    lease pg_catalog.text, reason pg_catalog.text, actor pg_catalog.text DEFAULT NULL, until pg_catalog.timestamptz DEFAULT 'infinity')
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $pgleases_body$
    SELECT pgleases.override('pause'::text, false, $1, NULL::int, NULL::text, $3, $2, $4, false);
$pgleases_body$;
COMMENT ON FUNCTION pgleases.pause(pg_catalog.text, pg_catalog.text, pg_catalog.text, pg_catalog.timestamptz) IS 'Nobody shall own partitions of the lease: the work on them ends, then they have no owner. The lease need not exist yet.';

CREATE OR REPLACE FUNCTION pgleases.resume(
    lease pg_catalog.text, reason pg_catalog.text, actor pg_catalog.text DEFAULT NULL)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $pgleases_body$
    SELECT pgleases.override('pause'::text, true, $1, NULL::int, NULL::text, $3, $2, NULL::timestamptz, false);
$pgleases_body$;
COMMENT ON FUNCTION pgleases.resume(pg_catalog.text, pg_catalog.text, pg_catalog.text) IS 'Takes a pause back.';

CREATE OR REPLACE FUNCTION pgleases.freeze(
    lease pg_catalog.text, reason pg_catalog.text, actor pg_catalog.text DEFAULT NULL, until pg_catalog.timestamptz DEFAULT 'infinity')
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $pgleases_body$
    SELECT pgleases.override('freeze'::text, false, $1, NULL::int, NULL::text, $3, $2, $4, false);
$pgleases_body$;
COMMENT ON FUNCTION pgleases.freeze(pg_catalog.text, pg_catalog.text, pg_catalog.text, pg_catalog.timestamptz) IS 'Partitions of the lease move only where their owner has died, leaves, or is drained.';

CREATE OR REPLACE FUNCTION pgleases.unfreeze(
    lease pg_catalog.text, reason pg_catalog.text, actor pg_catalog.text DEFAULT NULL)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $pgleases_body$
    SELECT pgleases.override('freeze'::text, true, $1, NULL::int, NULL::text, $3, $2, NULL::timestamptz, false);
$pgleases_body$;
COMMENT ON FUNCTION pgleases.unfreeze(pg_catalog.text, pg_catalog.text, pg_catalog.text) IS 'Takes a freeze back.';

CREATE OR REPLACE FUNCTION pgleases.pin(
    lease pg_catalog.text, partition int, client pg_catalog.text, reason pg_catalog.text, actor pg_catalog.text DEFAULT NULL,
    until pg_catalog.timestamptz DEFAULT 'infinity')
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $pgleases_body$
    SELECT pgleases.override('pin'::text, false, $1, $2, $3, $5, $4, $6, false);
$pgleases_body$;
COMMENT ON FUNCTION pgleases.pin(pg_catalog.text, int, pg_catalog.text, pg_catalog.text, pg_catalog.text, pg_catalog.timestamptz) IS 'The partition shall be with this client, whenever that works on the lease; else it is with another. The other partitions are shared as if there were no pinned ones.';

CREATE OR REPLACE FUNCTION pgleases.unpin(
    lease pg_catalog.text, partition int, reason pg_catalog.text, actor pg_catalog.text DEFAULT NULL)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $pgleases_body$
    SELECT pgleases.override('pin'::text, true, $1, $2, NULL::text, $4, $3, NULL::timestamptz, false);
$pgleases_body$;
COMMENT ON FUNCTION pgleases.unpin(pg_catalog.text, int, pg_catalog.text, pg_catalog.text) IS 'Takes a pin back.';

CREATE OR REPLACE FUNCTION pgleases.evict_client(
    client pg_catalog.text, reason pg_catalog.text, actor pg_catalog.text DEFAULT NULL)
RETURNS int
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    who CONSTANT text := pgleases.operator('evict_client'::text, $3, $2);
    names text[];
    revoked int;
BEGIN
    -- As of a newer process under the ID, which is nobody's: who is evicted is not let in again, and who starts later is.
    UPDATE pgleases.identities AS i SET incarnation = i.incarnation + 1, process = 0 WHERE i.id = $1;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'client "%" is not known', $1 USING ERRCODE = 'undefined_object', HINT = 'Known is who was here in the last day.';
    END IF;
    names := pgleases.leases_of(NULL::text, $1);
    PERFORM FROM pgleases.leases AS l WHERE l.name = ANY (names) ORDER BY l.name FOR UPDATE;
    -- From here on no heartbeat renews it, and no guard passes for it. It is dead when it expires: until then it may believe what it has.
    UPDATE pgleases.clients AS c SET incarnation = -1 WHERE c.id = $1 AND c.incarnation >= 0;
    GET DIAGNOSTICS revoked = ROW_COUNT;
    UPDATE pgleases.leases AS l
    SET generation = l.generation + 1, next_check_at = least(l.next_check_at, clock_timestamp())
    WHERE l.name = ANY (pgleases.leases_of(NULL::text, $1));
    INSERT INTO pgleases.events (cause, actor, reason, from_id)
    VALUES ('evict', who, $2, $1);
    RETURN revoked;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.evict_client(pg_catalog.text, pg_catalog.text, pg_catalog.text) IS 'Revokes the sessions of a client, whatever it does: no heartbeat renews them, guards refuse them at once, and others take over when they expire, within a TTL. Its process ends; one that starts later is let in. It returns the number of sessions.';

-- No override: who was a member is gone, so nobody is left to obey one.
CREATE OR REPLACE FUNCTION pgleases.drop_lease(
    lease pg_catalog.text, reason pg_catalog.text, actor pg_catalog.text DEFAULT NULL, partitions int DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    who CONSTANT text := pgleases.operator('drop_lease'::text, $3, $2);
    living text;
BEGIN
    IF $4 NOT BETWEEN 1 AND 65536 THEN
        RAISE EXCEPTION 'drop_lease with % partitions', $4 USING ERRCODE = 'invalid_parameter_value', HINT = 'A lease has 1 to 65536.';
    END IF;
    PERFORM FROM pgleases.leases AS l WHERE l.name = $1 AND (l.partitions > 0 OR $4 IS NOT NULL) FOR UPDATE; -- joins wait
    IF NOT FOUND THEN
        RAISE EXCEPTION 'lease "%" does not exist', $1 USING ERRCODE = 'undefined_object';
    END IF;
    SELECT string_agg(c.id, ', ' ORDER BY c.id) INTO living
    FROM pgleases.members AS m JOIN pgleases.clients AS c USING (session) WHERE m.lease = $1;
    IF living IS NOT NULL THEN
        RAISE EXCEPTION 'lease "%" has living members: %', $1, living
            USING ERRCODE = 'object_in_use',
                HINT = 'Close them, or have them leave, first. One that crashed goes when another client, of whatever lease, has run for its TTL. Where none runs any more, run one for longer than that TTL: pgleases run tidy --once -- sleep 60';
    END IF;
    UPDATE pgleases.leases AS l
    SET partitions = 0, generation = generation + 1, next_check_at = 'infinity',
        next_partitions = coalesce($4, l.partitions), next_until = clock_timestamp() + interval '24 hours',
        epoch_floor = greatest(l.epoch_floor, (SELECT max(p.epoch) FROM pgleases.partitions AS p WHERE p.lease = $1))
    WHERE l.name = $1;
    DELETE FROM pgleases.partitions AS p WHERE p.lease = $1;
    DELETE FROM pgleases.members AS m WHERE m.lease = $1;
    INSERT INTO pgleases.events (lease, cause, actor, reason, generation)
    SELECT $1, 'dropped', who, $2, l.generation - 1 FROM pgleases.leases AS l WHERE l.name = $1;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.drop_lease(pg_catalog.text, pg_catalog.text, pg_catalog.text, int) IS 'Drops a lease that has no living members. For 24 hours it can be made again with this number of partitions only, by default that of before. Its next epochs are higher than all before.';

REVOKE EXECUTE ON FUNCTION pgleases.drain, pgleases.undrain, pgleases.cordon, pgleases.uncordon, pgleases.pause, pgleases.resume,
    pgleases.freeze, pgleases.unfreeze, pgleases.pin, pgleases.unpin, pgleases.evict_client, pgleases.drop_lease, pgleases.operator,
    pgleases.override FROM PUBLIC;

-- A client accepts the new server generation as after a promotion: once the server was watched for a TTL, so that whoever works on what these
-- tables do not know of has lost its trust.
CREATE OR REPLACE FUNCTION pgleases.new_server_generation() RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    -- nobody dead is taken out meanwhile
    PERFORM set_config('idle_in_transaction_session_timeout', '500', true), set_config('statement_timeout', '10000', true);
    UPDATE pgleases.server SET accepted_timeline = -1;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.new_server_generation() IS 'To be called once in a restored dump, snapshot or copy of the database, before clients use it: epochs then go on above all that were given after the copy was made.';
REVOKE EXECUTE ON FUNCTION pgleases.new_server_generation() FROM PUBLIC;

-- From here to guard_lock: the named locks.
--
-- Whoever changes the rows of a name holds the name's mutex, an advisory lock, to the end of the transaction; whoever only looks does not
-- wait for one. A statement that waited for it has a snapshot of before. So these functions are in PL/pgSQL, where each statement
-- after it has a snapshot of its own, and refuse a transaction that has one snapshot for all.
--
-- A session is dead when it has no row in clients, and by nothing else: only an eviction decides that. Rows of the dead are locked
-- FOR UPDATE SKIP LOCKED before they go: a guarded transaction that is open keeps its lock.
--
-- A plan that is kept was made when the table was empty, so it must not read the whole of it (enable_seqscan, enable_sort), nor all of
-- clients or identities for a join or an EXISTS (a subquery of one value, or OFFSET 0). What that makes expensive to the planner's eye must
-- not be compiled (jit).
--
-- An acquisition of a lock that is free, and its release, are one statement each after the mutex. They name all with its schema, and
-- set as little as they can. All that is rarer is left to lock_queue and lock_turn.

-- Each schema has its own. Plain SQL becomes a part of the plans that call it.
CREATE OR REPLACE FUNCTION pgleases.lock_mutex(name pg_catalog.text) RETURNS bigint
LANGUAGE sql STABLE AS $pgleases_body$
    SELECT pg_catalog.hashtextextended($1, 'pgleases.server'::pg_catalog.regclass::bigint)
$pgleases_body$;
COMMENT ON FUNCTION pgleases.lock_mutex(pg_catalog.text) IS 'The key of the advisory lock under which the rows of a lock''s name are changed. Two names may have one: they then wait for each other''s commits.';

CREATE OR REPLACE FUNCTION pgleases.lock_settings(lock_ms int) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION 'a transaction that is % cannot change locks', upper(current_setting('transaction_isolation'))
            USING ERRCODE = 'PL003', HINT = 'Begin it with SET TRANSACTION ISOLATION LEVEL READ COMMITTED.';
    END IF;
    RETURN pgleases.settings(true, $1);
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.lock_settings(int) IS 'Settings of a statement that changes locks: durable, and how many milliseconds it waits for a lock. Raises PL003 in a transaction in which a statement would not see what was committed before it.';

-- A start and a boot marker are of one incarnation on one timeline: a promotion empties boot_marker. The timeline is compared all the same, where it costs nothing.
CREATE OR REPLACE FUNCTION pgleases.lock_same_incarnation(timeline bigint, started bigint, marker bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    RETURN pgleases.timeline() = $1
       AND pg_postmaster_start_time() = to_timestamp($2::double precision / 1000000)
       AND EXISTS (SELECT FROM pgleases.boot_marker AS m WHERE m.marker = $3);
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.lock_same_incarnation(bigint, bigint, bigint) IS 'Whether this is the server incarnation that the caller''s last heartbeat told. The application''s connections may lead to another server than the client''s own.';

-- The caller has the mutex. Rows that hold the lock come before rows that wait. It drops the dead that it meets, and goes on until the first
-- that may not follow: so its cost does not depend on how many wait. Where the server is not accepted, nothing is granted.
CREATE OR REPLACE FUNCTION pgleases.lock_turn(name pg_catalog.text, timeline bigint, notify boolean) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_sort = off SET jit = off
AS $pgleases_body$
DECLARE
    present bigint; -- the server generation
    held boolean := false;
    r record;
BEGIN
    SELECT s.generation INTO present FROM pgleases.server AS s WHERE s.accepted_timeline = $2;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    FOR r IN SELECT l.ticket, l.session, l.nonce, l.shared, l.token FROM pgleases.locks AS l WHERE l.name = $1 ORDER BY l.ticket LOOP
        IF NOT EXISTS (SELECT FROM pgleases.clients AS c WHERE c.session = r.session) THEN
            DELETE FROM pgleases.locks AS l
            WHERE l.name = $1 AND l.ticket = ANY (ARRAY(
                SELECT d.ticket FROM pgleases.locks AS d WHERE d.name = $1 AND d.ticket = r.ticket FOR UPDATE SKIP LOCKED));
            CONTINUE WHEN FOUND;
            EXIT WHEN r.token IS NULL;
        ELSIF r.token IS NULL THEN
            EXIT WHEN held AND NOT r.shared;
            UPDATE pgleases.locks AS l
            SET token = (present << 32) + nextval('pgleases.lock_tokens'), since = clock_timestamp()
            WHERE l.name = $1 AND l.ticket = r.ticket;
            IF $3 THEN
                PERFORM pg_notify('pgleases_lock_' || r.session, r.nonce::text);
            END IF;
        END IF;
        held := true;
        EXIT WHEN NOT r.shared;
    END LOOP;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.lock_turn(pg_catalog.text, bigint, boolean) IS 'Gives a lock to those who may have it now, in the order in which they came.';

CREATE OR REPLACE FUNCTION pgleases.lock_acquire(
    name pg_catalog.text, session bigint, nonce bigint, shared boolean, waits boolean, latest bigint,
    timeline bigint, started bigint, marker bigint, lock_ms int, notify boolean)
RETURNS pg_catalog.text[]
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET jit = off AS $pgleases_body$
DECLARE
    token bigint;
    unused boolean;
BEGIN
    IF pg_catalog.set_config('lock_timeout', $10::pg_catalog.text, true) IS NULL -- it is not
       OR pg_catalog.current_setting('transaction_isolation') OPERATOR(pg_catalog.<>) 'read committed'::pg_catalog.text
       OR pg_catalog.current_setting('synchronous_commit') OPERATOR(pg_catalog.=) 'off'::pg_catalog.text THEN
        unused := pgleases.lock_settings($10);
    END IF;
    unused := pg_catalog.pg_advisory_xact_lock(pgleases.lock_mutex($1)) IS NULL;
    INSERT INTO pgleases.locks AS n (name, ticket, session, nonce, shared, token, since)
    SELECT $1, 1::bigint, $2, $3, $4, (s.generation OPERATOR(pg_catalog.<<) 32) OPERATOR(pg_catalog.+) pg_catalog.nextval('pgleases.lock_tokens'),
           pg_catalog.clock_timestamp()
    FROM pgleases.server AS s
    WHERE s.accepted_timeline OPERATOR(pg_catalog.=) $7
      AND pg_catalog.pg_postmaster_start_time() OPERATOR(pg_catalog.=) pg_catalog.to_timestamp($8::double precision OPERATOR(pg_catalog./) 1000000)
      AND EXISTS (SELECT FROM pgleases.boot_marker AS m WHERE m.marker OPERATOR(pg_catalog.=) $9)
      AND pg_catalog.clock_timestamp() OPERATOR(pg_catalog.<=) pg_catalog.to_timestamp($6::double precision OPERATOR(pg_catalog./) 1000000)
      AND NOT EXISTS (SELECT FROM pgleases.locks AS l WHERE l.name OPERATOR(pg_catalog.=) $1)
      AND EXISTS (SELECT FROM pgleases.clients AS c
                  WHERE c.session OPERATOR(pg_catalog.=) $2
                    AND coalesce((SELECT i.incarnation FROM pgleases.identities AS i WHERE i.id OPERATOR(pg_catalog.=) c.id), 0)
                        OPERATOR(pg_catalog.<=) c.incarnation)
    RETURNING n.token INTO token;
    IF token IS NULL THEN
        RETURN pgleases.lock_queue($1, $2, $3, $4, $5, $6, $7, $8, $9, $11);
    END IF;
    RETURN ARRAY['granted'::pg_catalog.text, token::pg_catalog.text];
END
$pgleases_body$;

-- What is no acquisition of a lock that is free. The caller has the mutex.
CREATE OR REPLACE FUNCTION pgleases.lock_queue(
    name pg_catalog.text, session bigint, nonce bigint, shared boolean, waits boolean, latest bigint,
    timeline bigint, started bigint, marker bigint, notify boolean)
RETURNS pg_catalog.text[]
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_sort = off SET jit = off
AS $pgleases_body$
DECLARE
    present bigint; -- the server generation
    place bigint;
    token bigint;
BEGIN
    IF NOT pgleases.lock_same_incarnation($7, $8, $9) THEN
        RETURN '{elsewhere}';
    END IF;
    SELECT s.generation INTO present FROM pgleases.server AS s WHERE s.accepted_timeline = $7;
    IF NOT FOUND THEN
        RETURN '{unaccepted}';
    END IF;
    IF clock_timestamp() > to_timestamp($6::double precision / 1000000) THEN
        RETURN '{late}';
    END IF;
    PERFORM FROM pgleases.clients AS c
    WHERE c.session = $2
      AND coalesce((SELECT i.incarnation FROM pgleases.identities AS i WHERE i.id = c.id), 0) <= c.incarnation;
    IF NOT FOUND THEN
        RETURN '{gone}';
    END IF;
    -- The dead go first, and whose turn it is gets it.
    PERFORM pgleases.lock_turn($1, $7, $10);
    SELECT l.token, l.ticket INTO token, place FROM pgleases.locks AS l
    WHERE l.session = $2 AND l.nonce = $3 AND l.name = $1; -- once more, after a lost answer
    IF FOUND THEN
        RETURN CASE WHEN token IS NULL THEN '{waits}' ELSE ARRAY['granted', token::text] END;
    END IF;
    SELECT coalesce(max(l.ticket), 0) + 1 INTO place FROM pgleases.locks AS l WHERE l.name = $1;
    PERFORM FROM pgleases.locks AS l WHERE l.name = $1 AND (l.token IS NULL OR NOT l.shared OR NOT $4) LIMIT 1;
    IF FOUND AND NOT $5 THEN
        RETURN coalesce((SELECT ARRAY['held', c.id, c.host, c.pid::text,
                                      (extract(epoch FROM l.since) * 1000000)::bigint::text, (extract(epoch FROM c.expires_at) * 1000000)::bigint::text]
                         FROM (SELECT l.session, l.since FROM pgleases.locks AS l WHERE l.name = $1 ORDER BY l.ticket LIMIT 1) AS l
                         CROSS JOIN LATERAL (SELECT * FROM pgleases.clients AS c WHERE c.session = l.session OFFSET 0) AS c),
                        '{held,"","",0,0,0}');
    END IF;
    IF NOT FOUND THEN
        token := (present << 32) + nextval('pgleases.lock_tokens');
    END IF;
    INSERT INTO pgleases.locks (name, ticket, session, nonce, shared, token, since)
    VALUES ($1, place, $2, $3, $4, token, clock_timestamp());
    RETURN CASE WHEN token IS NULL THEN '{waits}' ELSE ARRAY['granted', token::text] END;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.lock_queue(pg_catalog.text, bigint, bigint, boolean, boolean, bigint, bigint, bigint, bigint, boolean) IS 'Part of lock_acquire: where somebody has or awaits the lock, or it cannot be taken.';

-- It is durable where it gives the lock to somebody. Else a crash may undo it, up to three times wal_writer_delay later: the client gives back
-- then what it does not know of, as after a promotion. The next acquisition of the name, and the end of the session, are durable, and this with them.
CREATE OR REPLACE FUNCTION pgleases.lock_release(
    name pg_catalog.text, session bigint, nonce bigint, latest bigint,
    timeline bigint, started bigint, marker bigint, lock_ms int, notify boolean)
RETURNS pg_catalog.text
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET jit = off AS $pgleases_body$
DECLARE
    others boolean; -- hold or await it; null: nothing was deleted
    unused boolean;
BEGIN
    IF pg_catalog.set_config('lock_timeout', $8::pg_catalog.text, true) IS NULL -- it is not
       OR pg_catalog.current_setting('transaction_isolation') OPERATOR(pg_catalog.<>) 'read committed'::pg_catalog.text
       OR pg_catalog.current_setting('synchronous_commit') OPERATOR(pg_catalog.=) 'off'::pg_catalog.text THEN
        unused := pgleases.lock_settings($8);
    END IF;
    unused := pg_catalog.pg_advisory_xact_lock(pgleases.lock_mutex($1)) IS NULL;
    DELETE FROM pgleases.locks AS l
    WHERE l.ctid OPERATOR(pg_catalog.=) ANY (ARRAY(
            SELECT d.ctid FROM pgleases.locks AS d
            WHERE d.session OPERATOR(pg_catalog.=) $2 AND d.nonce OPERATOR(pg_catalog.=) $3 AND d.name OPERATOR(pg_catalog.=) $1
            FOR UPDATE SKIP LOCKED)) -- a guarded transaction has the others
      AND pg_catalog.pg_postmaster_start_time() OPERATOR(pg_catalog.=) pg_catalog.to_timestamp($6::double precision OPERATOR(pg_catalog./) 1000000)
      AND EXISTS (SELECT FROM pgleases.boot_marker AS m WHERE m.marker OPERATOR(pg_catalog.=) $7)
    RETURNING EXISTS (SELECT FROM pgleases.locks AS o WHERE o.name OPERATOR(pg_catalog.=) $1 AND o.ticket OPERATOR(pg_catalog.<>) l.ticket)
    INTO others;
    IF others THEN
        PERFORM pgleases.lock_turn($1, $5, $9);
    ELSIF others IS NULL AND NOT pgleases.lock_same_incarnation($5, $6, $7) THEN
        RETURN 'elsewhere';
    ELSIF others IS NULL THEN
        PERFORM FROM pgleases.locks AS l WHERE l.session OPERATOR(pg_catalog.=) $2 AND l.nonce OPERATOR(pg_catalog.=) $3;
        IF FOUND OR pg_catalog.clock_timestamp() OPERATOR(pg_catalog.<=) pg_catalog.to_timestamp($4::double precision OPERATOR(pg_catalog./) 1000000) THEN
            RETURN 'busy';
        END IF;
        RETURN 'absent';
    ELSE -- nobody has it now, and the next acquisition's commit flushes this one too
        unused := pg_catalog.set_config('synchronous_commit', 'off', true) IS NULL;
    END IF;
    RETURN 'released';
END
$pgleases_body$;

CREATE OR REPLACE FUNCTION pgleases.lock_releases(
    session bigint, names pg_catalog.text[], nonces bigint[], latest bigint[],
    timeline bigint, started bigint, marker bigint, lock_ms int, notify boolean,
    OUT same_run boolean, OUT released bigint[], OUT absent bigint[])
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    durable text;
    r record;
BEGIN
    PERFORM pgleases.lock_settings($8);
    durable := current_setting('synchronous_commit');
    same_run := true;
    released := '{}';
    absent := '{}';
    -- In one order, so that two that release several names do not wait for each other.
    FOR r IN SELECT g.name, g.nonce, g.latest FROM unnest($2, $3, $4) AS g (name, nonce, latest)
             ORDER BY pgleases.lock_mutex(g.name), g.name, g.nonce LOOP
        CASE pgleases.lock_release(r.name, $1, r.nonce, r.latest, $5, $6, $7, $8, $9)
            WHEN 'released' THEN released := released || r.nonce;
            WHEN 'absent' THEN absent := absent || r.nonce;
            WHEN 'elsewhere' THEN same_run := false;
            ELSE -- busy
        END CASE;
        PERFORM set_config('synchronous_commit', durable, true); -- as another may give a lock to somebody
    END LOOP;
END
$pgleases_body$;

CREATE OR REPLACE FUNCTION pgleases.lock_look(
    session bigint, nonces bigint[], everything boolean, lock_ms int, notify boolean,
    OUT timeline bigint, OUT started bigint, OUT found_names pg_catalog.text[], OUT found_nonces bigint[], OUT tokens bigint[])
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_sort = off SET jit = off
AS $pgleases_body$
DECLARE
    n text;
BEGIN
    PERFORM pgleases.lock_settings($4);
    timeline := pgleases.timeline();
    started := (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint;
    -- Names of which nobody holds the lock, or readers alone while a reader is next, or in whose queue somebody before the last of these has
    -- died. Usually a release or a sweep has seen to it. Who has the mutex sees to it too, or the next look does: so this waits for nobody.
    FOR n IN
        SELECT w.name
        FROM (
            SELECT l.name, max(l.ticket) AS last -- once for each name: thousands may await one
            FROM unnest($2) AS a (nonce) -- one by one: else all of the session's are read
            CROSS JOIN LATERAL (
                SELECT l.name, l.ticket FROM pgleases.locks AS l
                WHERE l.session = $1 AND l.nonce = a.nonce AND l.token IS NULL
                OFFSET 0) AS l
            GROUP BY l.name) AS w
        WHERE (SELECT h.ticket FROM pgleases.locks AS h WHERE h.name = w.name AND h.token IS NOT NULL ORDER BY h.ticket LIMIT 1) IS NULL
           OR (SELECT h.shared FROM pgleases.locks AS h WHERE h.name = w.name ORDER BY h.ticket LIMIT 1)
              AND (SELECT q.shared FROM pgleases.locks AS q WHERE q.name = w.name AND q.token IS NULL ORDER BY q.ticket LIMIT 1)
           OR EXISTS (SELECT FROM pgleases.locks AS b
                      WHERE b.name = w.name AND b.ticket < w.last
                        AND (SELECT c.session FROM pgleases.clients AS c WHERE c.session = b.session) IS NULL)
        ORDER BY w.name
        LIMIT 1000 -- the server has room for a few thousand mutexes; the next look, or a sweep, sees to more
    LOOP
        IF pg_try_advisory_xact_lock(pgleases.lock_mutex(n)) THEN
            PERFORM pgleases.lock_turn(n, timeline, $5);
        END IF;
    END LOOP;
    IF $3 THEN
        SELECT coalesce(array_agg(l.name), '{}'), coalesce(array_agg(l.nonce), '{}'), coalesce(array_agg(coalesce(l.token, 0)), '{}')
        FROM pgleases.locks AS l
        WHERE l.session = $1
        INTO found_names, found_nonces, tokens;
    ELSE
        SELECT coalesce(array_agg(l.name), '{}'), coalesce(array_agg(l.nonce), '{}'), coalesce(array_agg(coalesce(l.token, 0)), '{}')
        FROM unnest($2) AS a (nonce)
        CROSS JOIN LATERAL (
            SELECT l.name, l.nonce, l.token FROM pgleases.locks AS l
            WHERE l.session = $1 AND l.nonce = a.nonce
            OFFSET 0) AS l
        INTO found_names, found_nonces, tokens;
    END IF;
END
$pgleases_body$;

CREATE OR REPLACE FUNCTION pgleases.lock_sweep(most int, lock_ms int, notify boolean) RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_sort = off SET jit = off
AS $pgleases_body$
DECLARE
    dead bigint[];
    n text;
BEGIN
    PERFORM pgleases.lock_settings($2);
    dead := ARRAY( -- from each session to the next by the index, as one session may have a thousand rows
        WITH RECURSIVE sessions AS (
            SELECT (SELECT l.session FROM pgleases.locks AS l ORDER BY l.session LIMIT 1) AS session
            UNION ALL
            SELECT (SELECT l.session FROM pgleases.locks AS l WHERE l.session > s.session ORDER BY l.session LIMIT 1)
            FROM sessions AS s WHERE s.session IS NOT NULL
        )
        SELECT s.session FROM sessions AS s
        WHERE s.session IS NOT NULL
          AND (SELECT c.session FROM pgleases.clients AS c WHERE c.session = s.session) IS NULL);
    IF cardinality(dead) = 0 THEN
        RETURN true;
    END IF;
    FOR n IN
        SELECT DISTINCT d.name
        FROM (SELECT l.name FROM pgleases.locks AS l WHERE l.session = ANY (dead) LIMIT $1) AS d
        ORDER BY d.name
    LOOP
        CONTINUE WHEN NOT pg_try_advisory_xact_lock(pgleases.lock_mutex(n)); -- a later sweep
        DELETE FROM pgleases.locks AS l
        WHERE l.name = n AND l.ticket = ANY (ARRAY(
            SELECT d.ticket FROM pgleases.locks AS d WHERE d.name = n AND d.session = ANY (dead) FOR UPDATE SKIP LOCKED));
        PERFORM FROM pgleases.locks AS l WHERE l.name = n LIMIT 1;
        IF FOUND THEN
            PERFORM pgleases.lock_turn(n, pgleases.timeline(), $3);
        END IF;
    END LOOP;
    RETURN NOT EXISTS (SELECT FROM pgleases.locks AS l WHERE l.session = ANY (dead));
END
$pgleases_body$;

CREATE OR REPLACE FUNCTION pgleases.lock_list(
    prefix pg_catalog.text, after pg_catalog.text, most int,
    OUT name pg_catalog.text, OUT shared boolean, OUT waiting int,
    OUT ids pg_catalog.text[], OUT hosts pg_catalog.text[], OUT pids int[], OUT tokens bigint[], OUT since bigint[],
    OUT silent bigint[], OUT lives bigint[])
RETURNS SETOF record
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_sort = off SET jit = off
AS $pgleases_body$
DECLARE
    now CONSTANT timestamptz := clock_timestamp();
BEGIN
    RETURN QUERY
    WITH RECURSIVE names AS ( -- from each name to the next by the index, as thousands may await one
        SELECT (SELECT l.name FROM pgleases.locks AS l WHERE l.name >= $1 AND l.name > $2 ORDER BY l.name LIMIT 1) AS name, 1 AS n
        UNION ALL
        SELECT (SELECT l.name FROM pgleases.locks AS l WHERE l.name > s.name ORDER BY l.name LIMIT 1), s.n + 1
        FROM names AS s WHERE starts_with(s.name, $1) AND s.n < $3
    )
    SELECT n.name, h.shared, (SELECT count(*)::int FROM pgleases.locks AS l WHERE l.name = n.name AND l.token IS NULL),
           h.ids, h.hosts, h.pids, h.tokens, h.since, h.silent, h.lives
    FROM names AS n
    CROSS JOIN LATERAL (
        SELECT coalesce(bool_or(l.shared), false) AS shared, coalesce(array_agg(coalesce(c.id, '') ORDER BY l.ticket), '{}') AS ids,
               coalesce(array_agg(coalesce(c.host, '') ORDER BY l.ticket), '{}') AS hosts,
               coalesce(array_agg(coalesce(c.pid, 0) ORDER BY l.ticket), '{}') AS pids,
               coalesce(array_agg(l.token ORDER BY l.ticket), '{}') AS tokens,
               coalesce(array_agg(least(greatest(extract(epoch FROM l.since) * 1000000, -9e18), 9e18)::bigint ORDER BY l.ticket), '{}') AS since,
               coalesce(array_agg(CASE WHEN c.session IS NULL THEN 0 ELSE least(greatest((extract(epoch FROM now) - extract(epoch FROM c.expires_at)
                   + extract(epoch FROM c.ttl)) * 1000000, -9e15), 9e15)::bigint END ORDER BY l.ticket), '{}') AS silent,
               coalesce(array_agg(CASE WHEN c.session IS NULL THEN 0 ELSE least(greatest((extract(epoch FROM c.expires_at) - extract(epoch FROM now)) * 1000000, -9e15), 9e15)::bigint END
                                  ORDER BY l.ticket), '{}') AS lives
        FROM pgleases.locks AS l
        LEFT JOIN LATERAL (SELECT * FROM pgleases.clients AS c WHERE c.session = l.session OFFSET 0) AS c ON true
        WHERE l.name = n.name AND l.token IS NOT NULL
    ) AS h
    WHERE starts_with(n.name, $1)
    ORDER BY n.name;
END
$pgleases_body$;

-- As guard does for a partition.
CREATE OR REPLACE FUNCTION pgleases.guard_lock(name pg_catalog.text, token bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $pgleases_body$
BEGIN
    PERFORM FROM pgleases.locks AS l
    WHERE l.name = $1 AND l.token = $2
      AND (SELECT c.session FROM pgleases.clients AS c WHERE c.session = l.session AND c.incarnation >= 0) IS NOT NULL
    FOR KEY SHARE OF l;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'lock "%" is not held under token %', $1, $2
            USING ERRCODE = 'PL001',
                  HINT = 'It was released, or its holder was declared dead. Roll back and leave the work to whoever holds it now.';
    END IF;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.guard_lock(pg_catalog.text, bigint) IS 'Raises PL001 unless the lock is held under this token, by a session that was not evicted. After it, nobody else is given the lock until the transaction ends.';

-- Last, after all tables and functions: a schema without its version counts as missing.
INSERT INTO pgleases.server (accepted_timeline, generation, next_check_at)
VALUES (pgleases.timeline(), 0, 'infinity') ON CONFLICT DO NOTHING;
INSERT INTO pgleases.schema_version AS v (version, min_code) VALUES (1, 1)
ON CONFLICT ((true)) DO UPDATE SET version = EXCLUDED.version, min_code = EXCLUDED.min_code WHERE v.version OPERATOR(pg_catalog.<) EXCLUDED.version;
