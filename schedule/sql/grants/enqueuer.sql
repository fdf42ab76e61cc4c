-- enqueuer.sql: the rights of a role that only enqueues jobs, with schedule.NewEnqueuer. It runs no
-- client, and sees no arguments of jobs. For the names to replace see application.sql.
GRANT USAGE ON SCHEMA pgleases TO pgleases_app;
GRANT SELECT ON pgleases.schedule_groups TO pgleases_app;
GRANT INSERT (group_name, key, partition, kind, name, trigger, begins, rule, unique_key, args, priority, at, nonce, revision, due)
    ON pgleases.jobs TO pgleases_app;
GRANT SELECT (id, group_name, kind, unique_key, revision, due) ON pgleases.jobs TO pgleases_app;
-- For OnConflictReplace. So the role may also replace what waits in all groups.
GRANT UPDATE (key, partition, args, priority, at, due, revision, nonce, blocked_reason, blocked_since, began, attempts, outages,
    error, retry_at, crashes, crash_epoch, call, call_epoch, call_once, call_began, call_ends) ON pgleases.jobs TO pgleases_app;
GRANT SELECT, UPDATE ON SEQUENCE pgleases.notified TO pgleases_app;
-- For databases whose PUBLIC may not execute functions.
GRANT EXECUTE ON FUNCTION pgleases.schedule_enqueue_many, pgleases.schedule_enqueue, pgleases.schedule_enqueue_or_keep,
    pgleases.schedule_enqueue_or_replace, pgleases.schedule_clock, pgleases.schedule_partition, pgleases.schedule_wake, pgleases.partition_for, pgleases.notify,
    pgleases.notify_channel, pgleases.notify_due TO pgleases_app;
