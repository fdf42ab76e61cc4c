-- tidy.sql: does the work that an eviction leaves for later, in a transaction of its own. The client that made a check
-- for expired sessions calls it. It ends overrides whose time is over, deletes old events, samples and unused client IDs,
-- and searches a part of the tables, the next part at each check, for members without a session, and for owners and targets
-- that are not live members.
--
-- $1 int     lock timeout, milliseconds
--
-- One row: leases that need a plan.
SELECT pgleases.tidy($1::int)
