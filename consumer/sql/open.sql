-- open.sql: opens the transaction of a batch: sets our settings and limits, guards its partitions, and identifies it.
--
-- $1 text      lease
-- $2 int[]     partitions
-- $3 bigint[]  for each its epoch
-- $4 text      the most that the transaction may be idle, milliseconds
-- $5 text      the most that a statement waits for a lock, milliseconds
SELECT pg_catalog.concat({settings}, pg_catalog.set_config('idle_in_transaction_session_timeout', $4::pg_catalog.text, true),
                         pg_catalog.set_config('client_connection_check_interval', pgleases.check_interval(), true)),
       pgleases.guard_many($1::pg_catalog.text, $2::int[], $3::bigint[]), pg_catalog.pg_current_xact_id()::pg_catalog.text
