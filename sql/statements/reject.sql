-- reject.sql: marks a server with a lower generation than the caller has seen as not accepted. It is behind: an old
-- primary, or a copy. It has to be accepted as a promoted server is.
--
-- $1 bigint  the highest server generation that the caller has seen
-- $2 int     lock timeout, milliseconds
WITH settings AS MATERIALIZED ( -- read below, because PostgreSQL would not run it otherwise
    SELECT pgleases.settings(true, $2::int) AS ok
)
UPDATE pgleases.server AS s SET accepted_timeline = -1 FROM settings WHERE settings.ok AND s.generation < $1::bigint
