-- put.sql: writes a schedule: a new one, where its id is 0, else one that get.sql has locked.
--
-- $1 text   group
-- $2 int    partitions of its lease, where nobody has run it yet
-- $3 jsonb  the schedule, as get.sql returns it
-- $4 jsonb  outcomes, as in close.sql, of ticks that the edit passes over
--
-- Whether it is written; false: another transaction has made one of the name meanwhile.
SELECT pgleases.schedule_put($1::pg_catalog.text, $2::int, $3::pg_catalog.jsonb, $4::pg_catalog.jsonb)
