-- application.sql: the rights of a role that runs clients. It owns no tables, and cannot drop, alter or empty one.
-- Replace pgleases_app by your role's name and pgleases by your schema's. Run the file as the tables' owner, again
-- after each migration. Open clients of such a role WithoutMigration.
GRANT USAGE ON SCHEMA pgleases TO pgleases_app;
GRANT SELECT ON pgleases.schema_version, pgleases.overrides, pgleases.events, pgleases.events_kept, pgleases.samples, pgleases.status, pgleases.members_status, pgleases.locks_status, pgleases.present_marker TO pgleases_app;
GRANT SELECT, INSERT, UPDATE, DELETE ON pgleases.clients, pgleases.identities, pgleases.members, pgleases.graces, pgleases.locks, pgleases.presences TO pgleases_app;
GRANT USAGE ON SEQUENCE pgleases.lock_tokens TO pgleases_app;
GRANT SELECT, UPDATE ON SEQUENCE pgleases.notified TO pgleases_app;
GRANT SELECT, INSERT, UPDATE ON pgleases.leases, pgleases.partitions TO pgleases_app;
GRANT SELECT, UPDATE ON pgleases.server TO pgleases_app;
GRANT SELECT, INSERT, UPDATE ON pgleases.boot_marker TO pgleases_app;
-- The actor of an event is an operator. Only the functions for operators write it.
REVOKE INSERT ON pgleases.events FROM pgleases_app;
GRANT INSERT (lease, cause, reason, from_id, to_id, partitions, generation) ON pgleases.events TO pgleases_app;
GRANT INSERT ON pgleases.samples TO pgleases_app;
-- PUBLIC may not execute trim_events, trim_samples and end_overrides, and in some databases no function at all.
GRANT EXECUTE ON FUNCTION pgleases.timeline, pgleases.tables_number, pgleases.present_database, pgleases.first_epoch, pgleases.settings, pgleases.on_aurora, pgleases.heartbeat, pgleases.heartbeat_answer, pgleases.many_changed, pgleases.session_leases, pgleases.join_lease, pgleases.register,
    pgleases.evict, pgleases.part, pgleases.tidy, pgleases.trim_events, pgleases.sample, pgleases.trim_samples, pgleases.end_overrides, pgleases.end_delays, pgleases.hold_liveness,
    pgleases.watch_liveness, pgleases.session_ends, pgleases.evict_disconnected, pgleases.read, pgleases.owners, pgleases.release, pgleases.begin_graces, pgleases.announce,
    pgleases.claim, pgleases.snapshot, pgleases.apply, pgleases.partition_for, pgleases.guard, pgleases.guard_many, pgleases.check_interval, pgleases.notify, pgleases.notify_channel, pgleases.notify_due, pgleases.lock_mutex, pgleases.lock_settings,
    pgleases.lock_same_incarnation, pgleases.lock_turn, pgleases.lock_acquire, pgleases.lock_queue, pgleases.lock_release,
    pgleases.lock_releases, pgleases.lock_look, pgleases.lock_sweep, pgleases.lock_list, pgleases.guard_lock TO pgleases_app;
