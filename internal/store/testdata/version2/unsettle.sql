-- unsettle.sql: a server with a lower era than one that the caller has seen is behind: an old primary, or a copy. It is to be
-- settled as a promoted one is.
--
-- $1 bigint  the highest era that the caller has seen
-- $2 int     lock timeout, milliseconds
WITH settings AS MATERIALIZED ( -- read below, else PostgreSQL would not run it
    SELECT pgleases.settings(true, $2::int) AS ok
)
UPDATE pgleases.server AS s SET timeline = -1 FROM settings WHERE settings.ok AND s.era < $1::bigint
