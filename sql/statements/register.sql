-- register.sql: begins a session. Repeated with the same numbers, after a lost answer, it only renews the session.
--
-- $1 bigint       session
-- $2 text         client ID
-- $3 bigint       incarnation of the client's first registration; 0: this is the first
-- $4 bigint       number of the client: the lowest 24 bits count the clients of one program, the other bits are random
-- $5 bigint       TTL, microseconds
-- $6 text         host
-- $7 int          process ID
-- $8 timestamptz  when the client was opened
-- $9 text         metadata, as JSON
-- $10 int         lock timeout, milliseconds
--
-- One row: the incarnation; null if a newer process has the client ID, with that process's host, process ID and start,
-- or if an operator has evicted this process; and whether it is null because live processes have taken the ID from each
-- other so often that this one has to wait, see identities.takeovers.
SELECT incarnation, host, pid, started_at, evicted, contended
FROM pgleases.register($1::bigint, $2::text, $3::bigint, $4::bigint, $5::bigint, $6::text, $7::int, $8::timestamptz, $9::jsonb, $10::int)
