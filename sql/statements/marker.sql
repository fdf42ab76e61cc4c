-- marker.sql: gives this server incarnation its boot marker. The first one stays, unless it came from another database.
--
-- $1 bigint  random number
-- $2 int     lock timeout, milliseconds
WITH settings AS MATERIALIZED ( -- read below, because PostgreSQL would not run it otherwise
    SELECT pgleases.settings(true, $2::int) AS ok
)
INSERT INTO pgleases.boot_marker AS m (marker) SELECT $1::bigint FROM settings WHERE settings.ok
ON CONFLICT ((true)) DO UPDATE SET marker = EXCLUDED.marker, writer = EXCLUDED.writer, database = EXCLUDED.database
WHERE m.xmin <> m.writer OR m.database <> EXCLUDED.database
