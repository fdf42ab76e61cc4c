-- tidy.sql: does what an eviction leaves for later, in a transaction of its own. The client that
-- made a check for expired sessions calls it. It ends overrides whose time is over, deletes old events
-- and unused client IDs, and looks in a part of the tables, the next one at each check, for members
-- without a session, and for owners and targets that are no live members.
--
-- $1 int     lock timeout, milliseconds
--
-- One row: leases for which a plan is due.
SELECT pgleases.tidy($1::int)
