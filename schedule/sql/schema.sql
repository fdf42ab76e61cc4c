-- schema.sql: the tables and views of package schedule, with their comments. It runs first, then
-- the files of functions, in the schema with the engine's tables. It is idempotent: existing
-- objects stay unchanged. The tables that each run of a schedule writes have no CHECK: the server
-- parses it again for each statement, which took an eighth of the end of a run.
--
-- Types and operators are named with their schema, and names collate "C", as in the engine's files.

-- The only source of time of these files. STABLE, so that comparisons with it can use an index,
-- which clock_timestamp() would prevent. The views need this.
CREATE OR REPLACE FUNCTION pgleases.schedule_clock() RETURNS pg_catalog.timestamptz
LANGUAGE sql STABLE AS $pgleases_body$ SELECT pg_catalog.statement_timestamp() $pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_clock() IS 'The time that decides what is due.';

-- How long ago an instant was; null if the instant is unknown, infinite, or not of the years 1 to
-- 9999. So a statement over many rows does not fail because of one.
CREATE OR REPLACE FUNCTION pgleases.schedule_since(pg_catalog.timestamptz) RETURNS pg_catalog.interval
LANGUAGE sql STABLE AS $pgleases_body$
    SELECT CASE WHEN $1 OPERATOR(pg_catalog.>=) '0001-01-01 00:00:00+00'::pg_catalog.timestamptz
                 AND $1 OPERATOR(pg_catalog.<) '10000-01-01 00:00:00+00'::pg_catalog.timestamptz
           THEN pgleases.schedule_clock() OPERATOR(pg_catalog.-) $1 END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_since(pg_catalog.timestamptz) IS 'How long ago an instant was; null if that has no answer.';

CREATE TABLE IF NOT EXISTS pgleases.schedule_version (
    version  int NOT NULL,
    min_code int NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS schedule_version_one_row ON pgleases.schedule_version ((true));
ALTER TABLE pgleases.schedule_version REPLICA IDENTITY FULL;
COMMENT ON TABLE pgleases.schedule_version IS 'This table has one row, with the version of the tables of package schedule, and the oldest code that can use them.';
COMMENT ON COLUMN pgleases.schedule_version.version IS 'The version of these tables. Migrations only add.';
COMMENT ON COLUMN pgleases.schedule_version.min_code IS 'The oldest code that can run here, by the version of the tables that it knows.';

CREATE TABLE IF NOT EXISTS pgleases.schedule_groups (
    name       pg_catalog.text COLLATE pg_catalog."C" PRIMARY KEY,
    partitions int NOT NULL CHECK (partitions OPERATOR(pg_catalog.>=) 1 AND partitions OPERATOR(pg_catalog.<=) 65536)
);
COMMENT ON TABLE pgleases.schedule_groups IS 'The groups that have run.';
COMMENT ON COLUMN pgleases.schedule_groups.name IS 'The group''s name. The name of its lease is "schedule/" and this name.';
COMMENT ON COLUMN pgleases.schedule_groups.partitions IS 'Number of the lease''s partitions. It decides the partition of each key.';

-- Half of every page stays free for new versions of its rows.
CREATE TABLE IF NOT EXISTS pgleases.schedules (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    group_name   pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    name         pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    key          pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    partition    int NOT NULL,
    kind         pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    args         pg_catalog.jsonb NOT NULL,
    rule         pg_catalog.text NOT NULL,
    anchor       pg_catalog.timestamptz NOT NULL,
    missed       pg_catalog.text NOT NULL DEFAULT 'latest',
    overlap      pg_catalog.text NOT NULL DEFAULT 'skip',
    grace        pg_catalog.interval NOT NULL DEFAULT '0',
    jitter       pg_catalog.interval NOT NULL DEFAULT '0',
    pause_after  int,
    declared     boolean NOT NULL,
    cursor       pg_catalog.timestamptz NOT NULL,
    due          pg_catalog.timestamptz NOT NULL,
    cursor_local pg_catalog.timestamp,
    succeeded    pg_catalog.timestamptz,
    ran_from     pg_catalog.timestamptz,
    ran_until    pg_catalog.timestamptz,
    tick         pg_catalog.timestamptz,
    tick_local   pg_catalog.timestamp,
    tick_missed  bigint NOT NULL DEFAULT 0,
    began        pg_catalog.timestamptz,
    attempts     int NOT NULL DEFAULT 0,
    outages      int NOT NULL DEFAULT 0,
    error        pg_catalog.text,
    retry_at     pg_catalog.timestamptz,
    crashes      int NOT NULL DEFAULT 0,
    crash_epoch  bigint,
    call         pg_catalog.text COLLATE pg_catalog."C",
    call_epoch   bigint,
    call_once    boolean NOT NULL DEFAULT false,
    call_began   pg_catalog.timestamptz,
    call_ends    pg_catalog.timestamptz,
    failures     int NOT NULL DEFAULT 0,
    revision     bigint NOT NULL,
    paused_at    pg_catalog.timestamptz,
    blocked_reason pg_catalog.text,
    blocked_since  pg_catalog.timestamptz,
    registered   pg_catalog.timestamptz NOT NULL,
    nonce        pg_catalog.uuid NOT NULL DEFAULT pg_catalog.gen_random_uuid()
) WITH (fillfactor = 50);
CREATE UNIQUE INDEX IF NOT EXISTS schedules_by_name ON pgleases.schedules (group_name, name);
CREATE INDEX IF NOT EXISTS schedules_by_due ON pgleases.schedules (group_name, partition, due);
CREATE INDEX IF NOT EXISTS schedules_blocked ON pgleases.schedules (group_name, partition) WHERE blocked_reason IS NOT NULL;
CREATE INDEX IF NOT EXISTS schedules_that_fail ON pgleases.schedules (group_name, name) WHERE failures OPERATOR(pg_catalog.>) 0;
CREATE INDEX IF NOT EXISTS schedules_paused ON pgleases.schedules (group_name, name) WHERE paused_at IS NOT NULL;
COMMENT ON TABLE pgleases.schedules IS 'The schedules, with the cursor of each.';
COMMENT ON COLUMN pgleases.schedules.id IS 'Identifies this schedule. A later schedule of the same name has another id.';
COMMENT ON COLUMN pgleases.schedules.group_name IS 'The group whose processes run the schedule.';
COMMENT ON COLUMN pgleases.schedules.name IS 'The name, unique in the group.';
COMMENT ON COLUMN pgleases.schedules.key IS 'Runs of one key of a group never overlap, except a call outside of a transaction in a process that was cut off. The default is the name.';
COMMENT ON COLUMN pgleases.schedules.partition IS 'The key''s partition in the group''s lease. Its owner runs the schedule.';
COMMENT ON COLUMN pgleases.schedules.kind IS 'The name of the handler.';
COMMENT ON COLUMN pgleases.schedules.args IS 'The arguments of the handler.';
COMMENT ON COLUMN pgleases.schedules.rule IS 'The rule that says when it ticks.';
COMMENT ON COLUMN pgleases.schedules.anchor IS 'The instant from which a rule of Every counts: when the rule was set.';
COMMENT ON COLUMN pgleases.schedules.missed IS 'Which of the ticks run that passed while no process could run them: latest, none or all.';
COMMENT ON COLUMN pgleases.schedules.overlap IS 'What happens to ticks that pass during a run: skip or buffer.';
COMMENT ON COLUMN pgleases.schedules.grace IS 'How late a tick may begin. 0 means that there is no limit, unless missed does not allow late ticks.';
COMMENT ON COLUMN pgleases.schedules.jitter IS 'Each run is delayed by less than this.';
COMMENT ON COLUMN pgleases.schedules.pause_after IS 'After this number of consecutive failed ticks it is paused; null: never.';
COMMENT ON COLUMN pgleases.schedules.declared IS 'The code declares the schedule, and only processes with such code run it.';
COMMENT ON COLUMN pgleases.schedules.cursor IS 'Every tick up to this instant has its outcome in the history, and no later tick has.';
COMMENT ON COLUMN pgleases.schedules.cursor_local IS 'The local time in the rule''s zone at the cursor. It is null if the cursor is not a tick.';
COMMENT ON COLUMN pgleases.schedules.due IS 'When the owner runs it next: at the next tick, or sooner. It is infinity if it is paused, or has no further tick.';
COMMENT ON COLUMN pgleases.schedules.succeeded IS 'The last tick that succeeded. It is null if no tick did.';
COMMENT ON COLUMN pgleases.schedules.ran_from IS 'When the last run began. It is null if it has never run.';
COMMENT ON COLUMN pgleases.schedules.ran_until IS 'When the last run ended. It is null if it has never run.';
COMMENT ON COLUMN pgleases.schedules.tick IS 'The tick after the cursor that has begun and has no outcome yet. It is null if there is no such tick.';
COMMENT ON COLUMN pgleases.schedules.tick_local IS 'The local time of that tick in the rule''s zone.';
COMMENT ON COLUMN pgleases.schedules.tick_missed IS 'The number of ticks before it that it stands for.';
COMMENT ON COLUMN pgleases.schedules.began IS 'When the first attempt at that tick began. It is null if no attempt has begun.';
COMMENT ON COLUMN pgleases.schedules.attempts IS 'The failed attempts at that tick.';
COMMENT ON COLUMN pgleases.schedules.outages IS 'How many attempts in a row found that something is away. They do not count as failed.';
COMMENT ON COLUMN pgleases.schedules.error IS 'The error of the last failed attempt.';
COMMENT ON COLUMN pgleases.schedules.retry_at IS 'The next attempt begins no earlier. It is null if the first attempt is due or under way.';
COMMENT ON COLUMN pgleases.schedules.crashes IS 'The processes that crashed while they ran that tick, without the first, and with the one that runs it now as a crash suspect.';
COMMENT ON COLUMN pgleases.schedules.crash_epoch IS 'The epoch under which the last of these crashes was counted, until the run has ended.';
COMMENT ON COLUMN pgleases.schedules.call IS 'The mark of the call outside of a transaction that has begun. It is null if there is no such call.';
COMMENT ON COLUMN pgleases.schedules.call_epoch IS 'The epoch of that call.';
COMMENT ON COLUMN pgleases.schedules.call_once IS 'That call is made at most once, whatever the kind is now.';
COMMENT ON COLUMN pgleases.schedules.call_began IS 'When that call began.';
COMMENT ON COLUMN pgleases.schedules.call_ends IS 'When the timeout of that call ends.';
COMMENT ON COLUMN pgleases.schedules.failures IS 'The number of consecutive failed ticks.';
COMMENT ON COLUMN pgleases.schedules.revision IS 'Rises with every edit.';
COMMENT ON COLUMN pgleases.schedules.paused_at IS 'When it was paused. It is null if it is not paused.';
COMMENT ON COLUMN pgleases.schedules.blocked_reason IS 'Why the owner cannot run it, for example an unregistered kind. It is null if it can.';
COMMENT ON COLUMN pgleases.schedules.blocked_since IS 'When it became blocked. A tick does not become too late while its schedule is blocked.';
COMMENT ON COLUMN pgleases.schedules.registered IS 'When a process last stored or declared it: at its start, and once a day.';
COMMENT ON COLUMN pgleases.schedules.nonce IS 'Identifies it in idempotency keys, because a failover that has lost it may give its id to another.';

-- Live jobs only. The outcomes of jobs that have ended are in the history.
CREATE TABLE IF NOT EXISTS pgleases.jobs (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    group_name   pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    key          pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    partition    int NOT NULL,
    kind         pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    name         pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    trigger      pg_catalog.text NOT NULL,
    unique_key   pg_catalog.text COLLATE pg_catalog."C",
    args         pg_catalog.jsonb NOT NULL,
    priority     int NOT NULL,
    begins       pg_catalog.timestamptz,
    rule         pg_catalog.text,
    at           pg_catalog.timestamptz NOT NULL,
    due          pg_catalog.timestamptz NOT NULL,
    began        pg_catalog.timestamptz,
    attempts     int NOT NULL DEFAULT 0,
    outages      int NOT NULL DEFAULT 0,
    error        pg_catalog.text,
    retry_at     pg_catalog.timestamptz,
    crashes      int NOT NULL DEFAULT 0,
    crash_epoch  bigint,
    call         pg_catalog.text COLLATE pg_catalog."C",
    call_epoch   bigint,
    call_once    boolean NOT NULL DEFAULT false,
    call_began   pg_catalog.timestamptz,
    call_ends    pg_catalog.timestamptz,
    revision     bigint NOT NULL DEFAULT 1,
    blocked_reason pg_catalog.text,
    blocked_since  pg_catalog.timestamptz,
    nonce        pg_catalog.uuid NOT NULL DEFAULT pg_catalog.gen_random_uuid(),
    CONSTRAINT jobs_times CHECK (least(at, due) OPERATOR(pg_catalog.>=) '0001-01-01 00:00:00+00'::pg_catalog.timestamptz
        AND at OPERATOR(pg_catalog.<) '10000-01-01 00:00:00+00'::pg_catalog.timestamptz)
) WITH (fillfactor = 80);
CREATE UNIQUE INDEX IF NOT EXISTS jobs_by_unique_key ON pgleases.jobs (group_name, kind, unique_key) WHERE unique_key IS NOT NULL;
CREATE INDEX IF NOT EXISTS jobs_by_due ON pgleases.jobs (group_name, partition, priority, due);
CREATE INDEX IF NOT EXISTS jobs_blocked ON pgleases.jobs (group_name, partition) WHERE blocked_reason IS NOT NULL;
COMMENT ON TABLE pgleases.jobs IS 'The jobs that have not ended.';
COMMENT ON COLUMN pgleases.jobs.id IS 'Identifies this job. No later job has this id.';
COMMENT ON COLUMN pgleases.jobs.group_name IS 'The group whose processes run the job.';
COMMENT ON COLUMN pgleases.jobs.key IS 'Runs of one key of a group never overlap, except a call outside of a transaction in a process that was cut off. The default is a random key.';
COMMENT ON COLUMN pgleases.jobs.partition IS 'The key''s partition in the group''s lease. Its owner runs the job.';
COMMENT ON COLUMN pgleases.jobs.kind IS 'The name of the handler.';
COMMENT ON COLUMN pgleases.jobs.name IS 'Of an extra run the name of the schedule; otherwise the unique key, or empty.';
COMMENT ON COLUMN pgleases.jobs.trigger IS 'job: enqueued; manual, backfill: an extra run of a schedule; retry: a tick or job that runs once more.';
COMMENT ON COLUMN pgleases.jobs.unique_key IS 'At most one live job of the group and kind has it. It is null if it has no unique key.';
COMMENT ON COLUMN pgleases.jobs.args IS 'The arguments of the handler.';
COMMENT ON COLUMN pgleases.jobs.priority IS '0 to 3. Of the jobs that are due, those of the highest priority begin first.';
COMMENT ON COLUMN pgleases.jobs.begins IS 'Of a backfill or a retry, the start of the window that ends at the column at. It is null if there is no window.';
COMMENT ON COLUMN pgleases.jobs.rule IS 'Of an extra run, the rule that its schedule had, for its zone. It is null if it is not of a schedule.';
COMMENT ON COLUMN pgleases.jobs.at IS 'The time of WithTime or WithDelay; by default when it was enqueued.';
COMMENT ON COLUMN pgleases.jobs.due IS 'When the owner runs it next; infinity: never.';
COMMENT ON COLUMN pgleases.jobs.began IS 'When the first attempt at it began. It is null if no attempt has begun.';
COMMENT ON COLUMN pgleases.jobs.attempts IS 'The failed attempts at it.';
COMMENT ON COLUMN pgleases.jobs.outages IS 'How many attempts in a row found that something is away. They do not count as failed.';
COMMENT ON COLUMN pgleases.jobs.error IS 'The error of the last failed attempt.';
COMMENT ON COLUMN pgleases.jobs.retry_at IS 'The next attempt begins no earlier. It is null if the first attempt is due or under way.';
COMMENT ON COLUMN pgleases.jobs.crashes IS 'The processes that crashed while they ran it, without the first, and with the one that runs it now as a crash suspect.';
COMMENT ON COLUMN pgleases.jobs.crash_epoch IS 'The epoch under which the last of these crashes was counted, until the run has ended.';
COMMENT ON COLUMN pgleases.jobs.call IS 'The mark of the call outside of a transaction that has begun. It is null if there is no such call.';
COMMENT ON COLUMN pgleases.jobs.call_epoch IS 'The epoch of that call.';
COMMENT ON COLUMN pgleases.jobs.call_once IS 'That call is made at most once, whatever the kind is now.';
COMMENT ON COLUMN pgleases.jobs.call_began IS 'When that call began.';
COMMENT ON COLUMN pgleases.jobs.call_ends IS 'When the timeout of that call ends.';
COMMENT ON COLUMN pgleases.jobs.revision IS 'Rises when the job is replaced. It is 0 if it repeats a tick.';
COMMENT ON COLUMN pgleases.jobs.blocked_reason IS 'Why the owner cannot run it. It is null if it can.';
COMMENT ON COLUMN pgleases.jobs.blocked_since IS 'When it became blocked.';
COMMENT ON COLUMN pgleases.jobs.nonce IS 'Identifies it in idempotency keys, because a failover that has lost it may give its id to another. A retry has that of the job or schedule that it repeats; a job that is replaced gets another.';

CREATE TABLE IF NOT EXISTS pgleases.schedule_slots (
    group_name pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    kind       pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    slot       int NOT NULL,
    partition  int,
    epoch      bigint,
    run        pg_catalog.text COLLATE pg_catalog."C",
    turn       bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (group_name, kind, slot, turn)
);
COMMENT ON TABLE pgleases.schedule_slots IS 'The slots of each kind with a limit, as many as the limit. A run in a transaction locks the row of a slot; any other run writes itself into one.';
COMMENT ON COLUMN pgleases.schedule_slots.group_name IS 'The group.';
COMMENT ON COLUMN pgleases.schedule_slots.kind IS 'The kind.';
COMMENT ON COLUMN pgleases.schedule_slots.slot IS 'The number of the slot, from 0. A process takes only slots below its own limit.';
COMMENT ON COLUMN pgleases.schedule_slots.partition IS 'The partition of a call outside of a transaction. It is null if no such call has the slot.';
COMMENT ON COLUMN pgleases.schedule_slots.epoch IS 'The epoch of that partition. When its ownership has ended, the slot is free.';
COMMENT ON COLUMN pgleases.schedule_slots.run IS 'The call, as in the column call of the schedule or job. It is null if no such call has the slot.';
COMMENT ON COLUMN pgleases.schedule_slots.turn IS 'How often the slot was taken or freed by such calls. The newest version of a row has the highest turn and is found first, so versions that an old snapshot keeps are not read.';

CREATE TABLE IF NOT EXISTS pgleases.schedule_owners (
    group_name pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    partition  int NOT NULL,
    begun      bigint NOT NULL,
    ended      bigint NOT NULL DEFAULT 0,
    crashed    boolean NOT NULL,
    PRIMARY KEY (group_name, partition)
) WITH (fillfactor = 50);
COMMENT ON TABLE pgleases.schedule_owners IS 'The last owner of each partition that ran something in it, so that the next owner knows whether that owner crashed.';
COMMENT ON COLUMN pgleases.schedule_owners.group_name IS 'The group.';
COMMENT ON COLUMN pgleases.schedule_owners.partition IS 'The partition of the group''s lease.';
COMMENT ON COLUMN pgleases.schedule_owners.begun IS 'The epoch of the last owner that began to run something.';
COMMENT ON COLUMN pgleases.schedule_owners.ended IS 'The epoch of the last owner whose runs have all ended.';
COMMENT ON COLUMN pgleases.schedule_owners.crashed IS 'The owner before the one in begun crashed.';

CREATE TABLE IF NOT EXISTS pgleases.history (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    source     pg_catalog.text NOT NULL DEFAULT 'tick',
    schedule   bigint,
    job        bigint,
    group_name pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    name       pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    kind       pg_catalog.text COLLATE pg_catalog."C" NOT NULL DEFAULT '',
    since      pg_catalog.timestamptz NOT NULL,
    until      pg_catalog.timestamptz NOT NULL,
    ticks      bigint NOT NULL,
    outcome    pg_catalog.text NOT NULL,
    error      pg_catalog.text,
    attempts   int NOT NULL DEFAULT 0,
    epoch      bigint,
    started_at pg_catalog.timestamptz,
    ended_at   pg_catalog.timestamptz NOT NULL,
    key        pg_catalog.text COLLATE pg_catalog."C",
    args       pg_catalog.jsonb,
    priority   int,
    unique_key pg_catalog.text COLLATE pg_catalog."C",
    begins     pg_catalog.timestamptz,
    rule       pg_catalog.text,
    nonce      pg_catalog.uuid,
    revision   bigint,
    retried    bigint
);
CREATE INDEX IF NOT EXISTS history_by_name ON pgleases.history (group_name, name, id);
CREATE INDEX IF NOT EXISTS history_by_job ON pgleases.history (job) WHERE job IS NOT NULL;
CREATE INDEX IF NOT EXISTS history_retried ON pgleases.history (retried) WHERE retried IS NOT NULL;
CREATE INDEX IF NOT EXISTS history_canceled ON pgleases.history (schedule, since) WHERE outcome OPERATOR(pg_catalog.=) 'canceled';
CREATE INDEX IF NOT EXISTS history_failed ON pgleases.history (ended_at) WHERE outcome OPERATOR(pg_catalog.=) ANY ('{failed,unknown}'::pg_catalog.text[]);
CREATE INDEX IF NOT EXISTS history_by_time ON pgleases.history USING brin (ended_at);
COMMENT ON TABLE pgleases.history IS 'The outcomes of ticks and jobs. One row for each run, and one for ticks that passed together without a run.';
COMMENT ON COLUMN pgleases.history.id IS 'Rises with time.';
COMMENT ON COLUMN pgleases.history.source IS 'tick: the row is of a schedule''s ticks; extra: of an extra run of a schedule; job: of a job that was enqueued.';
COMMENT ON COLUMN pgleases.history.schedule IS 'The schedule''s id. It is null if the row is of a job.';
COMMENT ON COLUMN pgleases.history.job IS 'The job''s id. It is null if the row is of a schedule''s ticks. For a job, since and until are the job''s time at, and ticks is 1.';
COMMENT ON COLUMN pgleases.history.group_name IS 'The group.';
COMMENT ON COLUMN pgleases.history.name IS 'The name of the schedule or job.';
COMMENT ON COLUMN pgleases.history.kind IS 'The kind of the schedule or job at that time.';
COMMENT ON COLUMN pgleases.history.since IS 'The row covers the ticks after this instant. No tick is between until of the row before and it.';
COMMENT ON COLUMN pgleases.history.until IS 'The tick, or the last of the ticks that the row covers.';
COMMENT ON COLUMN pgleases.history.ticks IS 'The number of ticks that the row covers.';
COMMENT ON COLUMN pgleases.history.outcome IS 'succeeded; failed; unknown: a handler of AtMostOnce was called, and its result is not known; missed: too late, by the policy for late ticks; skipped: the previous run was still under way; canceled: by an edit, a resume, a deletion or a cancel.';
COMMENT ON COLUMN pgleases.history.error IS 'The error of a failure. Of what an operator canceled, the actor and the reason.';
COMMENT ON COLUMN pgleases.history.attempts IS 'The attempts of a run.';
COMMENT ON COLUMN pgleases.history.epoch IS 'The epoch of its partition. It is null if there is no run.';
COMMENT ON COLUMN pgleases.history.started_at IS 'When the run began. It is null if there is no run.';
COMMENT ON COLUMN pgleases.history.ended_at IS 'When this row was written.';
COMMENT ON COLUMN pgleases.history.key IS 'Of a job that did not succeed, its key. A retry needs this and the following columns.';
COMMENT ON COLUMN pgleases.history.args IS 'Of a job that did not succeed, its arguments.';
COMMENT ON COLUMN pgleases.history.priority IS 'Of a job that did not succeed, its priority.';
COMMENT ON COLUMN pgleases.history.unique_key IS 'Of a job that did not succeed, its unique key. It is null if it had no such key.';
COMMENT ON COLUMN pgleases.history.begins IS 'Of a tick or an extra run that did not succeed, the start of the window that ends at until. It is null if there is no window.';
COMMENT ON COLUMN pgleases.history.rule IS 'Of a tick or an extra run that did not succeed, the rule that its schedule had.';
COMMENT ON COLUMN pgleases.history.nonce IS 'Of a job that did not succeed, the value that identifies it in idempotency keys.';
COMMENT ON COLUMN pgleases.history.revision IS 'Of a job that did not succeed, its revision.';
COMMENT ON COLUMN pgleases.history.retried IS 'The job that runs it again. It is null if it was not retried.';

-- A run in a transaction changes no row before its end, so other sessions cannot see it in the
-- tables. To show the run it takes an advisory lock. The lock is shared, and no session waits for
-- it: see schedule_open.
CREATE OR REPLACE VIEW pgleases.schedule_runs AS
SELECT (l.classid::bigint OPERATOR(pg_catalog.<<) 32) OPERATOR(pg_catalog.|) l.objid::bigint AS run,
       pg_catalog.min(l.pid) AS backend
FROM pg_catalog.pg_locks AS l
WHERE l.locktype OPERATOR(pg_catalog.=) 'advisory' AND l.objsubid OPERATOR(pg_catalog.=) 1::smallint AND l.mode OPERATOR(pg_catalog.=) 'ShareLock'
  AND l.database OPERATOR(pg_catalog.=) (SELECT d.oid FROM pg_catalog.pg_database AS d WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database())
GROUP BY l.classid, l.objid;
COMMENT ON VIEW pgleases.schedule_runs IS 'Part of schedules_status and jobs_status: the shared advisory locks of the database, including those of transactions of running handlers.';
COMMENT ON COLUMN pgleases.schedule_runs.run IS 'The key of the lock. Of a run: the hash of the id of the schedule or job, seeded with the table.';
COMMENT ON COLUMN pgleases.schedule_runs.backend IS 'The process of the server that has the lock.';

CREATE OR REPLACE VIEW pgleases.schedules_status AS
SELECT s.group_name,
       s.name,
       s.kind,
       s.key,
       s.partition,
       o.owner,
       s.rule,
       e.state,
       CASE e.state
           WHEN 'paused' THEN coalesce(
               (SELECT pg_catalog.concat('by ', q.actor, ': ', q.reason) FROM pgleases.events AS q
                WHERE q.lease OPERATOR(pg_catalog.=) ('schedule/' OPERATOR(pg_catalog.||) s.group_name)
                    AND q.name OPERATOR(pg_catalog.=) s.name AND q.at OPERATOR(pg_catalog.>=) s.paused_at
                    AND q.cause OPERATOR(pg_catalog.=) 'schedule paused' ORDER BY q.at DESC LIMIT 1),
               CASE WHEN s.failures OPERATOR(pg_catalog.>=) s.pause_after
                    THEN pg_catalog.format('%s consecutive ticks failed', s.failures) END)
           WHEN 'blocked' THEN s.blocked_reason
           WHEN 'retrying' THEN pg_catalog.format(CASE WHEN s.outages OPERATOR(pg_catalog.>) 0
                   THEN 'its kind is paused, because something that the handler needs is away: ' ELSE '' END OPERATOR(pg_catalog.||) 'attempt %s is at %s', s.attempts OPERATOR(pg_catalog.+) 1, pg_catalog.to_char(pg_catalog.timezone('UTC', s.due), 'YYYY-MM-DD"T"HH24:MI:SS"Z"'))
           WHEN 'due' THEN CASE WHEN o.owner IS NULL THEN 'its partition has no owner'
               WHEN s.outages OPERATOR(pg_catalog.>) 0 THEN 'its kind is paused, because something that the handler needs is away'
               WHEN (p.owner OPERATOR(pg_catalog.=) ANY (SELECT c.session FROM pgleases.clients AS c WHERE c.expires_at OPERATOR(pg_catalog.>) pg_catalog.statement_timestamp())) IS NOT TRUE
                   THEN 'its owner is not live' -- not by clock_timestamp(), because with a volatile function PostgreSQL would compute the view for all rows
               WHEN s.due OPERATOR(pg_catalog.<) (pgleases.schedule_clock() OPERATOR(pg_catalog.-) interval '10 seconds') THEN 'its owner is busy, or it waits for a run of its key or for the limit of its kind' END
       END AS why,
       s.succeeded,
       (SELECT h.outcome FROM pgleases.history AS h
        WHERE h.group_name OPERATOR(pg_catalog.=) s.group_name AND h.name OPERATOR(pg_catalog.=) s.name AND h.job IS NULL
            AND h.schedule OPERATOR(pg_catalog.=) s.id
        ORDER BY h.id DESC LIMIT 1) AS last_outcome,
       s.ran_from,
       s.ran_until,
       s.due,
       CASE WHEN e.state OPERATOR(pg_catalog.=) 'paused' THEN NULL
            WHEN s.blocked_reason IS NOT NULL THEN pgleases.schedule_since(s.blocked_since)
            WHEN s.tick IS NOT NULL THEN pgleases.schedule_since(s.tick)
            WHEN s.due OPERATOR(pg_catalog.<=) pgleases.schedule_clock() THEN pgleases.schedule_since(s.due)
       END AS lateness,
       s.failures,
       s.attempts,
       s.crashes,
       coalesce(s.error,
                CASE WHEN s.failures OPERATOR(pg_catalog.>) 0 THEN
                    (SELECT h.error FROM pgleases.history AS h
                     WHERE h.group_name OPERATOR(pg_catalog.=) s.group_name AND h.name OPERATOR(pg_catalog.=) s.name AND h.schedule OPERATOR(pg_catalog.=) s.id
                       AND h.job IS NULL AND h.outcome OPERATOR(pg_catalog.=) 'failed'
                     ORDER BY h.id DESC LIMIT 1) END) AS error,
       r.backend,
       s.paused_at,
       s.blocked_reason,
       s.blocked_since,
       s.declared,
       s.registered,
       s.args,
       s.missed,
       s.overlap,
       s.grace,
       s.jitter,
       s.pause_after,
       s.id,
       CASE WHEN r.backend IS NOT NULL THEN (SELECT a.xact_start FROM pg_catalog.pg_stat_get_activity(r.backend) AS a)
            WHEN e.state OPERATOR(pg_catalog.=) 'running' THEN s.call_began END AS started_at
FROM pgleases.schedules AS s
LEFT JOIN pgleases.partitions AS p ON p.lease OPERATOR(pg_catalog.=) ('schedule/' OPERATOR(pg_catalog.||) s.group_name)
    AND p.partition OPERATOR(pg_catalog.=) s.partition
LEFT JOIN pgleases.schedule_runs AS r ON r.run OPERATOR(pg_catalog.=) pg_catalog.hashint8extended(s.id, s.tableoid::bigint)
CROSS JOIN LATERAL (
    SELECT CASE WHEN p.owner IS NOT NULL THEN p.owner_id END AS owner
) AS o
CROSS JOIN LATERAL (
    SELECT CASE WHEN r.backend IS NOT NULL THEN 'running'
                WHEN o.owner IS NOT NULL AND s.call IS NOT NULL AND s.call_epoch OPERATOR(pg_catalog.=) p.epoch THEN 'running'
                WHEN s.paused_at IS NOT NULL THEN 'paused'
                WHEN s.blocked_reason IS NOT NULL THEN 'blocked'
                WHEN s.due OPERATOR(pg_catalog.<=) pgleases.schedule_clock() THEN 'due'
                WHEN s.tick IS NOT NULL THEN 'retrying'
                ELSE 'planned' END AS state
) AS e;
COMMENT ON VIEW pgleases.schedules_status IS 'One row for each schedule, with its owner, its state and the reason, and its cursor. If there are many schedules, a query is fast with a condition on group_name and name, or on group_name, partition and due, or with blocked_reason or paused_at IS NOT NULL, or with failures > 0.';
COMMENT ON COLUMN pgleases.schedules_status.group_name IS 'The group whose processes run the schedule.';
COMMENT ON COLUMN pgleases.schedules_status.name IS 'The name, unique in the group.';
COMMENT ON COLUMN pgleases.schedules_status.kind IS 'The name of the handler.';
COMMENT ON COLUMN pgleases.schedules_status.key IS 'Runs of one key of a group never overlap, except a call outside of a transaction in a process that was cut off.';
COMMENT ON COLUMN pgleases.schedules_status.partition IS 'The key''s partition in the lease schedule/GROUP.';
COMMENT ON COLUMN pgleases.schedules_status.owner IS 'The client ID of that partition''s owner, which runs the schedule. It is null if there is no owner.';
COMMENT ON COLUMN pgleases.schedules_status.rule IS 'The rule that says when it ticks.';
COMMENT ON COLUMN pgleases.schedules_status.state IS 'running; paused; blocked: its owner cannot run it; due: it begins as soon as its owner has room; retrying: its tick runs again at due; planned: not due yet.';
COMMENT ON COLUMN pgleases.schedules_status.why IS 'The reason for the state, if it is known. It names the operator who paused a schedule for as long as the event is kept.';
COMMENT ON COLUMN pgleases.schedules_status.succeeded IS 'The last tick that succeeded. It is null if no tick did.';
COMMENT ON COLUMN pgleases.schedules_status.last_outcome IS 'The outcome of the last tick with an outcome. It is null if no tick has one, or it is no longer in the history.';
COMMENT ON COLUMN pgleases.schedules_status.ran_from IS 'When the last run that has ended began. It is null if no run has ended.';
COMMENT ON COLUMN pgleases.schedules_status.ran_until IS 'When that run ended.';
COMMENT ON COLUMN pgleases.schedules_status.due IS 'When the owner runs it next, usually at the next tick. It is infinity if it is paused, or has no further tick.';
COMMENT ON COLUMN pgleases.schedules_status.lateness IS 'How long it has been blocked, or its tick has been due, run included. It is null if it is not due.';
COMMENT ON COLUMN pgleases.schedules_status.failures IS 'The number of consecutive failed ticks.';
COMMENT ON COLUMN pgleases.schedules_status.attempts IS 'The failed attempts at the current tick.';
COMMENT ON COLUMN pgleases.schedules_status.crashes IS 'The processes that crashed while they ran that tick, without the first, and with the one that runs it now as a crash suspect.';
COMMENT ON COLUMN pgleases.schedules_status.error IS 'The error of the last failed attempt; otherwise, if failures is not 0, of the last failed tick.';
COMMENT ON COLUMN pgleases.schedules_status.backend IS 'Of a run in a transaction, the pid in pg_stat_activity. It is null if there is no such run.';
COMMENT ON COLUMN pgleases.schedules_status.paused_at IS 'When it was paused. It is null if it is not paused.';
COMMENT ON COLUMN pgleases.schedules_status.blocked_reason IS 'Why the owner cannot run it. It is null if it can.';
COMMENT ON COLUMN pgleases.schedules_status.blocked_since IS 'When it became blocked. A tick does not become too late while its schedule is blocked.';
COMMENT ON COLUMN pgleases.schedules_status.declared IS 'The code declares the schedule, and only processes with such code run it.';
COMMENT ON COLUMN pgleases.schedules_status.registered IS 'When a process last stored or declared it: at its start, and once a day.';
COMMENT ON COLUMN pgleases.schedules_status.args IS 'The arguments of the handler.';
COMMENT ON COLUMN pgleases.schedules_status.missed IS 'Which of the ticks run that passed while no process could run them: latest, none or all.';
COMMENT ON COLUMN pgleases.schedules_status.overlap IS 'What happens to ticks that pass during a run: skip or buffer.';
COMMENT ON COLUMN pgleases.schedules_status.grace IS 'How late a tick may begin. 0 means that there is no limit, unless missed does not allow late ticks.';
COMMENT ON COLUMN pgleases.schedules_status.jitter IS 'Each run is delayed by less than this.';
COMMENT ON COLUMN pgleases.schedules_status.pause_after IS 'After this number of consecutive failed ticks it is paused; null: never.';
COMMENT ON COLUMN pgleases.schedules_status.id IS 'Identifies this schedule. A later schedule of the same name has another id.';
COMMENT ON COLUMN pgleases.schedules_status.started_at IS 'When the run under way began. It is null if there is no run, or it is not visible to this role.';

CREATE OR REPLACE VIEW pgleases.jobs_status AS
SELECT j.id,
       j.group_name,
       j.kind,
       j.name,
       j.trigger,
       j.key,
       j.partition,
       o.owner,
       j.priority,
       e.state,
       CASE e.state
           WHEN 'blocked' THEN j.blocked_reason
           WHEN 'retrying' THEN pg_catalog.format(CASE WHEN j.outages OPERATOR(pg_catalog.>) 0
                   THEN 'its kind is paused, because something that the handler needs is away: ' ELSE '' END OPERATOR(pg_catalog.||) 'attempt %s is at %s', j.attempts OPERATOR(pg_catalog.+) 1, pg_catalog.to_char(pg_catalog.timezone('UTC', j.due), 'YYYY-MM-DD"T"HH24:MI:SS"Z"'))
           WHEN 'due' THEN CASE WHEN o.owner IS NULL THEN 'its partition has no owner'
               WHEN j.outages OPERATOR(pg_catalog.>) 0 THEN 'its kind is paused, because something that the handler needs is away'
               WHEN (p.owner OPERATOR(pg_catalog.=) ANY (SELECT c.session FROM pgleases.clients AS c WHERE c.expires_at OPERATOR(pg_catalog.>) pg_catalog.statement_timestamp())) IS NOT TRUE
                   THEN 'its owner is not live' -- not by clock_timestamp(), because with a volatile function PostgreSQL would compute the view for all rows
               WHEN j.due OPERATOR(pg_catalog.<) (pgleases.schedule_clock() OPERATOR(pg_catalog.-) interval '10 seconds') THEN 'its owner is busy, or it waits for a run of its key or for the limit of its kind' END
       END AS why,
       j.at,
       j.due,
       CASE WHEN j.blocked_reason IS NOT NULL THEN pgleases.schedule_since(j.blocked_since)
            WHEN j.began IS NOT NULL OR j.due OPERATOR(pg_catalog.<=) pgleases.schedule_clock() THEN pgleases.schedule_since(j.at)
       END AS lateness,
       j.attempts,
       j.crashes,
       j.error,
       r.backend,
       j.blocked_reason,
       j.blocked_since,
       j.unique_key,
       j.begins,
       j.args,
       CASE WHEN r.backend IS NOT NULL THEN (SELECT a.xact_start FROM pg_catalog.pg_stat_get_activity(r.backend) AS a)
            WHEN e.state OPERATOR(pg_catalog.=) 'running' THEN j.call_began END AS started_at
FROM pgleases.jobs AS j
LEFT JOIN pgleases.partitions AS p ON p.lease OPERATOR(pg_catalog.=) ('schedule/' OPERATOR(pg_catalog.||) j.group_name)
    AND p.partition OPERATOR(pg_catalog.=) j.partition
LEFT JOIN pgleases.schedule_runs AS r ON r.run OPERATOR(pg_catalog.=) pg_catalog.hashint8extended(j.id, j.tableoid::bigint)
CROSS JOIN LATERAL (
    SELECT CASE WHEN p.owner IS NOT NULL THEN p.owner_id END AS owner
) AS o
CROSS JOIN LATERAL (
    SELECT CASE WHEN r.backend IS NOT NULL THEN 'running'
                WHEN o.owner IS NOT NULL AND j.call IS NOT NULL AND j.call_epoch OPERATOR(pg_catalog.=) p.epoch THEN 'running'
                WHEN j.blocked_reason IS NOT NULL THEN 'blocked'
                WHEN j.due OPERATOR(pg_catalog.<=) pgleases.schedule_clock() THEN 'due'
                WHEN j.began IS NOT NULL THEN 'retrying'
                ELSE 'planned' END AS state
) AS e;
COMMENT ON VIEW pgleases.jobs_status IS 'One row for each job that has not ended, with its owner, its state and the reason. If there are many jobs, a query is fast with a condition on id, on group_name, partition, priority and due, or with blocked_reason IS NOT NULL.';
COMMENT ON COLUMN pgleases.jobs_status.id IS 'Identifies this job. No later job has this id.';
COMMENT ON COLUMN pgleases.jobs_status.group_name IS 'The group whose processes run the job.';
COMMENT ON COLUMN pgleases.jobs_status.kind IS 'The name of the handler.';
COMMENT ON COLUMN pgleases.jobs_status.name IS 'Of an extra run the name of the schedule; otherwise the unique key, or empty.';
COMMENT ON COLUMN pgleases.jobs_status.trigger IS 'job: enqueued; manual, backfill: an extra run of a schedule; retry: a tick or job that runs once more.';
COMMENT ON COLUMN pgleases.jobs_status.key IS 'Runs of one key of a group never overlap, except a call outside of a transaction in a process that was cut off.';
COMMENT ON COLUMN pgleases.jobs_status.partition IS 'The key''s partition in the lease schedule/GROUP.';
COMMENT ON COLUMN pgleases.jobs_status.owner IS 'The client ID of that partition''s owner, which runs the job. It is null if there is no owner.';
COMMENT ON COLUMN pgleases.jobs_status.priority IS '0 to 3. Of the jobs that are due, those of the highest priority begin first.';
COMMENT ON COLUMN pgleases.jobs_status.state IS 'running; blocked: its owner cannot run it; due: it begins as soon as its owner has room; retrying: it runs again at due; planned: not due yet.';
COMMENT ON COLUMN pgleases.jobs_status.why IS 'The reason for the state, if it is known.';
COMMENT ON COLUMN pgleases.jobs_status.at IS 'The time of WithTime or WithDelay; by default when it was enqueued.';
COMMENT ON COLUMN pgleases.jobs_status.due IS 'When the owner runs it next.';
COMMENT ON COLUMN pgleases.jobs_status.lateness IS 'How long it has been blocked or due, run included. It is null if it is not due.';
COMMENT ON COLUMN pgleases.jobs_status.attempts IS 'The failed attempts.';
COMMENT ON COLUMN pgleases.jobs_status.crashes IS 'The processes that crashed while they ran it, without the first, and with the one that runs it now as a crash suspect.';
COMMENT ON COLUMN pgleases.jobs_status.error IS 'The error of the last failed attempt.';
COMMENT ON COLUMN pgleases.jobs_status.backend IS 'Of a run in a transaction, the pid in pg_stat_activity. It is null if there is no such run.';
COMMENT ON COLUMN pgleases.jobs_status.blocked_reason IS 'Why the owner cannot run it. It is null if it can.';
COMMENT ON COLUMN pgleases.jobs_status.blocked_since IS 'When it became blocked.';
COMMENT ON COLUMN pgleases.jobs_status.unique_key IS 'At most one live job of the group and kind has it. It is null if it has no unique key.';
COMMENT ON COLUMN pgleases.jobs_status.begins IS 'Of a backfill or a retry, the start of the window that ends at the column at. It is null if there is no window.';
COMMENT ON COLUMN pgleases.jobs_status.args IS 'The arguments of the handler.';
COMMENT ON COLUMN pgleases.jobs_status.started_at IS 'When the run under way began. It is null if there is no run, or it is not visible to this role.';
