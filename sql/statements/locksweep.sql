-- locksweep.sql: after an eviction, removes what expired sessions hold or await, and gives each of these locks to whose turn it is. It waits
-- for nobody.
--
-- $1 int      the most rows to look at
-- $2 int      lock timeout, milliseconds
-- $3 text     whether to notify whom it is granted to: anything; empty: not
--
-- One row: whether nothing is left of expired sessions.
SELECT pgleases.lock_sweep($1::int, $2::int, $3::text <> '') AS done
