-- statements.sql: the statements of package schedule, each after a line with its name. Most call one
-- function of functions/*.sql, which documents the parameters. Casts prevent calls of other roles'
-- overloads of these functions.

-- declared: the stored schedules among those that the code declares, and how many partitions the
-- lease has, had before it was dropped, or will have; 0: the lease does not exist. $1 group, $2
-- names of schedules, $3 their arguments, $4 lease.
SELECT ARRAY(SELECT (pgleases.schedule_json(s) OPERATOR(pg_catalog.||)
                     pg_catalog.jsonb_build_object('same_args', s.args OPERATOR(pg_catalog.=) d.args::pg_catalog.jsonb))::pg_catalog.text
             FROM ROWS FROM (pg_catalog.unnest($2::pg_catalog.text[]), pg_catalog.unnest($3::pg_catalog.text[])) AS d (name, args)
             JOIN pgleases.schedules AS s ON s.group_name OPERATOR(pg_catalog.=) $1::pg_catalog.text AND s.name OPERATOR(pg_catalog.=) d.name),
       coalesce((SELECT CASE WHEN l.partitions OPERATOR(pg_catalog.>) 0 THEN l.partitions ELSE l.next_partitions END
                 FROM pgleases.leases AS l WHERE l.name OPERATOR(pg_catalog.=) $4::pg_catalog.text), 0);

-- create: creates a schedule.
SELECT pgleases.schedule_create(
    p_group => $1::pg_catalog.text, p_partitions => $2::int, p_name => $3::pg_catalog.text,
    p_key => $4::pg_catalog.text, p_kind => $5::pg_catalog.text, p_args => $6::pg_catalog.jsonb,
    p_rule => $7::pg_catalog.text, p_missed => $8::pg_catalog.text, p_overlap => $9::pg_catalog.text,
    p_grace_us => $10::bigint, p_jitter_us => $11::bigint, p_pause_after => $12::int, p_declared => $13::boolean,
    p_now => $14::pg_catalog.timestamptz, p_due => $15::pg_catalog.timestamptz);

-- replace: edits a schedule that get has locked.
SELECT pgleases.schedule_replace(
    p_group => $1::pg_catalog.text, p_partitions => $2::int, p_schedule => $3::bigint,
    p_key => $4::pg_catalog.text, p_kind => $5::pg_catalog.text, p_args => $6::pg_catalog.jsonb,
    p_rule => $7::pg_catalog.text, p_missed => $8::pg_catalog.text, p_overlap => $9::pg_catalog.text,
    p_grace_us => $10::bigint, p_jitter_us => $11::bigint, p_pause_after => $12::int, p_declared => $13::boolean,
    p_now => $14::pg_catalog.timestamptz, p_due => $15::pg_catalog.timestamptz,
    p_until => $16::pg_catalog.timestamptz, p_canceled_until => $17::pg_catalog.timestamptz,
    p_canceled => $18::bigint)::pg_catalog.text;

-- get: locks a schedule for an edit.
SELECT clock_us, answer FROM pgleases.schedule_get($1::pg_catalog.text, $2::pg_catalog.text, $3::pg_catalog.jsonb);

-- declare: records that a process declares schedules.
SELECT pgleases.schedule_declare($1::pg_catalog.text, $2::pg_catalog.text[]);

-- join: stores the number of partitions.
SELECT pgleases.schedule_join($1::pg_catalog.text, $2::int)::pg_catalog.text;

-- place: moves schedules and jobs to the partitions of their keys.
SELECT pgleases.schedule_place($1::pg_catalog.text, $2::int, $3::bigint[], $4::bigint[]);

-- poll: what is due.
SELECT clock_us, took_us, id, job, priority, partition, key, kind, due_us, crashes, gone_schedules, gone_jobs
FROM pgleases.schedule_poll($1::pg_catalog.text, $2::int[], $3::int[], $4::bigint, $5::bigint, $6::bigint[],
    $7::int[], $8::int, $9::int, $10::pg_catalog.text[], $11::pg_catalog.text[], $12::bigint[], $13::bigint[]);

-- block: blocks a page of what is due of kinds that the process does not register.
SELECT more, oldest::pg_catalog.text
FROM pgleases.schedule_block($1::pg_catalog.text, $2::int, $3::bigint, $4::pg_catalog.text, $5::pg_catalog.text[], $6::pg_catalog.text[], $7::bigint,
    $8::bigint, $9::bigint, $10::int, $11::int);

-- setaside: blocks a schedule or job whose row cannot be read.
SELECT pgleases.schedule_set_aside($1::bigint, $2::boolean, $3::pg_catalog.text, $4::bigint, $5::bigint)::pg_catalog.text;

-- begin: records that an owner runs something; whether the previous owner crashed.
SELECT pgleases.schedule_begin($1::pg_catalog.text, $2::int, $3::bigint, $4::pg_catalog.text, $5::int);

-- open: opens a run.
SELECT pgleases.schedule_open($1::pg_catalog.text, $2::int, $3::bigint, $4::bigint, $5::boolean, $6::pg_catalog.text, $7::int, $8::int, $9::int);

-- locked: whether another transaction has locked the row of a schedule or a job.
SELECT pgleases.schedule_locked($1::bigint, $2::boolean);

-- limit: sets the limits of the following statements of the transaction, because a handler may have
-- set others. $1 the most that a statement takes, $2 the most that it waits for a lock, milliseconds.
SELECT pg_catalog.set_config('statement_timeout', $1::int::pg_catalog.text, true), pg_catalog.set_config('lock_timeout', $2::int::pg_catalog.text, true);

-- close: ends a run of a schedule.
SELECT pgleases.schedule_close(
    p_schedule => $1::bigint, p_run => $2::pg_catalog.text, p_revision => $3::bigint,
    p_cursor_before => $4::pg_catalog.timestamptz, p_cursor => $5::pg_catalog.timestamptz,
    p_local_us => $6::bigint, p_due => $7::pg_catalog.timestamptz, p_succeeded => $8::pg_catalog.timestamptz,
    p_ran_from => $9::pg_catalog.timestamptz, p_ran_until => $10::pg_catalog.timestamptz, p_failures => $11::int,
    p_paused_at => $12::pg_catalog.timestamptz, p_blocked => $13::pg_catalog.text,
    p_tick => $14::pg_catalog.timestamptz, p_tick_local_us => $15::bigint, p_tick_missed => $16::bigint,
    p_began => $17::pg_catalog.timestamptz, p_attempts => $18::int, p_outages => $19::int,
    p_last_error => $20::pg_catalog.text, p_retry_at => $21::pg_catalog.timestamptz, p_crashes => $22::int,
    p_crash_epoch => $23::bigint, p_call => $24::pg_catalog.text, p_call_epoch => $25::bigint,
    p_call_once => $26::boolean, p_call_began => $27::pg_catalog.timestamptz,
    p_call_ends => $28::pg_catalog.timestamptz, p_passed_since => $29::pg_catalog.timestamptz[],
    p_passed_until => $30::pg_catalog.timestamptz[], p_passed_ticks => $31::bigint[],
    p_passed_outcomes => $32::pg_catalog.text[], p_since => $33::pg_catalog.timestamptz,
    p_outcome => $34::pg_catalog.text, p_error => $35::pg_catalog.text, p_outcome_attempts => $36::int,
    p_epoch => $37::bigint, p_started_at => $38::pg_catalog.timestamptz, p_rule => $39::pg_catalog.text,
    p_begins => $40::pg_catalog.timestamptz)::pg_catalog.text;

-- endtick: ends the first attempt at the next tick of a schedule, which has succeeded.
SELECT pgleases.schedule_end_tick(
    p_schedule => $1::bigint, p_run => $2::pg_catalog.text, p_revision => $3::bigint,
    p_cursor_before => $4::pg_catalog.timestamptz, p_cursor => $5::pg_catalog.timestamptz,
    p_local_us => $6::bigint, p_due => $7::pg_catalog.timestamptz, p_epoch => $8::bigint,
    p_started_at => $9::pg_catalog.timestamptz, p_ended_at => $10::pg_catalog.timestamptz)::pg_catalog.text;

-- endjob: ends a run after which a job has its outcome.
SELECT pgleases.schedule_end_job(
    p_job => $1::bigint, p_run => $2::pg_catalog.text, p_revision => $3::bigint, p_outcome => $4::pg_catalog.text,
    p_error => $5::pg_catalog.text, p_attempts => $6::int, p_epoch => $7::bigint,
    p_started_at => $8::pg_catalog.timestamptz, p_at => $9::pg_catalog.timestamptz, p_key => $10::pg_catalog.text,
    p_args => $11::pg_catalog.jsonb, p_nonce => $12::pg_catalog.uuid)::pg_catalog.text;

-- postponejob: ends a run after which a job has no outcome yet.
SELECT pgleases.schedule_postpone_job(
    p_job => $1::bigint, p_run => $2::pg_catalog.text, p_revision => $3::bigint,
    p_due => $4::pg_catalog.timestamptz, p_blocked => $5::pg_catalog.text, p_began => $6::pg_catalog.timestamptz,
    p_attempts => $7::int, p_outages => $8::int, p_last_error => $9::pg_catalog.text,
    p_retry_at => $10::pg_catalog.timestamptz, p_crashes => $11::int, p_crash_epoch => $12::bigint,
    p_call => $13::pg_catalog.text, p_call_epoch => $14::bigint, p_call_once => $15::boolean,
    p_call_began => $16::pg_catalog.timestamptz, p_call_ends => $17::pg_catalog.timestamptz)::pg_catalog.text;

-- end: records that all runs of an owner in partitions have ended.
SELECT pgleases.schedule_end($1::pg_catalog.text, $2::int[], $3::bigint[], $4::pg_catalog.text, $5::bigint[], $6::bigint[], $7::int)::pg_catalog.text;

-- makeslots: creates the slots of a kind with a limit.
SELECT pgleases.schedule_make_slots($1::pg_catalog.text, $2::pg_catalog.text, $3::int)::pg_catalog.text;

-- takeslot: takes a slot, if one is free.
SELECT pgleases.schedule_take_slot($1::pg_catalog.text, $2::pg_catalog.text, $3::int, $4::int, $5::bigint, $6::pg_catalog.text);

-- freeslot: frees the slot of a call outside of a transaction.
SELECT pgleases.schedule_free_slot($1::pg_catalog.text, $2::pg_catalog.text, $3::int, $4::pg_catalog.text, $5::int)::pg_catalog.text;

-- enqueuemany: enqueues jobs without unique keys, and returns their ids.
SELECT pgleases.schedule_enqueue_many(
    p_group => $1::pg_catalog.text, p_partitions => $2::int, p_kind => $3::pg_catalog.text,
    p_key => $4::pg_catalog.text, p_priority => $5::int, p_at => $6::pg_catalog.timestamptz, p_in_us => $7::bigint,
    p_args => $8::pg_catalog.jsonb[], p_nonces => $9::pg_catalog.text[], p_hashes => $10::bigint[]);

-- enqueue: enqueues a job, and returns its id, unless a live job has its unique key.
SELECT pgleases.schedule_enqueue(
    p_group => $1::pg_catalog.text, p_partitions => $2::int, p_jobs => $3::pg_catalog.jsonb);

-- enqueueorkeep: enqueues a job, or keeps a live job with its unique key, and returns its id.
SELECT pgleases.schedule_enqueue_or_keep(
    p_group => $1::pg_catalog.text, p_partitions => $2::int, p_job => $3::pg_catalog.jsonb);

-- enqueueorreplace: enqueues a job, or replaces a live job with its unique key, and returns its id.
SELECT pgleases.schedule_enqueue_or_replace(
    p_group => $1::pg_catalog.text, p_partitions => $2::int, p_job => $3::pg_catalog.jsonb);

-- job: a job, or its outcome.
SELECT pgleases.schedule_job($1::pg_catalog.text, $2::bigint);

-- jobs: the live jobs.
SELECT * FROM pgleases.schedule_jobs($1::pg_catalog.text, $2::pg_catalog.text, $3::pg_catalog.text, $4::pg_catalog.text, $5::bigint, $6::int);

-- list: schedules by name.
SELECT * FROM pgleases.schedule_list($1::pg_catalog.text, $2::pg_catalog.text, $3::pg_catalog.text, $4::pg_catalog.text, $5::int);

-- history: outcomes, newest first.
SELECT * FROM pgleases.schedule_history($1::pg_catalog.text, $2::pg_catalog.text, $3::bigint, $4::int);

-- read: a schedule whose ticks are needed.
SELECT pgleases.schedule_read(
    p_group => $1::pg_catalog.text, p_name => $2::pg_catalog.text);

-- dolock: locks a schedule for a change, and returns it.
SELECT pgleases.schedule_do_lock(
    p_group => $1::pg_catalog.text, p_name => $2::pg_catalog.text);

-- lock: dolock for an operator.
SELECT pgleases.schedule_lock(
    p_group => $1::pg_catalog.text, p_name => $2::pg_catalog.text, p_actor => $3::pg_catalog.text,
    p_reason => $4::pg_catalog.text);

-- dopause: pauses a schedule.
SELECT pgleases.schedule_do_pause(
    p_group => $1::pg_catalog.text, p_name => $2::pg_catalog.text);

-- pause: dopause for an operator.
SELECT pgleases.schedule_pause(
    p_group => $1::pg_catalog.text, p_name => $2::pg_catalog.text, p_actor => $3::pg_catalog.text,
    p_reason => $4::pg_catalog.text);

-- doresume: ends a pause; passed ticks are canceled.
SELECT pgleases.schedule_do_resume(
    p_group => $1::pg_catalog.text, p_name => $2::pg_catalog.text,
    p_until => $3::pg_catalog.timestamptz, p_canceled_until => $4::pg_catalog.timestamptz,
    p_canceled => $5::bigint, p_why => NULL::pg_catalog.text);

-- resume: doresume for an operator.
SELECT pgleases.schedule_resume(
    p_group => $1::pg_catalog.text, p_name => $2::pg_catalog.text,
    p_until => $3::pg_catalog.timestamptz, p_canceled_until => $4::pg_catalog.timestamptz,
    p_canceled => $5::bigint, p_actor => $6::pg_catalog.text, p_reason => $7::pg_catalog.text);

-- docatchup: ends a pause; passed ticks run.
SELECT pgleases.schedule_do_catch_up(
    p_group => $1::pg_catalog.text, p_name => $2::pg_catalog.text);

-- catchup: docatchup for an operator.
SELECT pgleases.schedule_catch_up(
    p_group => $1::pg_catalog.text, p_name => $2::pg_catalog.text, p_actor => $3::pg_catalog.text,
    p_reason => $4::pg_catalog.text);

-- dodelete: deletes a schedule.
SELECT pgleases.schedule_do_delete(
    p_group => $1::pg_catalog.text, p_name => $2::pg_catalog.text,
    p_until => $3::pg_catalog.timestamptz, p_canceled_until => $4::pg_catalog.timestamptz,
    p_canceled => $5::bigint, p_why => NULL::pg_catalog.text)::pg_catalog.text;

-- delete: dodelete for an operator.
SELECT pgleases.schedule_delete(
    p_group => $1::pg_catalog.text, p_name => $2::pg_catalog.text,
    p_until => $3::pg_catalog.timestamptz, p_canceled_until => $4::pg_catalog.timestamptz,
    p_canceled => $5::bigint, p_actor => $6::pg_catalog.text, p_reason => $7::pg_catalog.text)::pg_catalog.text;

-- dotrigger: enqueues an extra run.
SELECT pgleases.schedule_do_trigger(
    p_group => $1::pg_catalog.text, p_name => $2::pg_catalog.text);

-- trigger: dotrigger for an operator.
SELECT pgleases.schedule_trigger(
    p_group => $1::pg_catalog.text, p_name => $2::pg_catalog.text, p_actor => $3::pg_catalog.text,
    p_reason => $4::pg_catalog.text);

-- dobackfill: enqueues extra runs for past ticks.
SELECT pgleases.schedule_do_backfill(
    p_group => $1::pg_catalog.text, p_name => $2::pg_catalog.text,
    p_begins => $3::pg_catalog.timestamptz[], p_ticks => $4::pg_catalog.timestamptz[]);

-- backfill: dobackfill for an operator.
SELECT pgleases.schedule_backfill(
    p_group => $1::pg_catalog.text, p_name => $2::pg_catalog.text,
    p_after => $3::pg_catalog.timestamptz, p_until => $4::pg_catalog.timestamptz,
    p_begins => $5::pg_catalog.timestamptz[], p_ticks => $6::pg_catalog.timestamptz[],
    p_actor => $7::pg_catalog.text, p_reason => $8::pg_catalog.text);

-- doretrytick: runs a schedule once more for a tick.
SELECT pgleases.schedule_do_retry_tick(
    p_group => $1::pg_catalog.text, p_name => $2::pg_catalog.text,
    p_tick => $3::pg_catalog.timestamptz);

-- retrytick: doretrytick for an operator.
SELECT pgleases.schedule_retry_tick(
    p_group => $1::pg_catalog.text, p_name => $2::pg_catalog.text,
    p_tick => $3::pg_catalog.timestamptz, p_actor => $4::pg_catalog.text,
    p_reason => $5::pg_catalog.text);

-- doretryjob: runs a job once more.
SELECT pgleases.schedule_do_retry_job(
    p_group => $1::pg_catalog.text, p_job => $2::bigint);

-- retryjob: doretryjob for an operator.
SELECT pgleases.schedule_retry_job(
    p_group => $1::pg_catalog.text, p_job => $2::bigint, p_actor => $3::pg_catalog.text,
    p_reason => $4::pg_catalog.text);

-- doretryfailed: runs the failed ticks and jobs of a kind once more.
SELECT ids, refused FROM pgleases.schedule_do_retry_failed(
    p_group => $1::pg_catalog.text, p_kind => $2::pg_catalog.text,
    p_since => $3::pg_catalog.timestamptz);

-- retryfailed: doretryfailed for an operator.
SELECT ids, refused FROM pgleases.schedule_retry_failed(
    p_group => $1::pg_catalog.text, p_kind => $2::pg_catalog.text,
    p_since => $3::pg_catalog.timestamptz, p_actor => $4::pg_catalog.text,
    p_reason => $5::pg_catalog.text);

-- docanceljob: cancels a job.
SELECT pgleases.schedule_do_cancel_job(
    p_group => $1::pg_catalog.text, p_job => $2::bigint, p_why => NULL::pg_catalog.text)::pg_catalog.text;

-- canceljob: docanceljob for an operator.
SELECT pgleases.schedule_cancel_job(
    p_group => $1::pg_catalog.text, p_job => $2::bigint, p_actor => $3::pg_catalog.text,
    p_reason => $4::pg_catalog.text)::pg_catalog.text;

-- trim: deletes a page of old entries of the history.
SELECT up_to, more FROM pgleases.schedule_trim($1::pg_catalog.text, $2::boolean, $3::pg_catalog.timestamptz, $4::bigint, $5::int);
