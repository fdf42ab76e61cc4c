-- functions.sql: the functions, and the rows with which the tables begin. It runs after schema.sql. Idempotent: a function is
-- replaced, a row that exists stays.

-- The timeline of the current WAL file: it changes with the promotion itself. 0 where the server does not tell it.
CREATE OR REPLACE FUNCTION pgleases.timeline() RETURNS bigint
LANGUAGE plpgsql STABLE AS $pgleases_body$
BEGIN
    RETURN ('x' || lpad(left(pg_walfile_name(pg_current_wal_lsn()), 8), 16, '0'))::bit(64)::bigint;
EXCEPTION WHEN OTHERS THEN
    RETURN 0;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.timeline() IS 'The server''s timeline now, which rises with a promotion; 0 where the server does not tell it.';

-- Settings of one statement: what it calls this from must be read by the rest of the statement, else it never runs.
CREATE OR REPLACE FUNCTION pgleases.settings(durable boolean, lock_ms int) RETURNS boolean
LANGUAGE sql VOLATILE AS $pgleases_body$
    SELECT set_config('synchronous_commit',
                      CASE WHEN NOT $1 THEN 'off'
                           WHEN current_setting('synchronous_commit') = 'off' THEN 'on'
                           ELSE current_setting('synchronous_commit') END, true) IS NOT NULL
       AND set_config('lock_timeout', $2::text, true) IS NOT NULL
$pgleases_body$;
COMMENT ON FUNCTION pgleases.settings(boolean, int) IS 'For the calling statement only: whether its commit waits for the disk, and how many milliseconds it waits for a lock.';

-- A function for its plans, which the server keeps for each of its connections: planned anew every time, as one
-- statement of plain SQL, it costs four times as much. An UPDATE of one's own row that waits for no flush; a heartbeat
-- that a crash loses was watched by nobody, as the mark is gone with it.
CREATE OR REPLACE FUNCTION pgleases.heartbeat(
    session bigint, lock_ms int,
    OUT alive boolean, OUT clock bigint, OUT timeline bigint, OUT started bigint, OUT mark bigint, OUT settled bigint,
    OUT incarnation bigint, OUT check_due_in bigint, OUT sessions bigint, OUT names text[], OUT generations bigint[],
    OUT due_in bigint[], OUT weights int[])
LANGUAGE plpgsql VOLATILE AS $pgleases_body$
DECLARE
    now timestamptz;
    due timestamptz;
    ttl interval;
BEGIN
    alive := pgleases.settings(false, $2);
    UPDATE pgleases.clients AS c SET expires_at = clock_timestamp() + c.ttl
    FROM pgleases.server AS s
    WHERE c.session = $1
    RETURNING true, s.timeline, s.next_check_at, s.sessions, (SELECT m.mark FROM pgleases.server_mark AS m),
              (SELECT i.incarnation FROM pgleases.identities AS i WHERE i.id = c.id), c.ttl
    INTO alive, settled, due, sessions, mark, incarnation, ttl;
    IF alive IS NULL THEN
        alive := false;
        ttl := interval '10 minutes';
        SELECT s.timeline, s.next_check_at, s.sessions, (SELECT m.mark FROM pgleases.server_mark AS m)
        FROM pgleases.server AS s
        INTO settled, due, sessions, mark;
    END IF;
    mark := coalesce(mark, 0);
    incarnation := coalesce(incarnation, 0);
    now := clock_timestamp();
    clock := date_part('epoch', now) * 1000000; -- a float holds microseconds for 200 years to come
    timeline := pgleases.timeline();
    started := date_part('epoch', pg_postmaster_start_time()) * 1000000;
    check_due_in := CASE WHEN due > now + ttl + interval '1 second' THEN 0 -- the clock stepped back
                         ELSE greatest(date_part('epoch', due - now) * 1000000, 0) END;
    SELECT coalesce(array_agg(l.name), '{}'),
           coalesce(array_agg(l.generation), '{}'),
           coalesce(array_agg(CASE WHEN l.next_check_at = 'infinity' THEN -1
                                   WHEN l.next_check_at > now + interval '1 second' THEN 0
                                   ELSE greatest(date_part('epoch', l.next_check_at - now) * 1000000, 0)
                              END::bigint), '{}'),
           coalesce(array_agg(m.weight), '{}')
    FROM pgleases.members AS m
    JOIN pgleases.leases AS l ON l.name = m.lease
    WHERE m.session = $1
    INTO names, generations, due_in, weights;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.heartbeat(bigint, int) IS 'Renews a session, and tells it all that it may have to act on. See heartbeat.sql.';

-- A function for its first statement: of the clients that see a check fall due, all but one find at once that it is done.
CREATE OR REPLACE FUNCTION pgleases.evict(
    cutoff bigint, watched bigint, timeline bigint, started bigint, mark bigint, lock_ms int,
    OUT evicted text[], OUT asked text[], OUT check_due_in bigint, OUT unwatched bigint)
LANGUAGE plpgsql VOLATILE AS $pgleases_body$
DECLARE
    now timestamptz := clock_timestamp();
    silent timestamptz := timestamptz 'epoch' + $1 * interval '1 microsecond'; -- who expired before has been
    longest interval := $2 * interval '1 microsecond';
BEGIN
    PERFORM pgleases.settings(true, $6);
    PERFORM FROM pgleases.server AS s
    WHERE (s.next_check_at <= now OR s.next_check_at > now + interval '1 second' + (SELECT min(c.ttl) FROM pgleases.clients AS c))
      AND now >= silent
      AND s.timeline = $3 AND pgleases.timeline() = $3
      AND (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint = $4
      AND (SELECT m.mark FROM pgleases.server_mark AS m) = $5
    FOR UPDATE OF s SKIP LOCKED;
    IF NOT FOUND THEN
        evicted := '{}';
        asked := '{}';
        check_due_in := -1;
        unwatched := 0;
        RETURN;
    END IF;
    WITH expired AS MATERIALIZED (
        SELECT c.session, c.ttl, c.ttl <= longest AS watched
        FROM pgleases.clients AS c
        WHERE c.expires_at < silent
    ), living AS MATERIALIZED (
        SELECT m.lease, m.session FROM pgleases.members AS m
        JOIN pgleases.clients AS c USING (session)
        WHERE m.session NOT IN (SELECT e.session FROM expired AS e WHERE e.watched)
    ), gone AS MATERIALIZED (
        SELECT m.lease, m.session FROM pgleases.members AS m
        WHERE NOT EXISTS (SELECT FROM living AS a WHERE a.lease = m.lease AND a.session = m.session)
    ), orphaned AS ( -- also those whom a death seen through another lease, or half a protocol, left behind
        SELECT p.lease
        FROM (SELECT lease, owner AS session FROM pgleases.partitions WHERE owner IS NOT NULL
              UNION SELECT lease, target FROM pgleases.partitions WHERE target IS NOT NULL) AS p
        WHERE NOT EXISTS (SELECT FROM living AS a WHERE a.lease = p.lease AND a.session = p.session)
          AND p.lease IN (SELECT a.lease FROM living AS a)
    ), affected AS MATERIALIZED (
        SELECT l.name FROM pgleases.leases AS l
        WHERE l.name IN (SELECT g.lease FROM gone AS g UNION SELECT o.lease FROM orphaned AS o)
        ORDER BY l.name
        FOR UPDATE OF l
    ), dead AS MATERIALIZED ( -- checked again under the lock; who is just renewing is not dead
        SELECT c.session, c.id FROM pgleases.clients AS c
        WHERE c.session IN (SELECT e.session FROM expired AS e WHERE e.watched)
          AND c.expires_at < silent
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
           OR i.used_at < now - interval '1 day'
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
        UPDATE pgleases.clients AS c SET expires_at = now + c.ttl
        WHERE c.expires_at > now + c.ttl + interval '1 second'
    ), checked AS ( -- who could not evict all the expired leaves the check to others
        UPDATE pgleases.server AS s
        SET sessions = (SELECT count(*) FROM pgleases.clients) - (SELECT count(*) FROM evicted),
            next_check_at = greatest(now + interval '50 milliseconds', coalesce(
                (SELECT min(least(c.expires_at, now + c.ttl)) FROM pgleases.clients AS c
                 WHERE c.session NOT IN (SELECT session FROM evicted)), 'infinity'))
        WHERE NOT EXISTS (SELECT FROM expired AS e WHERE NOT e.watched)
        RETURNING s.next_check_at
    )
    SELECT coalesce((SELECT array_agg(id ORDER BY id) FROM evicted), '{}'),
           coalesce((SELECT array_agg(name ORDER BY name) FROM asked), '{}'),
           coalesce((SELECT extract(epoch FROM least(next_check_at, clock_timestamp() + interval '11 minutes')
                                               - clock_timestamp()) * 1000000 FROM checked), -1),
           coalesce((SELECT extract(epoch FROM min(e.ttl)) * 1000000 FROM expired AS e WHERE NOT e.watched), 0)
    INTO evicted, asked, check_due_in, unwatched;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.evict(bigint, bigint, bigint, bigint, bigint, int) IS 'Takes away sessions that are dead, and asks for plans. See evict.sql.';

CREATE OR REPLACE FUNCTION pgleases.partition_for(key text, partitions int) RETURNS int
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $pgleases_body$
    SELECT ((('x' || encode(substring(sha256(convert_to($1, 'UTF8')) for 8), 'hex'))::bit(64)::bigint
             & 9223372036854775807) % $2)::int
$pgleases_body$;
COMMENT ON FUNCTION pgleases.partition_for(text, int) IS 'The partition of a key among so many: the first 8 bytes of SHA-256 of its UTF-8, big-endian, without the sign, modulo.';

-- The explicit row lock is the fence: it lasts to the caller's commit, a take-over waits for it (and skips what it
-- would have to wait for), and a guard that waited for a take-over reads the new epoch. An evicted owner is refused even
-- before the take-over, and all are while a promoted server is about to be settled, which ends every epoch: else a stream
-- of guards would leave no moment to take the rows.
CREATE OR REPLACE FUNCTION pgleases.guard(lease text, partition int, epoch bigint) RETURNS void
LANGUAGE plpgsql VOLATILE AS $pgleases_body$
BEGIN
    PERFORM FROM pgleases.partitions AS p
    WHERE p.lease = $1 AND p.partition = $2 AND p.epoch = $3
      AND EXISTS (SELECT FROM pgleases.clients AS c WHERE c.session = p.owner)
      AND NOT EXISTS (SELECT FROM pgleases.server AS s
                      WHERE s.settling_to BETWEEN clock_timestamp() AND clock_timestamp() + interval '2 seconds')
    FOR KEY SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'partition % of lease "%" is not owned under epoch %', $2, $1, $3
            USING ERRCODE = 'PL001',
                  HINT = 'It has or had another owner since, or a failover ended the epoch. Roll back and leave the work to the owner.';
    END IF;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.guard(text, int, bigint) IS 'Raises PL001 unless the partition is owned under this epoch, by a session that was not evicted; keeps it so until the transaction ends.';

CREATE OR REPLACE FUNCTION pgleases.drop_lease(name text) RETURNS void
LANGUAGE plpgsql VOLATILE AS $pgleases_body$
DECLARE
    living text;
BEGIN
    PERFORM FROM pgleases.leases AS l WHERE l.name = $1 AND l.partitions > 0 FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'lease "%" does not exist', $1 USING ERRCODE = 'undefined_object';
    END IF;
    SELECT string_agg(c.id, ', ' ORDER BY c.id) INTO living
    FROM pgleases.members AS m JOIN pgleases.clients AS c USING (session) WHERE m.lease = $1;
    IF living IS NOT NULL THEN
        RAISE EXCEPTION 'lease "%" has living members: %', $1, living
            USING ERRCODE = 'object_in_use', HINT = 'Close them, or have them leave, first. One that crashed is gone after its TTL, once another client runs.';
    END IF;
    UPDATE pgleases.leases AS l
    SET partitions = 0, generation = generation + 1, next_check_at = 'infinity',
        epoch_floor = greatest(l.epoch_floor, (SELECT max(p.epoch) FROM pgleases.partitions AS p WHERE p.lease = $1))
    WHERE l.name = $1;
    DELETE FROM pgleases.partitions AS p WHERE p.lease = $1;
    DELETE FROM pgleases.members AS m WHERE m.lease = $1;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.drop_lease(text) IS 'Forgets a lease without living members, so that it can be made again with another number of partitions. Epochs go on.';

INSERT INTO pgleases.server (timeline, era, next_check_at, settling_to)
VALUES (pgleases.timeline(), 0, 'infinity', '-infinity') ON CONFLICT DO NOTHING;
INSERT INTO pgleases.schema_version AS v (version, min_code) VALUES (1, 1)
ON CONFLICT ((true)) DO UPDATE SET version = EXCLUDED.version, min_code = EXCLUDED.min_code WHERE v.version < EXCLUDED.version;
