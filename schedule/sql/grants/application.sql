-- application.sql: the rights of a role that runs and manages schedules, besides those of application.sql of the engine. Write your
-- role's name for pgleases_app and your schema's for pgleases, and run the file as the tables' owner, again after each migration.
GRANT SELECT ON pgleases.schedule_version, pgleases.schedules_status, pgleases.jobs_status TO pgleases_app;
GRANT SELECT, INSERT, UPDATE ON pgleases.schedule_groups, pgleases.schedule_owners TO pgleases_app;
GRANT SELECT, INSERT, UPDATE, DELETE ON pgleases.schedules, pgleases.jobs, pgleases.history TO pgleases_app;
GRANT SELECT, DELETE ON pgleases.schedule_changes TO pgleases_app;
GRANT SELECT, INSERT, UPDATE, DELETE ON pgleases.schedule_slots TO pgleases_app;
GRANT SELECT, UPDATE ON SEQUENCE pgleases.schedule_told TO pgleases_app;
-- For databases where PUBLIC may not execute functions.
GRANT EXECUTE ON FUNCTION pgleases.schedule_clock(), pgleases.schedule_tell(pg_catalog.text), pgleases.schedule_share(pg_catalog.text),
    pgleases.schedule_json(pgleases.schedules), pgleases.schedule_join(pg_catalog.text, int),
    pgleases.schedule_look(pg_catalog.text, int[], int[], bigint, bigint, int, pg_catalog.text[], pg_catalog.text[]),
    pgleases.schedule_begin(pg_catalog.text, int, bigint, int),
    pgleases.schedule_end(pg_catalog.text, int, bigint, bigint[], bigint[], int),
    pgleases.schedule_check_interval(),
    pgleases.schedule_open(pg_catalog.text, int, bigint, bigint, boolean, pg_catalog.text, int, int, int),
    pgleases.schedule_done_job(bigint, pg_catalog.text, bigint, int, bigint, bigint),
    pgleases.schedule_done_tick(bigint, pg_catalog.text, bigint, pg_catalog.timestamptz, pg_catalog.timestamptz, bigint,
    pg_catalog.timestamptz, pg_catalog.timestamptz, pg_catalog.timestamptz, int, bigint, pg_catalog.timestamptz),
    pgleases.schedule_fates(pgleases.schedules, pg_catalog.jsonb),
    pgleases.schedule_close(bigint, pg_catalog.text, bigint, pg_catalog.timestamptz, pg_catalog.jsonb),
    pgleases.schedule_job_fates(pgleases.jobs, pg_catalog.jsonb),
    pgleases.schedule_make_slots(pg_catalog.text, pg_catalog.text, int),
    pgleases.schedule_take(pg_catalog.text, pg_catalog.text, int, int, bigint, pg_catalog.text),
    pgleases.schedule_free(pg_catalog.text, pg_catalog.text, pg_catalog.text),
    pgleases.schedule_close_job(bigint, pg_catalog.text, bigint, pg_catalog.jsonb),
    pgleases.schedule_enqueue(pg_catalog.text, int, pg_catalog.jsonb, pg_catalog.text),
    pgleases.schedule_job(pg_catalog.text, bigint),
    pgleases.schedule_jobs(pg_catalog.text, pg_catalog.text, pg_catalog.text, pg_catalog.text, bigint, int),
    pgleases.schedule_retry(pg_catalog.text, pg_catalog.text, pg_catalog.timestamptz, bigint),
    pgleases.schedule_edit(pg_catalog.text, pg_catalog.text, pg_catalog.text, pg_catalog.jsonb, pg_catalog.text),
    pgleases.schedule_change(pg_catalog.text, pg_catalog.text, pg_catalog.text, pg_catalog.jsonb, pg_catalog.text, pg_catalog.text),
    pgleases.schedule_get(pg_catalog.text, pg_catalog.text, boolean),
    pgleases.schedule_put(pg_catalog.text, int, pg_catalog.jsonb, pg_catalog.jsonb),
    pgleases.schedule_declare(pg_catalog.text, pg_catalog.text[]),
    pgleases.schedule_list(pg_catalog.text, pg_catalog.text, pg_catalog.text, int),
    pgleases.schedule_history(pg_catalog.text, pg_catalog.text, bigint, int),
    pgleases.schedule_trim(pg_catalog.text, boolean, pg_catalog.timestamptz, bigint, int) TO pgleases_app;
