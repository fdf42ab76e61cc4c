-- watch.sql: with fast failover, which locks of liveness.sql are held. It tells the two lowest sessions that have one, so that each client
-- that asks knows whether it is one of the two that watch.
--
-- $1 bigint  session
-- $2 bigint  digest, as the last look on this connection returned it; 0: there was none
--
-- One row: whether the session watches; if it does, how many sessions in this database were abandoned by their clients, killed, and ended by
-- a fatal error, and the counters' last reset, microseconds since 1970 (0: never); the digest of the keys that are held; the keys, and
-- the server's processes that hold them (both empty where the digest is the one given); the keys of sessions that nobody holds, with
-- these sessions, and their expiries, microseconds since 1970; a process of the server that holds
-- or awaits one of the locks and is not the client's (0: there is none), which keeps that lock held
-- when the client crashes.
SELECT watches, abandoned, killed, fatal, reset, digest, held, pids, free, free_sessions, free_expiries, stranger
FROM pgleases.watch_liveness($1::bigint, $2::bigint)
