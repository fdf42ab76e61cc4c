-- operator.sql: the rights of a role that steers clients and leases, besides those of reader.sql. It has them by functions alone.
-- Write your role's name for pgleases_operator; the rest is as for application.sql.
GRANT USAGE ON SCHEMA pgleases TO pgleases_operator;
GRANT EXECUTE ON FUNCTION pgleases.drain(pg_catalog.text, pg_catalog.text, pg_catalog.text, pg_catalog.timestamptz, boolean),
    pgleases.undrain(pg_catalog.text, pg_catalog.text, pg_catalog.text),
    pgleases.cordon(pg_catalog.text, pg_catalog.text, pg_catalog.text, pg_catalog.timestamptz),
    pgleases.uncordon(pg_catalog.text, pg_catalog.text, pg_catalog.text),
    pgleases.pause(pg_catalog.text, pg_catalog.text, pg_catalog.text, pg_catalog.timestamptz),
    pgleases.resume(pg_catalog.text, pg_catalog.text, pg_catalog.text),
    pgleases.freeze(pg_catalog.text, pg_catalog.text, pg_catalog.text, pg_catalog.timestamptz),
    pgleases.unfreeze(pg_catalog.text, pg_catalog.text, pg_catalog.text),
    pgleases.pin(pg_catalog.text, int, pg_catalog.text, pg_catalog.text, pg_catalog.text, pg_catalog.timestamptz),
    pgleases.unpin(pg_catalog.text, int, pg_catalog.text, pg_catalog.text),
    pgleases.evict_client(pg_catalog.text, pg_catalog.text, pg_catalog.text),
    pgleases.drop_lease(pg_catalog.text, pg_catalog.text, pg_catalog.text),
    pgleases.new_era() TO pgleases_operator;
