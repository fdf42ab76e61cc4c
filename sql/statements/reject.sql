-- reject.sql: a server with a lower generation than one that the caller has seen is behind: an old primary, or a copy. It is to be
-- accepted as a promoted one is.
--
-- $1 bigint  the highest server generation that the caller has seen
-- $2 int     lock timeout, milliseconds
WITH settings AS MATERIALIZED ( -- read below, else PostgreSQL would not run it
    SELECT pgleases.settings(true, $2::int) AS ok
)
UPDATE pgleases.server AS s SET accepted_timeline = -1 FROM settings WHERE settings.ok AND s.generation < $1::bigint
