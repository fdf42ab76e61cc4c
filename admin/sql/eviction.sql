-- eviction.sql: evicts expired sessions, as a client does that has watched the clock for longer than any TTL. The
-- caller rolls back, because it needs only the error.
SELECT FROM pgleases.server AS s CROSS JOIN pgleases.boot_marker AS m CROSS JOIN LATERAL pgleases.evict((extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000)::bigint,
    3600000000, 0, s.accepted_timeline, (extract(epoch FROM pg_catalog.pg_postmaster_start_time()) * 1000000)::bigint, m.marker, 100) AS e
