-- limit.sql: limits of the statements that come after it in the transaction, in place of those that a handler may have set.
--
-- $1 int  the most that one takes, milliseconds
-- $2 int  the most that one waits for a lock, milliseconds
SELECT pg_catalog.set_config('statement_timeout', $1::int::pg_catalog.text, true), pg_catalog.set_config('lock_timeout', $2::int::pg_catalog.text, true)
