-- share.sql: where it is told that something was put.
--
-- $1 text  group
--
-- The number of the group's channel, and of the server's process.
SELECT pgleases.schedule_share($1::pg_catalog.text), pg_catalog.pg_backend_pid()
