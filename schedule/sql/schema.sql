-- schema.sql: the tables and views of package schedule, with their comments. It runs first, the
-- files of functions after it, in the schema that has the engine's tables. Idempotent: what exists
-- stays as it is.
--
-- Types and operators are named with their schema, and names collate "C", as in the engine's files.

-- All that these files know of the time. STABLE, so that an index serves comparisons with it, which
-- clock_timestamp() would prevent. The views need it.
CREATE OR REPLACE FUNCTION pgleases.schedule_clock() RETURNS pg_catalog.timestamptz
LANGUAGE sql STABLE AS $pgleases_body$ SELECT pg_catalog.statement_timestamp() $pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_clock() IS 'The time that decides what is due.';

CREATE TABLE IF NOT EXISTS pgleases.schedule_version (
    version  int NOT NULL,
    min_code int NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS schedule_version_one_row ON pgleases.schedule_version ((true));
ALTER TABLE pgleases.schedule_version REPLICA IDENTITY FULL;
COMMENT ON TABLE pgleases.schedule_version IS 'One row: which version of the tables of package schedule this is, and which code can serve it.';
COMMENT ON COLUMN pgleases.schedule_version.version IS 'Version of these tables. Migrations only add.';
COMMENT ON COLUMN pgleases.schedule_version.min_code IS 'The oldest code that can run here, by the version for which it was written.';

CREATE TABLE IF NOT EXISTS pgleases.schedule_groups (
    name       pg_catalog.text COLLATE pg_catalog."C" PRIMARY KEY,
    partitions int NOT NULL
);
COMMENT ON TABLE pgleases.schedule_groups IS 'The groups of schedules that have been run.';
COMMENT ON COLUMN pgleases.schedule_groups.name IS 'The group''s name; that of its lease is the same behind "schedule/".';
COMMENT ON COLUMN pgleases.schedule_groups.partitions IS 'Number of the lease''s partitions, from which the partitions of its schedules are computed.';

CREATE SEQUENCE IF NOT EXISTS pgleases.schedule_notified MINVALUE 0;
COMMENT ON SEQUENCE pgleases.schedule_notified IS 'When the last notification was sent that something was enqueued, and for which groups. A sequence, because it is locked for no time, and not undone.';

-- Half of every page stays free for the new versions of its rows.
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
    policy       pg_catalog.jsonb NOT NULL,
    declared     boolean NOT NULL,
    cursor       pg_catalog.timestamptz NOT NULL,
    due          pg_catalog.timestamptz NOT NULL,
    cursor_local pg_catalog.timestamp,
    succeeded    pg_catalog.timestamptz,
    ran_from     pg_catalog.timestamptz,
    ran_until    pg_catalog.timestamptz,
    trying       pg_catalog.jsonb,
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
COMMENT ON TABLE pgleases.schedules IS 'The schedules, and how far each has come.';
COMMENT ON COLUMN pgleases.schedules.id IS 'Names this schedule and no later one of its name.';
COMMENT ON COLUMN pgleases.schedules.group_name IS 'The group, whose processes run it.';
COMMENT ON COLUMN pgleases.schedules.name IS 'Its name in the group.';
COMMENT ON COLUMN pgleases.schedules.key IS 'Transactional runs under one key of a group never overlap in effect. By default the name.';
COMMENT ON COLUMN pgleases.schedules.partition IS 'The partition of the group''s lease to which the key belongs: its owner runs the schedule.';
COMMENT ON COLUMN pgleases.schedules.kind IS 'Which handler runs.';
COMMENT ON COLUMN pgleases.schedules.args IS 'The arguments of the handler.';
COMMENT ON COLUMN pgleases.schedules.rule IS 'When it runs.';
COMMENT ON COLUMN pgleases.schedules.anchor IS 'From where a rule of a fixed distance counts: the instant at which the rule was given.';
COMMENT ON COLUMN pgleases.schedules.policy IS 'Its options: what becomes of late ticks, and others.';
COMMENT ON COLUMN pgleases.schedules.declared IS 'The code declares it; only processes whose code does run it.';
COMMENT ON COLUMN pgleases.schedules.cursor IS 'Every tick up to this instant has its outcome in the history; none after it has.';
COMMENT ON COLUMN pgleases.schedules.cursor_local IS 'What the clocks of the rule''s zone showed, if the cursor is a tick; null: it is none.';
COMMENT ON COLUMN pgleases.schedules.due IS 'When its owner runs it next: at its next tick, or sooner; infinity: it is paused or has no further tick.';
COMMENT ON COLUMN pgleases.schedules.succeeded IS 'The last tick that succeeded; null: there is none.';
COMMENT ON COLUMN pgleases.schedules.ran_from IS 'When the last run began; null: there was none.';
COMMENT ON COLUMN pgleases.schedules.ran_until IS 'When the last run ended; null: there was none.';
COMMENT ON COLUMN pgleases.schedules.trying IS 'The tick after the cursor that was begun and has no outcome yet: how many attempts failed, when it runs again; null: there is none.';
COMMENT ON COLUMN pgleases.schedules.failures IS 'How many consecutive ticks failed.';
COMMENT ON COLUMN pgleases.schedules.revision IS 'Rises with every edit.';
COMMENT ON COLUMN pgleases.schedules.paused_at IS 'When it was paused; null: it is not.';
COMMENT ON COLUMN pgleases.schedules.blocked_reason IS 'Why its owner cannot run it, for example a kind that it does not know; null: it can.';
COMMENT ON COLUMN pgleases.schedules.blocked_since IS 'Since when; the time from there on makes no tick late.';
COMMENT ON COLUMN pgleases.schedules.registered IS 'When a process last put or declared it: at its start, and each day.';
COMMENT ON COLUMN pgleases.schedules.nonce IS 'Names it in idempotency keys: after a failover that has lost it, its id is given to another.';

-- Living rows only: what has ended is in the history.
CREATE TABLE IF NOT EXISTS pgleases.jobs (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    group_name  pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    key         pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    partition   int NOT NULL,
    kind        pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    name        pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    trigger     pg_catalog.text NOT NULL,
    unique_key  pg_catalog.text COLLATE pg_catalog."C",
    args        pg_catalog.jsonb NOT NULL,
    priority    int NOT NULL,
    begins      pg_catalog.timestamptz,
    at          pg_catalog.timestamptz NOT NULL,
    due         pg_catalog.timestamptz NOT NULL,
    trying      pg_catalog.jsonb,
    revision    bigint NOT NULL DEFAULT 1,
    blocked_reason pg_catalog.text,
    blocked_since pg_catalog.timestamptz,
    nonce       pg_catalog.uuid NOT NULL DEFAULT pg_catalog.gen_random_uuid()
) WITH (fillfactor = 80);
CREATE UNIQUE INDEX IF NOT EXISTS jobs_by_unique_key ON pgleases.jobs (group_name, kind, unique_key) WHERE unique_key IS NOT NULL;
CREATE INDEX IF NOT EXISTS jobs_by_due ON pgleases.jobs (group_name, partition, priority, due);
CREATE INDEX IF NOT EXISTS jobs_blocked ON pgleases.jobs (group_name, partition) WHERE blocked_reason IS NOT NULL;
COMMENT ON TABLE pgleases.jobs IS 'The jobs that have not ended.';
COMMENT ON COLUMN pgleases.jobs.id IS 'Names this job and no later one.';
COMMENT ON COLUMN pgleases.jobs.group_name IS 'The group, whose processes run it.';
COMMENT ON COLUMN pgleases.jobs.key IS 'Transactional runs under one key of a group never overlap in effect. By default a random one.';
COMMENT ON COLUMN pgleases.jobs.partition IS 'The partition of the group''s lease to which the key belongs: its owner runs the job.';
COMMENT ON COLUMN pgleases.jobs.kind IS 'Which handler runs.';
COMMENT ON COLUMN pgleases.jobs.name IS 'The schedule that it runs for; else the unique key, or empty.';
COMMENT ON COLUMN pgleases.jobs.trigger IS 'job; manual, backfill or retry: it runs for a schedule, besides its ticks, or once more.';
COMMENT ON COLUMN pgleases.jobs.unique_key IS 'No other living job of the group and kind has it; null: it has none.';
COMMENT ON COLUMN pgleases.jobs.args IS 'The arguments of the handler.';
COMMENT ON COLUMN pgleases.jobs.priority IS 'From 0 to 3: of what is due, the highest first.';
COMMENT ON COLUMN pgleases.jobs.begins IS 'Of a backfill or a retry, the beginning of the window that ends at at; null: there is none.';
COMMENT ON COLUMN pgleases.jobs.at IS 'The time for which it was enqueued.';
COMMENT ON COLUMN pgleases.jobs.due IS 'When its owner runs it next; infinity: never.';
COMMENT ON COLUMN pgleases.jobs.trying IS 'How many attempts failed, when it runs again; null: no attempt has begun.';
COMMENT ON COLUMN pgleases.jobs.revision IS 'Rises when it is replaced.';
COMMENT ON COLUMN pgleases.jobs.blocked_reason IS 'Why its owner cannot run it; null: it can.';
COMMENT ON COLUMN pgleases.jobs.blocked_since IS 'Since when.';
COMMENT ON COLUMN pgleases.jobs.nonce IS 'Names it in idempotency keys: after a failover that has lost it, its id is given to another.';

CREATE TABLE IF NOT EXISTS pgleases.schedule_slots (
    group_name pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    kind       pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    slot       int NOT NULL,
    partition  int,
    epoch      bigint,
    run        pg_catalog.text COLLATE pg_catalog."C",
    PRIMARY KEY (group_name, kind, slot)
) WITH (fillfactor = 50);
COMMENT ON TABLE pgleases.schedule_slots IS 'As many slots of each kind as its limit says: a run in a transaction has one locked, any other has written itself into one.';
COMMENT ON COLUMN pgleases.schedule_slots.group_name IS 'The group.';
COMMENT ON COLUMN pgleases.schedule_slots.kind IS 'The kind.';
COMMENT ON COLUMN pgleases.schedule_slots.slot IS 'Its number, from 0. A process takes only those that are less than its own limit.';
COMMENT ON COLUMN pgleases.schedule_slots.partition IS 'Of a call outside of a transaction, the partition to which it belongs; null: there is none.';
COMMENT ON COLUMN pgleases.schedule_slots.epoch IS 'Under which that partition was owned: when that has ended, the slot is free.';
COMMENT ON COLUMN pgleases.schedule_slots.run IS 'Which call it is, as in trying; null: there is none.';

CREATE TABLE IF NOT EXISTS pgleases.schedule_owners (
    group_name pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    partition  int NOT NULL,
    opened     bigint NOT NULL,
    closed     bigint NOT NULL DEFAULT 0,
    crashed       boolean NOT NULL,
    PRIMARY KEY (group_name, partition)
) WITH (fillfactor = 50);
COMMENT ON TABLE pgleases.schedule_owners IS 'Of each partition, who ran something in it last, so that the next owner knows whether that one crashed.';
COMMENT ON COLUMN pgleases.schedule_owners.group_name IS 'The group.';
COMMENT ON COLUMN pgleases.schedule_owners.partition IS 'The partition of its lease.';
COMMENT ON COLUMN pgleases.schedule_owners.opened IS 'The epoch of the last owner that began to run something.';
COMMENT ON COLUMN pgleases.schedule_owners.closed IS 'The epoch of the last owner whose runs had all ended.';
COMMENT ON COLUMN pgleases.schedule_owners.crashed IS 'The owner before the one of opened crashed.';

CREATE TABLE IF NOT EXISTS pgleases.history (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    schedule   bigint NOT NULL,
    group_name pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    name       pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    kind       pg_catalog.text COLLATE pg_catalog."C" NOT NULL DEFAULT '',
    job        bigint,
    since      pg_catalog.timestamptz NOT NULL,
    until      pg_catalog.timestamptz NOT NULL,
    ticks      bigint NOT NULL CHECK (ticks OPERATOR(pg_catalog.>) 0),
    outcome       pg_catalog.text NOT NULL,
    error      pg_catalog.text,
    attempts   int NOT NULL DEFAULT 0,
    epoch      bigint,
    started_at pg_catalog.timestamptz,
    ended_at   pg_catalog.timestamptz NOT NULL,
    again      pg_catalog.jsonb,
    retried    bigint
);
CREATE INDEX IF NOT EXISTS history_by_name ON pgleases.history (group_name, name, id);
CREATE INDEX IF NOT EXISTS history_by_job ON pgleases.history (job) WHERE job IS NOT NULL;
CREATE INDEX IF NOT EXISTS history_canceled ON pgleases.history (schedule, since) WHERE outcome OPERATOR(pg_catalog.=) 'canceled';
CREATE INDEX IF NOT EXISTS history_failed ON pgleases.history (ended_at) WHERE outcome OPERATOR(pg_catalog.=) ANY ('{failed,unknown}'::pg_catalog.text[]);
CREATE INDEX IF NOT EXISTS history_by_time ON pgleases.history USING brin (ended_at);
COMMENT ON TABLE pgleases.history IS 'The outcomes of ticks and jobs: one row for each run, one for all ticks that were passed over at once.';
COMMENT ON COLUMN pgleases.history.id IS 'Rises with time.';
COMMENT ON COLUMN pgleases.history.schedule IS 'The schedule''s id; 0: it is of a job; -1: of a job whose name is its unique key.';
COMMENT ON COLUMN pgleases.history.job IS 'The job''s id; null: it is of a schedule. Since and until are then the time for which it was enqueued, and it counts as one tick.';
COMMENT ON COLUMN pgleases.history.group_name IS 'Its group.';
COMMENT ON COLUMN pgleases.history.name IS 'Its name.';
COMMENT ON COLUMN pgleases.history.kind IS 'The kind that the schedule had, or the job.';
COMMENT ON COLUMN pgleases.history.since IS 'The row is of the ticks after this instant, which is the end of the row before.';
COMMENT ON COLUMN pgleases.history.until IS 'Up to this instant. Of a run it is the tick itself.';
COMMENT ON COLUMN pgleases.history.ticks IS 'How many ticks that are.';
COMMENT ON COLUMN pgleases.history.outcome IS 'succeeded; failed; unknown: it was called at most once, and it is not known what came of it; missed: the policy on late ticks passed over them; skipped: the run before was still under way; canceled: an edit, a resumption or a deletion came first.';
COMMENT ON COLUMN pgleases.history.error IS 'Why it failed; of a job that is canceled, who asked for it, and why.';
COMMENT ON COLUMN pgleases.history.attempts IS 'Of a run, how many there were.';
COMMENT ON COLUMN pgleases.history.epoch IS 'Under which its partition was owned; null: there was no run.';
COMMENT ON COLUMN pgleases.history.started_at IS 'When the run began; null: there was none.';
COMMENT ON COLUMN pgleases.history.ended_at IS 'When this was written.';
COMMENT ON COLUMN pgleases.history.again IS 'Of a job that is not done, what it takes to run it again.';
COMMENT ON COLUMN pgleases.history.retried IS 'The job that runs it again; null: none was asked for.';

CREATE TABLE IF NOT EXISTS pgleases.schedule_changes (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at         pg_catalog.timestamptz NOT NULL,
    verb       pg_catalog.text NOT NULL,
    group_name pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    name       pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    schedule   bigint,
    job        bigint,
    args       pg_catalog.jsonb NOT NULL,
    actor      pg_catalog.text NOT NULL,
    reason     pg_catalog.text NOT NULL
);
CREATE INDEX IF NOT EXISTS schedule_changes_by_time ON pgleases.schedule_changes (group_name, at);
CREATE INDEX IF NOT EXISTS schedule_changes_by_schedule ON pgleases.schedule_changes (schedule, at);
COMMENT ON TABLE pgleases.schedule_changes IS 'What operators have changed about schedules and jobs, who, and why. Rows are kept as long as failures in the history.';
COMMENT ON COLUMN pgleases.schedule_changes.id IS 'Rises with time.';
COMMENT ON COLUMN pgleases.schedule_changes.at IS 'When it was changed.';
COMMENT ON COLUMN pgleases.schedule_changes.verb IS 'pause, resume, delete, trigger, backfill, cancel, retry or retry_failed.';
COMMENT ON COLUMN pgleases.schedule_changes.group_name IS 'The group.';
COMMENT ON COLUMN pgleases.schedule_changes.name IS 'The name of the schedule or job; empty: a job without a name, or many.';
COMMENT ON COLUMN pgleases.schedule_changes.schedule IS 'The schedule''s id; null: the change is about a job.';
COMMENT ON COLUMN pgleases.schedule_changes.job IS 'The job that was canceled, or enqueued; null: none, or several.';
COMMENT ON COLUMN pgleases.schedule_changes.args IS 'The arguments of the verb.';
COMMENT ON COLUMN pgleases.schedule_changes.actor IS 'Who changed it: the role that connected, and the name that was given.';
COMMENT ON COLUMN pgleases.schedule_changes.reason IS 'Why.';

-- A run in a transaction leaves no trace in the tables before its end, because it locks no row
-- until then. So it has a lock of its own, which is shared, and for which no other waits: see
-- schedule_open.
CREATE OR REPLACE VIEW pgleases.schedule_runs AS
SELECT (l.classid::bigint OPERATOR(pg_catalog.<<) 32) OPERATOR(pg_catalog.|) l.objid::bigint AS run,
       pg_catalog.min(l.pid) AS backend
FROM pg_catalog.pg_locks AS l
WHERE l.locktype OPERATOR(pg_catalog.=) 'advisory' AND l.objsubid OPERATOR(pg_catalog.=) 1::smallint AND l.mode OPERATOR(pg_catalog.=) 'ShareLock'
  AND l.database OPERATOR(pg_catalog.=) (SELECT d.oid FROM pg_catalog.pg_database AS d WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database())
GROUP BY l.classid, l.objid;
COMMENT ON VIEW pgleases.schedule_runs IS 'Part of schedules_status and jobs_status: the shared advisory locks, among which are those of the transactions in which handlers run.';
COMMENT ON COLUMN pgleases.schedule_runs.run IS 'The lock''s key: of a run, the hash of the id of the schedule or job, with the table as its seed.';
COMMENT ON COLUMN pgleases.schedule_runs.backend IS 'The server''s process that holds it.';

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
               (SELECT pg_catalog.concat(q.actor, ': ', q.reason) FROM pgleases.schedule_changes AS q
                WHERE q.schedule OPERATOR(pg_catalog.=) s.id AND q.at OPERATOR(pg_catalog.>=) s.paused_at
                    AND q.verb OPERATOR(pg_catalog.=) 'pause' ORDER BY q.id DESC LIMIT 1),
               CASE WHEN s.failures OPERATOR(pg_catalog.>=) nullif((s.policy OPERATOR(pg_catalog.->>) 'pause_after')::int, 0)
                    THEN pg_catalog.format('%s consecutive ticks failed', s.failures) END)
           WHEN 'blocked' THEN s.blocked_reason
           WHEN 'retrying' THEN pg_catalog.format('attempt %s is at %s', t.attempts OPERATOR(pg_catalog.+) 1, s.due)
           WHEN 'due' THEN CASE WHEN o.owner IS NULL THEN 'its partition has no owner' END
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
            WHEN s.blocked_reason IS NOT NULL THEN pgleases.schedule_clock() OPERATOR(pg_catalog.-) s.blocked_since
            WHEN s.trying IS NOT NULL THEN pgleases.schedule_clock() OPERATOR(pg_catalog.-) (s.trying OPERATOR(pg_catalog.->>) 'at')::pg_catalog.timestamptz
            WHEN s.due OPERATOR(pg_catalog.<=) pgleases.schedule_clock() THEN pgleases.schedule_clock() OPERATOR(pg_catalog.-) s.due
       END AS lateness,
       s.failures,
       t.attempts,
       t.crashes,
       coalesce(s.trying OPERATOR(pg_catalog.->>) 'error',
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
       s.policy,
       s.id
FROM pgleases.schedules AS s
LEFT JOIN pgleases.partitions AS p ON p.lease OPERATOR(pg_catalog.=) ('schedule/' OPERATOR(pg_catalog.||) s.group_name)
    AND p.partition OPERATOR(pg_catalog.=) s.partition
LEFT JOIN pgleases.schedule_runs AS r ON r.run OPERATOR(pg_catalog.=) pg_catalog.hashint8extended(s.id, s.tableoid::bigint)
CROSS JOIN LATERAL (
    SELECT CASE WHEN p.owner IS NOT NULL THEN p.owner_id END AS owner
) AS o
CROSS JOIN LATERAL (
    SELECT coalesce((s.trying OPERATOR(pg_catalog.->>) 'attempts')::int, 0) AS attempts,
           coalesce((s.trying OPERATOR(pg_catalog.->>) 'crashes')::int, 0) AS crashes
) AS t
CROSS JOIN LATERAL (
    SELECT CASE WHEN r.backend IS NOT NULL THEN 'running'
                WHEN o.owner IS NOT NULL AND (s.trying OPERATOR(pg_catalog.->>) 'run') OPERATOR(pg_catalog.<>) ''
                     AND (s.trying OPERATOR(pg_catalog.->>) 'called')::bigint OPERATOR(pg_catalog.=) p.epoch THEN 'running'
                WHEN s.paused_at IS NOT NULL THEN 'paused'
                WHEN s.blocked_reason IS NOT NULL THEN 'blocked'
                WHEN s.due OPERATOR(pg_catalog.<=) pgleases.schedule_clock() THEN 'due'
                WHEN s.trying IS NOT NULL THEN 'retrying'
                WHEN s.due OPERATOR(pg_catalog.=) 'infinity' THEN 'over'
                ELSE 'planned' END AS state
) AS e;
COMMENT ON VIEW pgleases.schedules_status IS 'Every schedule: who runs it, what it does now and why, and how far it has come. Of many, quick by group and name; by due in a partition of a group; by blocked_reason or paused_at IS NOT NULL; by failures > 0.';
COMMENT ON COLUMN pgleases.schedules_status.group_name IS 'The group, whose processes run it.';
COMMENT ON COLUMN pgleases.schedules_status.name IS 'Its name in the group.';
COMMENT ON COLUMN pgleases.schedules_status.kind IS 'Which handler runs.';
COMMENT ON COLUMN pgleases.schedules_status.key IS 'Transactional runs under one key of a group never overlap in effect.';
COMMENT ON COLUMN pgleases.schedules_status.partition IS 'The partition of the lease schedule/GROUP to which the key belongs.';
COMMENT ON COLUMN pgleases.schedules_status.owner IS 'The client ID of that partition''s owner, which runs it; null: none.';
COMMENT ON COLUMN pgleases.schedules_status.rule IS 'When it runs.';
COMMENT ON COLUMN pgleases.schedules_status.state IS 'running; paused; blocked: its owner cannot run it; due: it is to begin now; retrying: its tick is tried again at due; planned: at due; over: it has no further tick.';
COMMENT ON COLUMN pgleases.schedules_status.why IS 'Why it is in this state, as far as that is known.';
COMMENT ON COLUMN pgleases.schedules_status.succeeded IS 'The last tick that succeeded; null: there is none.';
COMMENT ON COLUMN pgleases.schedules_status.last_outcome IS 'What became of the last tick that has an outcome; null: none has, or it is no longer in the history.';
COMMENT ON COLUMN pgleases.schedules_status.ran_from IS 'When the last run that has ended began; null: there was none.';
COMMENT ON COLUMN pgleases.schedules_status.ran_until IS 'When it ended.';
COMMENT ON COLUMN pgleases.schedules_status.due IS 'When its owner runs it next, usually its next tick; infinity: it is paused or has no further tick.';
COMMENT ON COLUMN pgleases.schedules_status.lateness IS 'How long it has waited, or its tick has been due, run included; null: nothing is due.';
COMMENT ON COLUMN pgleases.schedules_status.failures IS 'How many consecutive ticks failed.';
COMMENT ON COLUMN pgleases.schedules_status.attempts IS 'How many attempts at the tick under way have failed.';
COMMENT ON COLUMN pgleases.schedules_status.crashes IS 'How many processes crashed while they ran that tick, with the one that runs it now, if it is a crash suspect.';
COMMENT ON COLUMN pgleases.schedules_status.error IS 'Of the last attempt that failed; else, if failures is not 0, of the last tick that failed.';
COMMENT ON COLUMN pgleases.schedules_status.backend IS 'Of a run in a transaction, the server''s process, as in pg_stat_activity; null: there is none.';
COMMENT ON COLUMN pgleases.schedules_status.paused_at IS 'When it was paused; null: it is not.';
COMMENT ON COLUMN pgleases.schedules_status.blocked_reason IS 'Why its owner cannot run it; null: it can.';
COMMENT ON COLUMN pgleases.schedules_status.blocked_since IS 'Since when; the time from there on makes no tick late.';
COMMENT ON COLUMN pgleases.schedules_status.declared IS 'The code declares it; only processes whose code does run it.';
COMMENT ON COLUMN pgleases.schedules_status.registered IS 'When a process last put or declared it: at its start, and each day.';
COMMENT ON COLUMN pgleases.schedules_status.args IS 'The arguments of the handler.';
COMMENT ON COLUMN pgleases.schedules_status.policy IS 'Its options: what becomes of late ticks, and others.';
COMMENT ON COLUMN pgleases.schedules_status.id IS 'Names this schedule and no later one of its name.';

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
           WHEN 'retrying' THEN pg_catalog.format('attempt %s is at %s', t.attempts OPERATOR(pg_catalog.+) 1, j.due)
           WHEN 'due' THEN CASE WHEN o.owner IS NULL THEN 'its partition has no owner' END
       END AS why,
       j.at,
       j.due,
       CASE WHEN j.blocked_reason IS NOT NULL THEN pgleases.schedule_clock() OPERATOR(pg_catalog.-) j.blocked_since
            WHEN j.trying IS NOT NULL OR j.due OPERATOR(pg_catalog.<=) pgleases.schedule_clock() THEN pgleases.schedule_clock() OPERATOR(pg_catalog.-) j.at
       END AS lateness,
       t.attempts,
       t.crashes,
       j.trying OPERATOR(pg_catalog.->>) 'error' AS error,
       r.backend,
       j.blocked_reason,
       j.blocked_since,
       j.unique_key,
       j.begins,
       j.args
FROM pgleases.jobs AS j
LEFT JOIN pgleases.partitions AS p ON p.lease OPERATOR(pg_catalog.=) ('schedule/' OPERATOR(pg_catalog.||) j.group_name)
    AND p.partition OPERATOR(pg_catalog.=) j.partition
LEFT JOIN pgleases.schedule_runs AS r ON r.run OPERATOR(pg_catalog.=) pg_catalog.hashint8extended(j.id, j.tableoid::bigint)
CROSS JOIN LATERAL (
    SELECT CASE WHEN p.owner IS NOT NULL THEN p.owner_id END AS owner
) AS o
CROSS JOIN LATERAL (
    SELECT coalesce((j.trying OPERATOR(pg_catalog.->>) 'attempts')::int, 0) AS attempts,
           coalesce((j.trying OPERATOR(pg_catalog.->>) 'crashes')::int, 0) AS crashes
) AS t
CROSS JOIN LATERAL (
    SELECT CASE WHEN r.backend IS NOT NULL THEN 'running'
                WHEN o.owner IS NOT NULL AND (j.trying OPERATOR(pg_catalog.->>) 'run') OPERATOR(pg_catalog.<>) ''
                     AND (j.trying OPERATOR(pg_catalog.->>) 'called')::bigint OPERATOR(pg_catalog.=) p.epoch THEN 'running'
                WHEN j.blocked_reason IS NOT NULL THEN 'blocked'
                WHEN j.due OPERATOR(pg_catalog.<=) pgleases.schedule_clock() THEN 'due'
                WHEN j.trying IS NOT NULL THEN 'retrying'
                ELSE 'planned' END AS state
) AS e;
COMMENT ON VIEW pgleases.jobs_status IS 'Every job that has not ended: who runs it, what it does now and why. Of many, quick by id; by due in a partition and priority of a group; by blocked_reason IS NOT NULL.';
COMMENT ON COLUMN pgleases.jobs_status.id IS 'Names this job and no later one.';
COMMENT ON COLUMN pgleases.jobs_status.group_name IS 'The group, whose processes run it.';
COMMENT ON COLUMN pgleases.jobs_status.kind IS 'Which handler runs.';
COMMENT ON COLUMN pgleases.jobs_status.name IS 'The schedule that it runs for; else the unique key, or empty.';
COMMENT ON COLUMN pgleases.jobs_status.trigger IS 'job; manual, backfill or retry: it runs for a schedule, besides its ticks, or once more.';
COMMENT ON COLUMN pgleases.jobs_status.key IS 'Transactional runs under one key of a group never overlap in effect.';
COMMENT ON COLUMN pgleases.jobs_status.partition IS 'The partition of the lease schedule/GROUP to which the key belongs.';
COMMENT ON COLUMN pgleases.jobs_status.owner IS 'The client ID of that partition''s owner, which runs it; null: none.';
COMMENT ON COLUMN pgleases.jobs_status.priority IS 'From 0 to 3: of what is due, the highest first.';
COMMENT ON COLUMN pgleases.jobs_status.state IS 'running; blocked: its owner cannot run it; due: it is to begin now; retrying: it is tried again at due; planned: at due.';
COMMENT ON COLUMN pgleases.jobs_status.why IS 'Why it is in this state, as far as that is known.';
COMMENT ON COLUMN pgleases.jobs_status.at IS 'The time for which it was enqueued.';
COMMENT ON COLUMN pgleases.jobs_status.due IS 'When its owner runs it next.';
COMMENT ON COLUMN pgleases.jobs_status.lateness IS 'How long it has waited, or been due, run included; null: it is not due.';
COMMENT ON COLUMN pgleases.jobs_status.attempts IS 'How many attempts have failed.';
COMMENT ON COLUMN pgleases.jobs_status.crashes IS 'How many processes crashed while they ran it, with the one that runs it now, if it is a crash suspect.';
COMMENT ON COLUMN pgleases.jobs_status.error IS 'Of the last attempt that failed.';
COMMENT ON COLUMN pgleases.jobs_status.backend IS 'Of a run in a transaction, the server''s process, as in pg_stat_activity; null: there is none.';
COMMENT ON COLUMN pgleases.jobs_status.blocked_reason IS 'Why its owner cannot run it; null: it can.';
COMMENT ON COLUMN pgleases.jobs_status.blocked_since IS 'Since when.';
COMMENT ON COLUMN pgleases.jobs_status.unique_key IS 'No other living job of the group and kind has it; null: it has none.';
COMMENT ON COLUMN pgleases.jobs_status.begins IS 'Of a backfill or a retry, the beginning of the window that ends at at; null: there is none.';
COMMENT ON COLUMN pgleases.jobs_status.args IS 'The arguments of the handler.';
