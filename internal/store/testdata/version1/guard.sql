-- guard.sql: the fence, in the caller's transaction; and a limit on how long that transaction may then be idle.
--
-- $1 text    lease
-- $2 int     partition
-- $3 bigint  epoch
-- $4 bigint  trust left, milliseconds, at least 1
SELECT pgleases.guard($1::text, $2::int, $3::bigint)::text AS guarded, -- text, as not every driver reads void
       -- Only ever lower: nullif, because 0 means no limit.
       set_config('idle_in_transaction_session_timeout',
                  least($4::bigint,
                        nullif(extract(epoch FROM current_setting('idle_in_transaction_session_timeout')::interval)
                               * 1000, 0))::bigint::text, true) AS idle_limit
