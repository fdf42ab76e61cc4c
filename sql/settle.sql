-- settle.sql: accepts a promoted server, once every owner from before has seen it or has lost its trust. A new era begins, above
-- every epoch of the server before. From now on no guard passes under an epoch of an earlier era: owners renew what they have, see
-- release.sql. Partitions move again.
--
-- $1 bigint  time for which the caller has watched this run of the server, microseconds
-- $2 bigint timeline, $3 bigint started, $4 bigint mark: the run of the server that was watched
-- $5 bigint  the highest era that the caller has seen, be it on another server
-- $6 int     lock timeout, milliseconds
--
-- One row, the era, where it was settled. No row where it is settled already, or may not be settled yet.
WITH settings AS MATERIALIZED ( -- read below, else PostgreSQL would not run it
    SELECT pgleases.settings(true, $6::int) AS ok
), due AS MATERIALIZED ( -- not while a session's TTL is longer than the watch; SKIP LOCKED: another client settles
    -- Seconds since 2020: two standbys of one server have the same era and the same next timeline, and one may be promoted
    -- after the other. Below 2^31, as an epoch begins with it.
    SELECT greatest(s.era + 1, $5::bigint + 1,
                    least(floor(extract(epoch FROM clock_timestamp())) - 1577836800, 2000000000)::bigint) AS era
    FROM pgleases.server AS s, settings
    WHERE settings.ok AND s.timeline <> $2::bigint AND pgleases.timeline() = $2::bigint
      AND (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint = $3::bigint
      AND (SELECT m.mark FROM pgleases.server_mark AS m) = $4::bigint
      AND NOT EXISTS (SELECT FROM pgleases.clients AS c WHERE c.ttl > $1::bigint * interval '1 microsecond')
    FOR UPDATE OF s SKIP LOCKED
), settled AS (
    UPDATE pgleases.server AS s
    SET timeline = $2::bigint, era = due.era, next_check_at = clock_timestamp()
    FROM due
    RETURNING s.era
), told AS (
    INSERT INTO pgleases.events (cause, reason) SELECT 'settled', 'era ' || settled.era::text FROM settled
)
SELECT settled.era FROM settled
