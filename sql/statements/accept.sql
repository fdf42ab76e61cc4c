-- accept.sql: accepts a promoted server, after every owner from before has seen it or has lost its trust. A new server
-- generation begins, above every epoch of the previous server. From now on no guard passes under an epoch of an earlier
-- server generation: owners renew their ownerships, see release.sql. Partitions move again.
--
-- $1 bigint  how long the caller has watched this server incarnation, microseconds
-- $2 bigint timeline, $3 bigint started, $4 bigint marker: the server incarnation that was watched
-- $5 bigint  the highest server generation that the caller has seen, also on another server
-- $6 int     lock timeout, milliseconds
--
-- One row: the server generation, if this statement accepted it; 0 if it is accepted already, or may not be accepted
-- yet.
WITH settings AS MATERIALIZED ( -- read below, because PostgreSQL would not run it otherwise
    SELECT pgleases.settings(true, $6::int) AS ok
), due AS MATERIALIZED ( -- not while a session's TTL is longer than the watch; SKIP LOCKED: another client accepts it
    -- Seconds since 2020, because two standbys of one server have the same generation and the same next timeline, and
    -- one may be promoted after the other. Below 2^31, because an epoch begins with it.
    SELECT greatest(s.generation + 1, $5::bigint + 1,
                    least(floor(extract(epoch FROM clock_timestamp())) - 1577836800, 2000000000)::bigint) AS generation,
           s.accepted_timeline = -1 AS requested
    FROM pgleases.server AS s, settings
    WHERE settings.ok AND s.accepted_timeline <> $2::bigint AND pgleases.timeline() = $2::bigint
      AND (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint = $3::bigint
      AND (SELECT m.marker FROM pgleases.present_marker AS m) = $4::bigint
      AND NOT EXISTS (SELECT FROM pgleases.clients AS c WHERE c.ttl > $1::bigint * interval '1 microsecond')
    FOR UPDATE OF s SKIP LOCKED
), accepted AS (
    UPDATE pgleases.server AS s
    SET accepted_timeline = $2::bigint, generation = due.generation, next_check_at = clock_timestamp()
    FROM due
    RETURNING s.generation
), recorded AS (
    INSERT INTO pgleases.events (cause, reason, generation)
    SELECT CASE WHEN due.requested THEN 'new generation' ELSE 'accepted' END,
           concat('server generation ', accepted.generation), accepted.generation
    FROM accepted, due
)
SELECT coalesce((SELECT accepted.generation FROM accepted), 0) AS generation
