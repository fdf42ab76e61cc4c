-- operator.sql: the rights of a role that operates schedules and jobs, with schedule.Manage. It
-- needs no others. Replace pgleases_operator with your role. For the rest see application.sql.
GRANT USAGE ON SCHEMA pgleases TO pgleases_operator;
GRANT SELECT ON pgleases.schedule_version, pgleases.schedule_groups, pgleases.schedules, pgleases.jobs, pgleases.history,
    pgleases.events, pgleases.schedules_status, pgleases.jobs_status TO pgleases_operator;
GRANT EXECUTE ON FUNCTION pgleases.schedule_lock, pgleases.schedule_pause, pgleases.schedule_resume, pgleases.schedule_catch_up,
    pgleases.schedule_delete, pgleases.schedule_trigger, pgleases.schedule_backfill, pgleases.schedule_retry_tick,
    pgleases.schedule_retry_job, pgleases.schedule_retry_failed, pgleases.schedule_cancel_job TO pgleases_operator;
GRANT EXECUTE ON FUNCTION pgleases.schedule_find, pgleases.schedule_read, pgleases.schedule_clock, pgleases.schedule_since,
    pgleases.schedule_json, pgleases.schedule_status_json, pgleases.schedule_list, pgleases.schedule_history, pgleases.schedule_entry_json, pgleases.schedule_job, pgleases.schedule_jobs TO pgleases_operator;
