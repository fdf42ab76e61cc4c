-- trim.sql: deletes old entries of the history, a page of them.
--
-- $1 text         group
-- $2 boolean      those of failures, or the others
-- $3 timestamptz  what was written before
-- $4 bigint       only entries after this id
-- $5 int          how many entries to look at
--
-- up_to: up to this id nothing is left that is to be deleted; more: there may be more.
SELECT up_to, more FROM pgleases.schedule_trim($1::pg_catalog.text, $2::boolean, $3::pg_catalog.timestamptz, $4::bigint, $5::int)
