-- application.sql: the rights of a role that runs consumers, besides those of application.sql of the engine, and SELECT,
-- UPDATE and DELETE on its queue tables. Replace pgleases_app with your role and pgleases with your schema. Run the file
-- as the owner of the tables, and again after each migration.
GRANT SELECT ON pgleases.consumer_version, pgleases.consumers_status TO pgleases_app;
GRANT SELECT, INSERT, UPDATE ON pgleases.consumers, pgleases.consumer_owners TO pgleases_app;
GRANT SELECT, INSERT, UPDATE, DELETE ON pgleases.consumer_blocked TO pgleases_app;
GRANT SELECT, INSERT ON pgleases.consumer_dead_letters TO pgleases_app;
-- For databases whose PUBLIC may not execute functions.
GRANT EXECUTE ON FUNCTION pgleases.consumer_expect, pgleases.consumer_content, pgleases.consumer_begin, pgleases.consumer_end,
    pgleases.consumer_inserted, pgleases.consumer_backlog, pgleases.consumer_look TO pgleases_app;
