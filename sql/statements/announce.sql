-- announce.sql: after a release that did not, tells the new owners: the generations of the leases rise, which heartbeats tell, and sessions are
-- notified. Apart from the release, since it keeps others from the lease, and every notification from being sent, until it is
-- committed: so it waits for no flush. A crash that loses it begins another server incarnation, in which all is read anew.
--
-- $1 text[]    leases
-- $2 bigint[]  sessions
-- $3 int       lock timeout, milliseconds
-- $4 text      channel to notify; empty: none
SELECT pgleases.announce($1::text[], $2::bigint[], $3::int, $4::text)
