-- weight.sql: changes a member's weight, and a plan is due at once.
--
-- $1 bigint  session
-- $2 text    lease
-- $3 int     weight
-- $4 int     lock timeout, milliseconds
--
-- One row where the session is a member, else none.
WITH settings AS MATERIALIZED ( -- read below, else PostgreSQL would not run it
    SELECT pgleases.settings(true, $4::int) AS ok
), lease AS MATERIALIZED ( -- locked before its member is changed
    SELECT l.name FROM pgleases.leases AS l, settings
    WHERE settings.ok AND l.name = $2::text
    FOR UPDATE OF l
), member AS (
    UPDATE pgleases.members AS m SET weight = $3::int
    FROM lease
    WHERE m.lease = lease.name AND m.session = $1::bigint
    RETURNING m.lease
)
UPDATE pgleases.leases AS l
SET generation = l.generation + 1, next_check_at = least(l.next_check_at, clock_timestamp())
FROM member
WHERE l.name = member.lease
RETURNING true
