-- reject.sql: marks a server with a lower generation than the caller has seen as not accepted. It is behind: an old
-- primary, a copy, or tables that were accepted while others still trusted in other tables. It has to be accepted as a
-- promoted server is.
--
-- $1 bigint  timeline, as the caller's last heartbeat returned it
-- $2 bigint  the highest server generation that the caller has seen
-- $3 int     lock timeout, milliseconds
WITH settings AS MATERIALIZED ( -- read below, because PostgreSQL would not run it otherwise
    SELECT pgleases.settings(true, $3::int) AS ok
)
UPDATE pgleases.server AS s SET accepted_timeline = -2 FROM settings WHERE settings.ok AND s.accepted_timeline = $1::bigint AND s.generation < $2::bigint
