-- read.sql: the partitions that a session owns in the named leases.
--
-- $1 bigint  session
-- $2 text[]  leases
--
-- One row for each lease: its generation; the server's timeline and start, which show whether this is the server
-- incarnation of the last heartbeat (behind a pooler it may be another one); the accepted timeline and the server
-- generation; arrays by partition number of the epochs, and of whether the partition moves; who paused the lease, and
-- why; who drained the client, and why; null: the lease is not paused, or the client is not drained.
SELECT name, generation, timeline, started, accepted_timeline, server_generation, partitions, epochs, moving, paused, drained FROM pgleases.read($1::bigint, $2::text[])
