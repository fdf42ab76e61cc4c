-- guard.sql: the guard lock, in the caller's transaction, and a limit on how long that transaction may then be idle.
--
-- $1 text    lease
-- $2 int     partition
-- $3 bigint  epoch
-- $4 bigint  trust left, milliseconds, at least 1
--
-- It runs under the application's search_path, so everything is named with its schema.
SELECT pgleases.guard($1::pg_catalog.text, $2::int, $3::bigint)::pg_catalog.text AS guarded, -- text, because not every driver reads void
       pg_catalog.set_config('idle_in_transaction_session_timeout', (
           SELECT least($4::bigint, CASE WHEN now.ms OPERATOR(pg_catalog.>) 0::numeric THEN now.ms END)::bigint::pg_catalog.text
           FROM (SELECT extract(epoch FROM pg_catalog.current_setting('idle_in_transaction_session_timeout')::interval)
                        OPERATOR(pg_catalog.*) 1000::numeric AS ms) AS now -- only ever lower it; 0 means no limit
       ), true) AS idle_limit
