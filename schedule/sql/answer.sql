-- answer.sql: notes what came of an operator's request.
--
-- $1 bigint  request
-- $2 text    what
SELECT pgleases.schedule_answer($1::bigint, $2::pg_catalog.text)::pg_catalog.text
