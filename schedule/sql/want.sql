-- want.sql: notes for which kinds a process finds no slot now.
--
-- $1 text   group
-- $2 text   the process: a name that it has drawn
-- $3 jsonb  an object of the limits of these kinds, by their names
SELECT pgleases.schedule_want($1::pg_catalog.text, $2::pg_catalog.text, $3::pg_catalog.jsonb)::pg_catalog.text
