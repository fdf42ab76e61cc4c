-- guard.sql: the rights of a role that only writes under Guard or a lock's Guard, and runs no clients. UPDATE of one
-- column gives it the right to lock rows. See application.sql for the names to replace and how to run it.
GRANT USAGE ON SCHEMA pgleases TO pgleases_app;
GRANT SELECT, UPDATE (asked_at) ON pgleases.partitions TO pgleases_app;
GRANT SELECT ON pgleases.clients, pgleases.server TO pgleases_app;
GRANT EXECUTE ON FUNCTION pgleases.guard(pg_catalog.text, int, bigint), pgleases.guard_many(pg_catalog.text, int[], bigint[]) TO pgleases_app;
GRANT SELECT, UPDATE (since) ON pgleases.locks TO pgleases_app;
GRANT EXECUTE ON FUNCTION pgleases.guard_lock(pg_catalog.text, bigint) TO pgleases_app;
