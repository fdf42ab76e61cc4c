-- attend.sql: with fast fail-over, has the connection hold an advisory lock to its end, and writes which. Repeated with other keys it holds them
-- all, and the last one counts.
--
-- $1 bigint  session
-- $2 bigint  key of the lock, negative and random
-- $3 int     lock timeout, milliseconds
--
-- One row: whether the lock was taken; not where another connection has the key.
SELECT pgleases.attend($1::bigint, $2::bigint, $3::int)
