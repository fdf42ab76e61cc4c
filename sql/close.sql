-- close.sql: ends a session that has left every lease. One that is still a member, perhaps by a join whose answer was
-- lost, goes on.
--
-- $1 bigint session
-- $2 int    lock timeout, milliseconds
--
-- One row: whether there is no such session any more.
WITH settings AS MATERIALIZED (
    SELECT pgleases.settings(true, $2::int) AS ok
), ended AS (
    DELETE FROM pgleases.clients AS c USING settings
    WHERE settings.ok AND c.session = $1::bigint
      AND NOT EXISTS (SELECT FROM pgleases.members AS m WHERE m.session = $1::bigint)
    RETURNING c.id
), used AS (
    UPDATE pgleases.identities AS i SET used_at = clock_timestamp() FROM ended WHERE i.id = ended.id
)
SELECT EXISTS (SELECT FROM ended)
       OR NOT EXISTS (SELECT FROM pgleases.clients AS c, settings WHERE c.session = $1::bigint AND settings.ok) AS ended
