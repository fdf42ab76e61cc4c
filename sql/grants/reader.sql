-- reader.sql: the rights of a role that reads everything, for people and monitoring, and changes no row. Replace
-- pgleases_reader by your role's name; the rest is as for application.sql.
GRANT USAGE ON SCHEMA pgleases TO pgleases_reader;
GRANT SELECT ON ALL TABLES IN SCHEMA pgleases TO pgleases_reader;
-- For databases where PUBLIC may not execute functions.
GRANT EXECUTE ON FUNCTION pgleases.timeline, pgleases.tables_number, pgleases.present_database, pgleases.lock_list, pgleases.snapshot, pgleases.leases_of TO pgleases_reader;
DO $pgleases_body$
BEGIN
    IF to_regprocedure('pgleases.schedule_clock()') IS NOT NULL THEN
        GRANT EXECUTE ON FUNCTION pgleases.schedule_clock, pgleases.schedule_since, pgleases.schedule_json, pgleases.schedule_status_json, pgleases.schedule_list,
            pgleases.schedule_history, pgleases.schedule_entry_json, pgleases.schedule_job, pgleases.schedule_jobs TO pgleases_reader;
    END IF;
    IF to_regclass('pgleases.consumers') IS NOT NULL THEN
        GRANT EXECUTE ON FUNCTION pgleases.consumer_backlog TO pgleases_reader;
    END IF;
END
$pgleases_body$;
-- To see the activity of other roles' sessions, which pgleases doctor checks, the role also needs pg_monitor. To see what
-- waits in the queue table of a consumer, it needs SELECT on that table.
