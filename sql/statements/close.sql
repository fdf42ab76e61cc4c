-- close.sql: ends a session that is a member of no lease, and neither holds nor awaits a lock. Any other session
-- continues, because the answer to its join may have been lost.
--
-- $1 bigint  session
-- $2 int     lock timeout, milliseconds
--
-- One row: whether the session is gone.
WITH settings AS MATERIALIZED ( -- read below, because PostgreSQL would not run it otherwise
    SELECT pgleases.settings(true, $2::int) AS ok
), identity AS MATERIALIZED ( -- locked before the client's row, as in evict_client
    SELECT i.id FROM pgleases.identities AS i, settings
    WHERE settings.ok AND i.id = (SELECT c.id FROM pgleases.clients AS c WHERE c.session = $1::bigint)
    FOR NO KEY UPDATE OF i
), ended AS (
    DELETE FROM pgleases.clients AS c USING settings
    WHERE settings.ok AND c.session = $1::bigint
      AND (SELECT count(*) FROM identity) >= 0 -- always true
      AND NOT EXISTS (SELECT FROM pgleases.members AS m WHERE m.session = $1::bigint)
      AND NOT EXISTS (SELECT FROM pgleases.locks AS l WHERE l.session = $1::bigint)
    RETURNING c.id
), used AS ( -- an ID is kept for one day from now
    UPDATE pgleases.identities AS i SET used_at = clock_timestamp() FROM ended WHERE i.id = ended.id
)
SELECT EXISTS (SELECT FROM ended)
       OR NOT EXISTS (SELECT FROM pgleases.clients AS c, settings WHERE c.session = $1::bigint AND settings.ok) AS ended
