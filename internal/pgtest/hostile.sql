-- hostile.sql: objects that an administrator may have in a database before the library's tables are created.
CREATE PUBLICATION everything FOR ALL TABLES;
CREATE SCHEMA administrator;
GRANT USAGE ON SCHEMA administrator TO PUBLIC;
-- The tables of tests have no primary key, and are updated.
CREATE FUNCTION administrator.identify() RETURNS event_trigger LANGUAGE plpgsql AS $$
DECLARE
    made text;
BEGIN
    FOR made IN SELECT object_identity FROM pg_catalog.pg_event_trigger_ddl_commands()
                WHERE command_tag = 'CREATE TABLE' AND object_type = 'table' AND schema_name NOT IN ('pgleases', 'pg_temp') LOOP
        EXECUTE 'ALTER TABLE ' || made || ' REPLICA IDENTITY FULL';
    END LOOP;
END $$;
CREATE FUNCTION administrator.ignore() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN PERFORM tg_event, tg_tag; END';
CREATE EVENT TRIGGER identify ON ddl_command_end EXECUTE FUNCTION administrator.identify();
CREATE EVENT TRIGGER starts ON ddl_command_start EXECUTE FUNCTION administrator.ignore();
CREATE EVENT TRIGGER drops ON sql_drop EXECUTE FUNCTION administrator.ignore();
CREATE EVENT TRIGGER rewrites ON table_rewrite EXECUTE FUNCTION administrator.ignore();
