-- mark.sql: marks this run of the server. The first mark stays.
--
-- $1 bigint  random number
-- $2 int     lock timeout, milliseconds
WITH settings AS MATERIALIZED ( -- read below, else PostgreSQL would not run it
    SELECT pgleases.settings(true, $2::int) AS ok
)
INSERT INTO pgleases.server_mark (mark) SELECT $1::bigint FROM settings WHERE settings.ok ON CONFLICT DO NOTHING
