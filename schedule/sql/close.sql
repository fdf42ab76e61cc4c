-- close.sql: the last statement of a run before COMMIT: steps the schedule's cursor, and writes down what became of its ticks. Where that cannot be, it
-- raises, so that nothing of the transaction is committed.
--
-- $1 bigint       schedule
-- $2 text         mark of the run, from open.sql
-- $3 bigint       revision that open.sql read
-- $4 timestamptz  cursor that open.sql read
-- $5 timestamptz  new cursor
-- $6 timestamptz  when to look at it next, where nobody has edited it meanwhile; null: never
-- $7 timestamptz  the tick that was done; null: none was
-- $8 text         why it cannot be run here; null: it can
-- $9 jsonb        fates: an array of {since, until, ticks, fate, error, epoch, started_at}, of which each begins where the last ends
--
-- PS001: the schedule was deleted. PS002: its cursor has moved. PS003: this is not the transaction that open.sql was in.
SELECT pgleases.schedule_close($1::bigint, $2::pg_catalog.text, $3::bigint, $4::pg_catalog.timestamptz, $5::pg_catalog.timestamptz, $6::pg_catalog.timestamptz,
                               $7::pg_catalog.timestamptz, $8::pg_catalog.text, $9::pg_catalog.jsonb)::pg_catalog.text
