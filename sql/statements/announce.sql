-- announce.sql: informs the new owners, after a release that did not. It raises the generations of the leases, which
-- heartbeats return, and notifies sessions. It is separate from the release, because until it commits it keeps other
-- transactions from the lease, and every notification from being sent. So it does not wait for a flush. A crash that
-- loses it begins another server incarnation, and there everything is read again.
--
-- $1 text[]    leases
-- $2 bigint[]  sessions
-- $3 int       lock timeout, milliseconds
-- $4 text      channel to notify; empty: do not notify
SELECT pgleases.announce($1::text[], $2::bigint[], $3::int, $4::text)
