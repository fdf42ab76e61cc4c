-- application.sql: the rights of a role that runs and manages schedules, besides those of
-- application.sql of the engine. Replace pgleases_app with your role and pgleases with your schema.
-- Run the file as the owner of the tables, and again after each migration.
GRANT SELECT ON pgleases.schedule_version, pgleases.schedules_status, pgleases.jobs_status TO pgleases_app;
GRANT SELECT, INSERT, UPDATE ON pgleases.schedule_groups, pgleases.schedule_owners TO pgleases_app;
GRANT SELECT, INSERT, UPDATE, DELETE ON pgleases.schedules, pgleases.jobs, pgleases.history TO pgleases_app;
GRANT SELECT, INSERT, UPDATE, DELETE ON pgleases.schedule_slots TO pgleases_app;
-- For databases whose PUBLIC may not execute functions.
GRANT EXECUTE ON FUNCTION pgleases.schedule_clock, pgleases.schedule_since, pgleases.schedule_json, pgleases.schedule_status_json,
    pgleases.schedule_join, pgleases.schedule_place, pgleases.schedule_poll, pgleases.schedule_due, pgleases.schedule_begin, pgleases.schedule_end,
    pgleases.schedule_block, pgleases.schedule_set_aside, pgleases.schedule_open, pgleases.schedule_locked, pgleases.schedule_write_ticks,
    pgleases.schedule_close, pgleases.schedule_close_late, pgleases.schedule_end_tick, pgleases.schedule_end_job, pgleases.schedule_end_job_otherwise,
    pgleases.schedule_lock_job, pgleases.schedule_postpone_job, pgleases.schedule_canceled, pgleases.schedule_source,
    pgleases.schedule_make_slots, pgleases.schedule_take_slot, pgleases.schedule_free_slot, pgleases.schedule_enqueue_many, pgleases.schedule_enqueue,
    pgleases.schedule_enqueue_or_keep, pgleases.schedule_enqueue_or_replace, pgleases.schedule_wake,
    pgleases.schedule_job, pgleases.schedule_jobs, pgleases.schedule_get, pgleases.schedule_create, pgleases.schedule_replace,
    pgleases.schedule_forget_tick, pgleases.schedule_partition, pgleases.schedule_declare, pgleases.schedule_list,
    pgleases.schedule_history, pgleases.schedule_entry_json, pgleases.schedule_trim TO pgleases_app;
-- The verbs, for programs. Those of operators follow, for programs that give a reason.
GRANT EXECUTE ON FUNCTION pgleases.schedule_find, pgleases.schedule_take, pgleases.schedule_read, pgleases.schedule_do_lock,
    pgleases.schedule_do_pause, pgleases.schedule_check_canceled, pgleases.schedule_do_resume, pgleases.schedule_do_catch_up,
    pgleases.schedule_do_delete, pgleases.schedule_do_trigger, pgleases.schedule_do_backfill, pgleases.schedule_do_cancel_job,
    pgleases.schedule_retry_entry, pgleases.schedule_do_retry_job, pgleases.schedule_do_retry_tick,
    pgleases.schedule_do_retry_failed TO pgleases_app;
GRANT EXECUTE ON FUNCTION pgleases.schedule_lock, pgleases.schedule_pause, pgleases.schedule_resume, pgleases.schedule_catch_up,
    pgleases.schedule_delete, pgleases.schedule_trigger, pgleases.schedule_backfill, pgleases.schedule_retry_tick,
    pgleases.schedule_retry_job, pgleases.schedule_retry_failed, pgleases.schedule_cancel_job TO pgleases_app;
