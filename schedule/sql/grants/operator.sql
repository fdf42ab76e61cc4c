-- operator.sql: the rights of a role that steers schedules and jobs, with schedule.Manage. It needs no others. Write your role's name for
-- pgleases_operator; the rest is as for application.sql.
GRANT USAGE ON SCHEMA pgleases TO pgleases_operator;
GRANT SELECT ON pgleases.schedule_version, pgleases.schedules, pgleases.jobs, pgleases.history, pgleases.schedule_changes,
    pgleases.schedules_status, pgleases.jobs_status TO pgleases_operator;
GRANT EXECUTE ON FUNCTION pgleases.schedule_change(pg_catalog.text, pg_catalog.text, pg_catalog.text, pg_catalog.jsonb, pg_catalog.text, pg_catalog.text),
    pgleases.schedule_clock(), pgleases.schedule_json(pgleases.schedules), pgleases.schedule_get(pg_catalog.text, pg_catalog.text, boolean),
    pgleases.schedule_list(pg_catalog.text, pg_catalog.text, pg_catalog.text, int), pgleases.schedule_history(pg_catalog.text, pg_catalog.text, bigint, int),
    pgleases.schedule_job(pg_catalog.text, bigint),
    pgleases.schedule_jobs(pg_catalog.text, pg_catalog.text, pg_catalog.text, pg_catalog.text, bigint, int) TO pgleases_operator;
