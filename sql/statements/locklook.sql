-- locklook.sql: what has become of a session's acquisitions. Where somebody before it in a queue has crashed, it sees to that first.
--
-- $1 bigint    session
-- $2 bigint[]  nonces
-- $3 boolean   whether to tell all of the session's, not only these
-- $4 int       lock timeout, milliseconds
-- $5 text      whether to notify whom it is granted to: anything; empty: not
--
-- One row: the server's timeline and start; arrays of those that exist: name, nonce, token (0: it waits).
SELECT timeline, started, found_names, found_nonces, tokens
FROM pgleases.lock_look($1::bigint, $2::bigint[], $3::boolean, $4::int, $5::text <> '')
