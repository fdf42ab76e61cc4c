-- locklook.sql: the outcome of a session's acquisitions. If a session before it in a queue has crashed, it first
-- removes that session.
--
-- $1 bigint    session
-- $2 bigint[]  nonces
-- $3 boolean   whether to return all acquisitions of the session, not only these
-- $4 int       lock timeout, milliseconds
-- $5 text      whether to notify the sessions that get a lock: any text; empty: do not notify
--
-- One row: the server's timeline and start; arrays of the acquisitions that exist: name, nonce, token (0: it waits).
SELECT timeline, started, found_names, found_nonces, tokens
FROM pgleases.lock_look($1::bigint, $2::bigint[], $3::boolean, $4::int, $5::text <> '')
