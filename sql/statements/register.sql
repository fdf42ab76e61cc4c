-- register.sql: begins a session. Repeated with the same numbers, after a lost answer, it only renews the session.
--
-- $1 bigint       session
-- $2 text         client ID
-- $3 bigint       incarnation of the client's first registration; 0: this is the first
-- $4 bigint       number of the client: the lowest 24 bits count the clients of one program, the other bits are random
-- $5 bigint       TTL, microseconds
-- $6 text         host
-- $7 int          process ID
-- $8 timestamptz  when the client was opened
-- $9 text         metadata, as JSON
-- $10 int         lock timeout, milliseconds
--
-- One row: the incarnation; null if a newer process has the client ID, with that process's host, process ID and start,
-- or if an operator has evicted this process; and whether it is null because live processes have taken the ID from each
-- other so often that this one has to wait, see identities.takeovers.
WITH settings AS MATERIALIZED ( -- read below, because PostgreSQL would not run it otherwise
    SELECT pgleases.settings(true, $10::int) AS ok
), other AS MATERIALIZED ( -- the process that has the ID, if it lives, or has ended a moment ago
    SELECT c.host, c.pid FROM pgleases.clients AS c, settings
    WHERE settings.ok AND $3::bigint = 0 AND c.id = $2::text AND c.session <> $1::bigint AND c.incarnation >= 0
      AND c.expires_at > clock_timestamp() + c.ttl / 2
    ORDER BY c.incarnation DESC LIMIT 1
), contended AS MATERIALIZED (
    SELECT FROM pgleases.identities AS i
    WHERE i.id = $2::text AND i.process <> $4::bigint AND i.process <> 0
      AND i.takeovers >= 3 AND i.taken_at > clock_timestamp() - interval '5 minutes' AND EXISTS (SELECT FROM other)
), identity AS (
    INSERT INTO pgleases.identities AS i (id, incarnation, process, used_at)
    -- The first incarnation is the clock's time: so a process that has been frozen since before the ID was forgotten
    -- has a lower one.
    SELECT $2::text, CASE WHEN $3::bigint = 0 THEN extract(epoch FROM clock_timestamp())::bigint ELSE $3::bigint END,
           $4::bigint, clock_timestamp()
    FROM settings
    WHERE settings.ok AND NOT EXISTS (SELECT FROM contended)
    ON CONFLICT (id) DO UPDATE
    SET incarnation = CASE WHEN i.process = $4::bigint THEN i.incarnation
                           WHEN $3::bigint = 0 THEN i.incarnation + 1
                           ELSE $3::bigint END,
        process = $4::bigint,
        used_at = clock_timestamp(),
        (takeovers, taken_at, taken_from) = (
            SELECT CASE WHEN t.not_taken THEN i.takeovers WHEN i.taken_at > clock_timestamp() - interval '5 minutes' THEN i.takeovers + 1 ELSE 1 END,
                   CASE WHEN t.not_taken THEN i.taken_at ELSE clock_timestamp() END,
                   CASE WHEN t.not_taken THEN i.taken_from ELSE (SELECT concat('host ', o.host, ', pid ', o.pid) FROM other AS o) END
            FROM (SELECT i.process = $4::bigint OR NOT EXISTS (SELECT FROM other) AS not_taken) AS t)
    -- Not for a first registration that arrives after the program has given that client up and opened a newer one.
    WHERE $3::bigint = 0 AND NOT (i.process >> 24 = $4::bigint >> 24 AND i.process > $4::bigint)
       OR i.incarnation < $3::bigint OR i.process = $4::bigint
    RETURNING i.incarnation
), server AS MATERIALIZED (
    -- If another session has a longer TTL, an eviction that began before this session is visible may set the next check
    -- after this session's expiry. The lock waits for such an eviction. The lock also delays the next eviction, so it
    -- is not taken if no TTL is longer. It is taken last, after the wait for the ID's row, which another transaction
    -- may have locked for long.
    SELECT s.next_check_at > clock_timestamp() + $5::bigint * interval '1 microsecond' AS late
    FROM pgleases.server AS s
    WHERE EXISTS (SELECT FROM identity)
      AND EXISTS (SELECT FROM pgleases.clients AS c WHERE c.ttl > $5::bigint * interval '1 microsecond')
    FOR KEY SHARE OF s
), lowered AS (
    UPDATE pgleases.server AS s
    SET next_check_at = least(s.next_check_at, clock_timestamp() + $5::bigint * interval '1 microsecond'),
        -- The first client of new tables accepts them.
        accepted_timeline = CASE s.accepted_timeline WHEN 0 THEN pgleases.timeline() ELSE s.accepted_timeline END
    WHERE EXISTS (SELECT FROM identity)
      AND (s.accepted_timeline = 0
           OR s.next_check_at > clock_timestamp() + $5::bigint * interval '1 microsecond'
           OR EXISTS (SELECT FROM server WHERE server.late))
    RETURNING 1
), client AS (
    INSERT INTO pgleases.clients AS c (session, id, incarnation, expires_at, ttl, host, pid, started_at, metadata)
    SELECT $1::bigint, $2::text, identity.incarnation,
           clock_timestamp() + $5::bigint * interval '1 microsecond', $5::bigint * interval '1 microsecond',
           $6::text, $7::int, $8::timestamptz, $9::jsonb
    FROM identity
    WHERE (SELECT count(*) FROM lowered) >= 0 -- always true: the session's time begins after the wait for the server's row
    -- The incarnation is higher if the answer was lost, and another process has taken the ID before this repetition.
    ON CONFLICT (session) DO UPDATE SET expires_at = EXCLUDED.expires_at, incarnation = greatest(c.incarnation, EXCLUDED.incarnation)
    RETURNING c.incarnation
)
SELECT coalesce((SELECT incarnation FROM client), 0) AS incarnation,
       coalesce(newer.host, '') AS host, coalesce(newer.pid, 0) AS pid, coalesce(newer.started_at, 'epoch') AS started_at,
       EXISTS (SELECT FROM pgleases.identities AS i WHERE i.id = $2::text AND i.process = 0) AS evicted,
       EXISTS (SELECT FROM contended) AS contended
FROM (VALUES (1)) AS one -- a row also if no other process has the ID
LEFT JOIN LATERAL (
    SELECT c.host, c.pid, c.started_at FROM pgleases.clients AS c
    WHERE c.id = $2::text AND c.session <> $1::bigint
    ORDER BY c.incarnation DESC LIMIT 1
) AS newer ON true
