-- watch.sql: with fast failover, returns which locks of liveness.sql are held. The clients with the two lowest sessions
-- watch, so the statement also returns whether the caller is one of them.
--
-- $1 bigint  session
-- $2 bigint  digest, as the last call on this connection returned it; 0: this is the first call
--
-- One row: whether the session watches. If it does: how many sessions in this database were abandoned by their clients,
-- were killed, and ended with a fatal error, and the counters' last reset, microseconds since 1970 (0: never); the
-- digest of the keys that are held; the keys, and the server processes that hold them (both empty if the digest is the
-- one given); the keys that are free, with their sessions, and the expiries of these sessions, microseconds since 1970;
-- a server process that holds or awaits one of the locks and is not the client's (0: there is none), which keeps that
-- lock held when the client crashes.
SELECT watches, abandoned, killed, fatal, reset, digest, held, pids, free, free_sessions, free_expiries, stranger
FROM pgleases.watch_liveness($1::bigint, $2::bigint)
