-- begin.sql: notes, after guard.sql, that an owner begins to run something in a partition.
--
-- $1 text    group
-- $2 int     partition
-- $3 bigint  epoch
-- $4 int     the most that it waits for a lock, milliseconds
--
-- Whether the owner before died: it began, and did not end.
SELECT pgleases.schedule_begin($1::pg_catalog.text, $2::int, $3::bigint, $4::int)
