-- report.sql: writes what only the client knows, for operators. No statement of the protocol reads it, so it does not wait
-- for a flush.
--
-- $1 bigint  session
-- $2 text[]  lost_locks
-- $3 text    refused_leases, as JSON
-- $4 int     lock timeout, milliseconds
WITH settings AS MATERIALIZED ( -- read below, because PostgreSQL would not run it otherwise
    SELECT pgleases.settings(false, $4::int) AS ok
)
UPDATE pgleases.clients AS c SET lost_locks = $2::text[], refused_leases = $3::text::jsonb
FROM settings
WHERE settings.ok AND c.session = $1::bigint
