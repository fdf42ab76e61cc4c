-- marker.sql: gives this server incarnation its boot marker. The first one stays.
--
-- $1 bigint  random number
-- $2 int     lock timeout, milliseconds
WITH settings AS MATERIALIZED ( -- read below, because PostgreSQL would not run it otherwise
    SELECT pgleases.settings(true, $2::int) AS ok
)
INSERT INTO pgleases.boot_marker (marker) SELECT $1::bigint FROM settings WHERE settings.ok ON CONFLICT DO NOTHING
