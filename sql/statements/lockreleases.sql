-- lockreleases.sql: lockrelease.sql for several of a session's, on the client's own connection.
--
-- $1 bigint    session
-- $2 text[], $3 bigint[]  name and nonce of each
-- $4 bigint[]  the last instant at which its acquisition may be carried out, microseconds since 1970; 0: it was
-- $5 bigint timeline, $6 bigint started, $7 bigint marker: the server incarnation that the last heartbeat told
-- $8 int       lock timeout, milliseconds
-- $9 text      whether to notify whom it is granted to: anything; empty: not
--
-- One row: whether it is that server incarnation; the nonces of which a row was deleted; those that have none, and will have none. Those
-- in neither are held by a guarded transaction that is open, or may still arrive.
SELECT same_run, released, absent
FROM pgleases.lock_releases($1::bigint, $2::pg_catalog.text[], $3::bigint[], $4::bigint[], $5::bigint, $6::bigint, $7::bigint, $8::int, $9::text <> '')
