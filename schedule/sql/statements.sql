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

-- put: writes a schedule.
SELECT pgleases.schedule_put($1::pg_catalog.text, $2::int, $3::pg_catalog.jsonb, $4::pg_catalog.jsonb);

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
FROM pgleases.schedule_poll($1::pg_catalog.text, $2::int[], $3::int[], $4::bigint, $5::bigint, $6::bigint[], $7::int[], $8::int,
    $9::pg_catalog.text[], $10::pg_catalog.text[], $11::bigint[], $12::bigint[]);

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
SELECT pgleases.schedule_close($1::bigint, $2::pg_catalog.text, $3::bigint, $4::pg_catalog.timestamptz, $5::pg_catalog.jsonb)::pg_catalog.text;

-- ticksucceeded: ends a run of a schedule that succeeded.
SELECT pgleases.schedule_tick_succeeded($1::bigint, $2::pg_catalog.text, $3::bigint, $4::pg_catalog.timestamptz, $5::pg_catalog.timestamptz, $6::bigint,
    $7::pg_catalog.timestamptz, $8::pg_catalog.timestamptz, $9::pg_catalog.timestamptz, $10::int, $11::bigint, $12::pg_catalog.timestamptz)::pg_catalog.text;

-- closejob: ends a run of a job.
SELECT pgleases.schedule_close_job($1::bigint, $2::pg_catalog.text, $3::bigint, $4::pg_catalog.jsonb)::pg_catalog.text;

-- jobsucceeded: ends a run of a job that succeeded.
SELECT pgleases.schedule_job_succeeded($1::bigint, $2::pg_catalog.text, $3::bigint, $4::int, $5::bigint, $6::bigint, $7::pg_catalog.timestamptz)::pg_catalog.text;

-- end: records that all runs of an owner in a partition have ended.
SELECT pgleases.schedule_end($1::pg_catalog.text, $2::int, $3::bigint, $4::pg_catalog.text, $5::bigint[], $6::bigint[], $7::int)::pg_catalog.text;

-- makeslots: creates the slots of a kind with a limit.
SELECT pgleases.schedule_make_slots($1::pg_catalog.text, $2::pg_catalog.text, $3::int)::pg_catalog.text;

-- takeslot: takes a slot, if one is free.
SELECT pgleases.schedule_take_slot($1::pg_catalog.text, $2::pg_catalog.text, $3::int, $4::int, $5::bigint, $6::pg_catalog.text);

-- freeslot: frees the slot of a call outside of a transaction.
SELECT pgleases.schedule_free_slot($1::pg_catalog.text, $2::pg_catalog.text, $3::pg_catalog.text, $4::int)::pg_catalog.text;

-- enqueue: enqueues jobs, and returns their ids.
SELECT pgleases.schedule_enqueue($1::pg_catalog.text, $2::int, $3::pg_catalog.jsonb, $4::pg_catalog.text);

-- job: a job, or its outcome.
SELECT pgleases.schedule_job($1::pg_catalog.text, $2::bigint);

-- jobs: the live jobs.
SELECT * FROM pgleases.schedule_jobs($1::pg_catalog.text, $2::pg_catalog.text, $3::pg_catalog.text, $4::pg_catalog.text, $5::bigint, $6::int);

-- list: schedules by name.
SELECT * FROM pgleases.schedule_list($1::pg_catalog.text, $2::pg_catalog.text, $3::pg_catalog.text, $4::pg_catalog.text, $5::int);

-- history: outcomes, newest first.
SELECT * FROM pgleases.schedule_history($1::pg_catalog.text, $2::pg_catalog.text, $3::bigint, $4::int);

-- edit: changes a schedule or a job.
SELECT asks, ids, coalesce(refused, 0)
FROM pgleases.schedule_edit($1::pg_catalog.text, $2::pg_catalog.text, $3::pg_catalog.text, $4::pg_catalog.jsonb,
    NULL::pg_catalog.text);

-- change: edit for an operator.
SELECT asks, ids, coalesce(refused, 0)
FROM pgleases.schedule_change($1::pg_catalog.text, $2::pg_catalog.text, $3::pg_catalog.text, $4::pg_catalog.jsonb, $5::pg_catalog.text, $6::pg_catalog.text);

-- trim: deletes a page of old entries of the history.
SELECT up_to, more FROM pgleases.schedule_trim($1::pg_catalog.text, $2::boolean, $3::pg_catalog.timestamptz, $4::bigint, $5::int);
