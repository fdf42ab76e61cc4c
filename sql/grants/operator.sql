-- operator.sql: the rights of a role that operates clients and leases, besides those of reader.sql. It has only the
-- right to execute functions. Replace pgleases_operator by your role's name; the rest is as for application.sql.
GRANT USAGE ON SCHEMA pgleases TO pgleases_operator;
GRANT EXECUTE ON FUNCTION pgleases.drain, pgleases.undrain, pgleases.cordon, pgleases.uncordon, pgleases.pause, pgleases.resume,
    pgleases.freeze, pgleases.unfreeze, pgleases.pin, pgleases.unpin, pgleases.evict_client, pgleases.drop_lease,
    pgleases.replace_lease, pgleases.new_server_generation TO pgleases_operator;
