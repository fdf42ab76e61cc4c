-- lockreleases.sql: lockrelease.sql for several locks of a session, on the client's own connection.
--
-- $1 bigint    session
-- $2 text[], $3 bigint[]  name and nonce of each
-- $4 bigint[]  the last instant when each acquisition may be executed, microseconds since 1970; 0: it was executed
-- $5 bigint timeline, $6 bigint started, $7 bigint marker: the server incarnation of the last heartbeat
-- $8 int       lock timeout, milliseconds
-- $9 text      whether to notify the sessions that get a lock: any text; empty: do not notify
--
-- One row: whether it is that server incarnation; the nonces whose rows were deleted; the nonces that have no row, and
-- will have none. The others are held by an open guarded transaction, or may still arrive.
SELECT same_run, released, absent
FROM pgleases.lock_releases($1::bigint, $2::pg_catalog.text[], $3::bigint[], $4::bigint[], $5::bigint, $6::bigint, $7::bigint, $8::int, $9::text <> '')
