-- liveness.sql: with fast failover, has the connection hold an advisory lock to its end, and writes which. Repeated with lower keys it holds them
-- all, and the lowest counts: one that comes late, from an earlier connection, changes nothing.
--
-- $1 bigint  session
-- $2 bigint  key of the lock, negative, and lower than all that the client has used
-- $3 int     lock timeout, milliseconds
--
-- One row: whether the lock is held; not where the session has a lower key. An error where another connection holds it.
SELECT pgleases.hold_liveness($1::bigint, $2::bigint, $3::int)
