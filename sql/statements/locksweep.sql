-- locksweep.sql: after an eviction, removes the rows of expired sessions, and grants each of these locks to the next
-- session in its queue. It does not wait for locks.
--
-- $1 int      the maximum number of rows to check
-- $2 int      lock timeout, milliseconds
-- $3 text     whether to notify the sessions that get a lock: any text; empty: do not notify
--
-- One row: whether all rows of expired sessions are gone.
SELECT pgleases.lock_sweep($1::int, $2::int, $3::text <> '') AS done
