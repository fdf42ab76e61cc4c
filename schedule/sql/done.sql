-- done.sql: close.sql for a tick that is done, and is the only one to have its outcome, as most are.
--
-- $1 bigint        schedule
-- $2 text          mark of the run, from open.sql
-- $3 bigint        revision that open.sql read
-- $4 timestamptz   cursor that open.sql read
-- $5 timestamptz   the tick
-- $6 bigint        what the clocks of the rule's zone show at it, as microseconds since 1970 as if it were a time of UTC
-- $7 timestamptz   when to look at the schedule next; null: never
-- $8 timestamptz   when the handler was first called for the tick
-- $9 timestamptz   when it ended
-- $10 int          how many attempts there were
-- $11 bigint       epoch
-- $12 timestamptz  when the run began
SELECT pgleases.schedule_done_tick($1::bigint, $2::pg_catalog.text, $3::bigint, $4::pg_catalog.timestamptz, $5::pg_catalog.timestamptz,
    $6::bigint, $7::pg_catalog.timestamptz,
    $8::pg_catalog.timestamptz, $9::pg_catalog.timestamptz, $10::int, $11::bigint, $12::pg_catalog.timestamptz)::pg_catalog.text
