-- lockacquire.sql: takes a lock, or a place in its queue, on a connection of the application's. Repeated with the same nonce, after a lost
-- answer, it returns what has become of the first. It refuses a transaction that is not READ COMMITTED (PL003).
--
-- $1 text     name
-- $2 bigint   session
-- $3 bigint   nonce, random
-- $4 boolean  shared
-- $5 boolean  whether to wait where the lock is not free; else nothing is written then
-- $6 bigint   last instant at which it may be carried out, microseconds since 1970
-- $7 bigint timeline, $8 bigint started, $9 bigint marker: the server incarnation that the last heartbeat told
-- $10 int     lock timeout, milliseconds
-- $11 boolean whether to notify whom it is granted to on the way
--
-- One array, whose first element is the outcome: granted, then the token; waits; held (it was not to wait), then the first holder's client
-- ID (empty: it has expired), host and process ID, since when it holds the lock, and until when it lives if it falls silent, microseconds since
-- 1970; elsewhere (this is another server, or another incarnation of it); unaccepted (nothing is granted after a promotion, until that is
-- accepted); late (the last instant has passed); gone (the session was evicted, or a newer process has its client ID).
SELECT pgleases.lock_acquire($1::pg_catalog.text, $2::bigint, $3::bigint, $4::boolean, $5::boolean, $6::bigint,
                             $7::bigint, $8::bigint, $9::bigint, $10::int, $11::boolean)
