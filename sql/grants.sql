-- grants.sql: what a role needs to run clients, where another role owns the tables and ran the migration. It owns
-- nothing, can drop and alter nothing, and cannot empty a table. Write your role's name for pgleases_app (and your schema's for
-- pgleases), and run it as the owner. Clients of such a role are best opened with WithoutMigration.
GRANT USAGE ON SCHEMA pgleases TO pgleases_app;
GRANT SELECT ON pgleases.schema_version, pgleases.status, pgleases.members_status TO pgleases_app;
GRANT SELECT, INSERT, UPDATE, DELETE ON pgleases.clients, pgleases.identities, pgleases.members TO pgleases_app;
GRANT SELECT, INSERT, UPDATE ON pgleases.leases, pgleases.partitions TO pgleases_app;
GRANT SELECT, UPDATE ON pgleases.server TO pgleases_app;
GRANT SELECT, INSERT ON pgleases.server_mark TO pgleases_app;
-- Everybody may execute functions unless default privileges say otherwise.
GRANT EXECUTE ON FUNCTION pgleases.timeline(), pgleases.settings(boolean, int), pgleases.heartbeat(bigint, int),
    pgleases.evict(bigint, bigint, bigint, bigint, bigint, int),
    pgleases.partition_for(text, int), pgleases.guard(text, int, bigint) TO pgleases_app;

-- A role that only works under a guard, and runs no clients, needs the UPDATE of some column for its row lock:
--   GRANT USAGE ON SCHEMA pgleases TO worker;
--   GRANT SELECT, UPDATE (asked_at) ON pgleases.partitions TO worker;
--   GRANT SELECT ON pgleases.clients, pgleases.server TO worker;
--   GRANT EXECUTE ON FUNCTION pgleases.guard(text, int, bigint) TO worker;
-- A role that may drop leases needs the rights of a client's, and besides:
--   GRANT DELETE ON pgleases.partitions TO operator;
--   GRANT EXECUTE ON FUNCTION pgleases.drop_lease(text) TO operator;
