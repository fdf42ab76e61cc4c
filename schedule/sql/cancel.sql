-- cancel.sql: cancels a job.
--
-- $1 text    group
-- $2 bigint  job
-- $3 text    who wants it, besides the role
-- $4 text    why; empty: nobody says
--
-- Whether it was there.
SELECT pgleases.schedule_cancel($1::pg_catalog.text, $2::bigint,
                               CASE WHEN $4::pg_catalog.text OPERATOR(pg_catalog.<>) '' THEN pg_catalog.concat(pgleases.schedule_actor($3::pg_catalog.text), ': ', $4::pg_catalog.text) END)
