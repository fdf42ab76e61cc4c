-- change.sql: edit.sql for an operator: it writes down who changes what, and why, in the transaction of the change.
--
-- $1 to $4  as in edit.sql
-- $5 text   who, besides the role
-- $6 text   why
--
-- As edit.sql returns it.
SELECT asks, ids, coalesce(refused, 0) FROM pgleases.schedule_change($1::pg_catalog.text, $2::pg_catalog.text, $3::pg_catalog.text, $4::pg_catalog.jsonb, $5::pg_catalog.text, $6::pg_catalog.text)
