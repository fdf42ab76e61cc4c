-- noted.sql: writes down what was changed, in the transaction of the change, with who and why.
--
-- $1 text    verb
-- $2 text    group
-- $3 text    name of the schedule; null: that of a job
-- $4 bigint  that job, which has ended; null: there is a name
-- $5 bigint  the schedule's id; null: it is about a job
-- $6 bigint  the job that was put, or cancelled; null: none
-- $7 text    what else was wanted, as JSON; null, as text: nothing
-- $8 text    who, besides the role
-- $9 text    why
SELECT pgleases.schedule_asked($1::pg_catalog.text, $2::pg_catalog.text,
                               coalesce($3::pg_catalog.text, (SELECT h.name FROM pgleases.history AS h WHERE h.job OPERATOR(pg_catalog.=) $4::bigint LIMIT 1)),
                               $5::bigint, $6::bigint,
                               CASE WHEN $7::pg_catalog.text OPERATOR(pg_catalog.<>) 'null' THEN $7::pg_catalog.text::pg_catalog.jsonb END,
                               $8::pg_catalog.text, $9::pg_catalog.text, true)
