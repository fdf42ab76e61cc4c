-- schema.sql: the tables of package schedule, with their comments. It runs first, functions.sql after it, in the schema that has the engine's
-- tables. Idempotent: what exists stays as it is.
--
-- Types and operators are named with their schema, and names collate "C", as in the engine's files.

CREATE TABLE IF NOT EXISTS pgleases.schedule_version (
    version  int NOT NULL,
    min_code int NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS schedule_version_one_row ON pgleases.schedule_version ((true));
COMMENT ON TABLE pgleases.schedule_version IS 'One row: which version of the tables of package schedule this is, and which code can serve it.';
COMMENT ON COLUMN pgleases.schedule_version.version IS 'Version of these tables. Migrations only add.';
COMMENT ON COLUMN pgleases.schedule_version.min_code IS 'The oldest code that can run here, by the version for which it was written.';

CREATE TABLE IF NOT EXISTS pgleases.schedule_groups (
    name       pg_catalog.text COLLATE pg_catalog."C" PRIMARY KEY,
    partitions int NOT NULL
);
COMMENT ON TABLE pgleases.schedule_groups IS 'The groups of schedules that have been run.';
COMMENT ON COLUMN pgleases.schedule_groups.name IS 'The group''s name; that of its lease is the same behind "schedule/".';
COMMENT ON COLUMN pgleases.schedule_groups.partitions IS 'Number of the lease''s partitions, by which the partitions of its schedules are told.';

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
    done         pg_catalog.timestamptz,
    ran_from     pg_catalog.timestamptz,
    ran_until    pg_catalog.timestamptz,
    trying       pg_catalog.jsonb,
    failures     int NOT NULL DEFAULT 0,
    revision     bigint NOT NULL,
    paused_at    pg_catalog.timestamptz,
    waits        pg_catalog.text,
    waits_since  pg_catalog.timestamptz,
    registered   pg_catalog.timestamptz NOT NULL,
    nonce        pg_catalog.uuid NOT NULL DEFAULT pg_catalog.gen_random_uuid()
) WITH (fillfactor = 50);
CREATE UNIQUE INDEX IF NOT EXISTS schedules_by_name ON pgleases.schedules (group_name, name);
CREATE INDEX IF NOT EXISTS schedules_by_due ON pgleases.schedules (group_name, partition, due);
CREATE INDEX IF NOT EXISTS schedules_that_wait ON pgleases.schedules (group_name, partition) WHERE waits IS NOT NULL;
COMMENT ON TABLE pgleases.schedules IS 'The schedules: what runs again and again, and how far each has come.';
COMMENT ON COLUMN pgleases.schedules.id IS 'Names this schedule and no later one of its name.';
COMMENT ON COLUMN pgleases.schedules.group_name IS 'The group, whose processes run it.';
COMMENT ON COLUMN pgleases.schedules.name IS 'Its name in the group.';
COMMENT ON COLUMN pgleases.schedules.key IS 'Transactional runs under one key of a group never overlap in effect. By default the name.';
COMMENT ON COLUMN pgleases.schedules.partition IS 'The partition of the group''s lease to which the key belongs: its owner runs the schedule.';
COMMENT ON COLUMN pgleases.schedules.kind IS 'Which handler runs.';
COMMENT ON COLUMN pgleases.schedules.args IS 'What the handler is given.';
COMMENT ON COLUMN pgleases.schedules.rule IS 'When it runs.';
COMMENT ON COLUMN pgleases.schedules.anchor IS 'From where a rule of a fixed distance counts: the instant at which the rule was given.';
COMMENT ON COLUMN pgleases.schedules.policy IS 'What becomes of late ticks, and other choices.';
COMMENT ON COLUMN pgleases.schedules.declared IS 'The code declares it; only processes whose code does run it.';
COMMENT ON COLUMN pgleases.schedules.cursor IS 'Every tick up to this instant has its fate in the history; none after it has.';
COMMENT ON COLUMN pgleases.schedules.cursor_local IS 'Where the cursor is a tick: what the clocks of the rule''s zone showed; null: it is none.';
COMMENT ON COLUMN pgleases.schedules.due IS 'When its owner looks at it next: at its next tick, or sooner; infinity: it is paused or has no further tick.';
COMMENT ON COLUMN pgleases.schedules.done IS 'The last tick whose run was done; null: there is none.';
COMMENT ON COLUMN pgleases.schedules.ran_from IS 'When the last run began; null: there was none.';
COMMENT ON COLUMN pgleases.schedules.ran_until IS 'When the last run ended; null: there was none.';
COMMENT ON COLUMN pgleases.schedules.trying IS 'The tick after the cursor that was begun and has no fate yet: how many attempts failed, when it is tried again; null: there is none.';
COMMENT ON COLUMN pgleases.schedules.failures IS 'How many ticks in a row are dead.';
COMMENT ON COLUMN pgleases.schedules.revision IS 'Rises with every edit.';
COMMENT ON COLUMN pgleases.schedules.paused_at IS 'When it was paused; null: it is not.';
COMMENT ON COLUMN pgleases.schedules.waits IS 'Why its owner cannot run it, as a kind that it does not know; null: nothing is known against it.';
COMMENT ON COLUMN pgleases.schedules.waits_since IS 'Since when; the time from there on makes no tick late.';
COMMENT ON COLUMN pgleases.schedules.registered IS 'When a process last put it, or declared it at its start.';
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
    waits       pg_catalog.text,
    waits_since pg_catalog.timestamptz,
    nonce       pg_catalog.uuid NOT NULL DEFAULT pg_catalog.gen_random_uuid()
) WITH (fillfactor = 80);
CREATE UNIQUE INDEX IF NOT EXISTS jobs_by_unique_key ON pgleases.jobs (group_name, kind, unique_key) WHERE unique_key IS NOT NULL;
CREATE INDEX IF NOT EXISTS jobs_by_due ON pgleases.jobs (group_name, partition, priority, due);
CREATE INDEX IF NOT EXISTS jobs_that_wait ON pgleases.jobs (group_name, partition) WHERE waits IS NOT NULL;
COMMENT ON TABLE pgleases.jobs IS 'What is to run once, until it has.';
COMMENT ON COLUMN pgleases.jobs.id IS 'Names this job and no later one.';
COMMENT ON COLUMN pgleases.jobs.group_name IS 'The group, whose processes run it.';
COMMENT ON COLUMN pgleases.jobs.key IS 'Transactional runs under one key of a group never overlap in effect. By default a random one.';
COMMENT ON COLUMN pgleases.jobs.partition IS 'The partition of the group''s lease to which the key belongs: its owner runs the job.';
COMMENT ON COLUMN pgleases.jobs.kind IS 'Which handler runs.';
COMMENT ON COLUMN pgleases.jobs.name IS 'The schedule that it runs for; else the unique key, or empty.';
COMMENT ON COLUMN pgleases.jobs.trigger IS 'job; manual or backfill: it runs for a schedule, besides its ticks.';
COMMENT ON COLUMN pgleases.jobs.unique_key IS 'No other living job of the group and kind has it; null: it has none.';
COMMENT ON COLUMN pgleases.jobs.args IS 'What the handler is given.';
COMMENT ON COLUMN pgleases.jobs.priority IS 'From 0 to 3: of what is due, the highest first.';
COMMENT ON COLUMN pgleases.jobs.begins IS 'Of a backfill, the beginning of the window that ends at at; null: none is told.';
COMMENT ON COLUMN pgleases.jobs.at IS 'The time that it was put for.';
COMMENT ON COLUMN pgleases.jobs.due IS 'When its owner looks at it next; infinity: never.';
COMMENT ON COLUMN pgleases.jobs.trying IS 'How many attempts failed, when it is tried again; null: none was begun.';
COMMENT ON COLUMN pgleases.jobs.revision IS 'Rises when it is replaced.';
COMMENT ON COLUMN pgleases.jobs.waits IS 'Why its owner cannot run it; null: nothing is known against it.';
COMMENT ON COLUMN pgleases.jobs.waits_since IS 'Since when.';
COMMENT ON COLUMN pgleases.jobs.nonce IS 'Names it in idempotency keys: after a failover that has lost it, its id is given to another.';

CREATE TABLE IF NOT EXISTS pgleases.schedule_owners (
    group_name pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    partition  int NOT NULL,
    opened     bigint NOT NULL,
    closed     bigint NOT NULL DEFAULT 0,
    died       boolean NOT NULL,
    PRIMARY KEY (group_name, partition)
) WITH (fillfactor = 50);
COMMENT ON TABLE pgleases.schedule_owners IS 'Of each partition, who ran something in it last, so that the next owner knows whether that one died.';
COMMENT ON COLUMN pgleases.schedule_owners.group_name IS 'The group.';
COMMENT ON COLUMN pgleases.schedule_owners.partition IS 'The partition of its lease.';
COMMENT ON COLUMN pgleases.schedule_owners.opened IS 'The epoch of the last owner that began to run something.';
COMMENT ON COLUMN pgleases.schedule_owners.closed IS 'The epoch of the last owner whose runs had all ended.';
COMMENT ON COLUMN pgleases.schedule_owners.died IS 'The owner before the one of opened died.';

CREATE TABLE IF NOT EXISTS pgleases.history (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    schedule   bigint NOT NULL,
    group_name pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    name       pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    job        bigint,
    since      pg_catalog.timestamptz NOT NULL,
    until      pg_catalog.timestamptz NOT NULL,
    ticks      bigint NOT NULL CHECK (ticks OPERATOR(pg_catalog.>) 0),
    fate       pg_catalog.text NOT NULL,
    error      pg_catalog.text,
    attempts   int NOT NULL DEFAULT 0,
    epoch      bigint,
    started_at pg_catalog.timestamptz,
    ended_at   pg_catalog.timestamptz NOT NULL
);
CREATE INDEX IF NOT EXISTS history_by_name ON pgleases.history (group_name, name, id);
CREATE INDEX IF NOT EXISTS history_by_job ON pgleases.history (job) WHERE job IS NOT NULL;
CREATE INDEX IF NOT EXISTS history_cancelled ON pgleases.history (schedule, since) WHERE fate OPERATOR(pg_catalog.=) 'cancelled';
COMMENT ON TABLE pgleases.history IS 'What became of the ticks of schedules: one row for each that ran, one for all that were passed over at once.';
COMMENT ON COLUMN pgleases.history.id IS 'Rises with time.';
COMMENT ON COLUMN pgleases.history.schedule IS 'The schedule''s id; 0: it is of a job.';
COMMENT ON COLUMN pgleases.history.job IS 'The job''s id; null: it is of a schedule. Since and until are then the time that it was put for, and it counts as one tick.';
COMMENT ON COLUMN pgleases.history.group_name IS 'Its group.';
COMMENT ON COLUMN pgleases.history.name IS 'Its name.';
COMMENT ON COLUMN pgleases.history.since IS 'The row tells of the ticks after this instant, which is the end of the row before.';
COMMENT ON COLUMN pgleases.history.until IS 'Up to this instant. Of a run it is the tick itself.';
COMMENT ON COLUMN pgleases.history.ticks IS 'How many ticks that are.';
COMMENT ON COLUMN pgleases.history.fate IS 'done; dead: it failed; lost: it was called at most once, and nobody knows what came of it; missed: the policy on late ticks passed over them; skipped: the run before was still under way; cancelled: an edit, a resumption or a deletion came first.';
COMMENT ON COLUMN pgleases.history.error IS 'Why it is dead.';
COMMENT ON COLUMN pgleases.history.attempts IS 'Of a run, how many there were.';
COMMENT ON COLUMN pgleases.history.epoch IS 'Under which its partition was owned; null: nobody ran it.';
COMMENT ON COLUMN pgleases.history.started_at IS 'When the run began; null: there was none.';
COMMENT ON COLUMN pgleases.history.ended_at IS 'When this was written.';
