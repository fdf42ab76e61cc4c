-- application.sql: the rights of a role that runs clients. It owns nothing, and cannot drop, alter or empty a table. Write your
-- role's name for pgleases_app and your schema's for pgleases, and run the file as the tables' owner, again after each migration.
-- Open clients of such a role WithoutMigration.
GRANT USAGE ON SCHEMA pgleases TO pgleases_app;
GRANT SELECT ON pgleases.schema_version, pgleases.wishes, pgleases.status, pgleases.members_status, pgleases.locks_status TO pgleases_app;
GRANT SELECT, INSERT, UPDATE, DELETE ON pgleases.clients, pgleases.identities, pgleases.members, pgleases.locks, pgleases.presences TO pgleases_app;
GRANT USAGE ON SEQUENCE pgleases.lock_tokens TO pgleases_app;
GRANT SELECT, INSERT, UPDATE ON pgleases.leases, pgleases.partitions TO pgleases_app;
GRANT SELECT, UPDATE ON pgleases.server TO pgleases_app;
GRANT SELECT, INSERT ON pgleases.server_mark, pgleases.events TO pgleases_app;
-- For databases where PUBLIC may not execute functions.
GRANT EXECUTE ON FUNCTION pgleases.timeline(), pgleases.first_epoch(bigint), pgleases.settings(boolean, int), pgleases.heartbeat(bigint, int, double precision, bigint, double precision, bigint, pg_catalog.xid8), pgleases.tell(bigint, pg_catalog.text),
    pgleases.evict(bigint, bigint, bigint, bigint, bigint, bigint, int), pgleases.trim_events(), pgleases.end_wishes(),
    pgleases.attend(bigint, bigint, int), pgleases.look_out(bigint, bigint), pgleases.session_ends(),
    pgleases.evict_ended(bigint[], bigint[], int[], bigint[], bigint, bigint, bigint, bigint, bigint, bigint, bigint, int, pg_catalog.text),
    pgleases.read(bigint, pg_catalog.text[]),
    pgleases.release(bigint, pg_catalog.text[], int[], bigint[], bigint[], pg_catalog.text[], bigint[], pg_catalog.text[], bigint, int),
    pgleases.announce(pg_catalog.text[], bigint[], int, pg_catalog.text),
    pgleases.snapshot(pg_catalog.text[], boolean),
    pgleases.apply(pg_catalog.text[], bigint[], pg_catalog.text[], bigint[], pg_catalog.text[], int[], int[], int[], int, bigint, pg_catalog.text),
    pgleases.partition_for(pg_catalog.text, int), pgleases.guard(pg_catalog.text, int, bigint),
    pgleases.lock_mutex(pg_catalog.text), pgleases.lock_settings(int), pgleases.lock_same_run(bigint, bigint, bigint), pgleases.lock_turn(pg_catalog.text, bigint, boolean),
    pgleases.lock_acquire(pg_catalog.text, bigint, bigint, boolean, boolean, bigint, bigint, bigint, bigint, int, boolean),
    pgleases.lock_queue(pg_catalog.text, bigint, bigint, boolean, boolean, bigint, bigint, bigint, bigint, boolean),
    pgleases.lock_release(pg_catalog.text, bigint, bigint, bigint, bigint, bigint, bigint, int, boolean),
    pgleases.lock_releases(bigint, pg_catalog.text[], bigint[], bigint[], bigint, bigint, bigint, int, boolean),
    pgleases.lock_look(bigint, bigint[], boolean, int, boolean), pgleases.lock_sweep(int, int, boolean),
    pgleases.lock_list(pg_catalog.text, pg_catalog.text, int), pgleases.guard_lock(pg_catalog.text, bigint) TO pgleases_app;
