-- look.sql: what is due now or soon, in the partitions that a process owns.
--
-- $1 text    group
-- $2 int[]   the partitions
-- $3 int[]   those of them that it owns since it last looked: what waits there is due at once, as this process may know what the last did not
-- $4 bigint  only what is due after this instant, microseconds since 1970; it does not count for the new partitions
-- $5 bigint  how far to look ahead, microseconds
-- $6 int     the most rows of each partition, of schedules and of jobs of each priority
-- $7 text[]  keys that are left out
-- $8 text[]  kinds that are
--
-- One row: the database's time when it began, microseconds since 1970; how long it took, microseconds; then of what is due, by when it is,
-- an array of each of id, job, priority, partition, key, kind, due_us, and how many crashes are counted; null: nothing is.
SELECT clock_us, took_us, id, job, priority, partition, key, kind, due_us, crashes
    FROM pgleases.schedule_look($1::pg_catalog.text, $2::int[], $3::int[], $4::bigint, $5::bigint, $6::int, $7::pg_catalog.text[],
    $8::pg_catalog.text[])
