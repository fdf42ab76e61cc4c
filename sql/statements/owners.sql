-- owners.sql: who owns partitions, for applications that ask. A session that has expired or was revoked is no owner: its
-- client does not act as owner any longer. It reads by keys, and locks no row.
--
-- $1 text[], $2 int[], $3 int[]  lease, first and last partition of each part
-- $4 text[], $5 xid8[]  for each part, the server incarnation and the transaction that the reader's last answer about it
--            had. Then only what has changed since is read, if that is known. Incarnation empty: read all
--
-- For each part, a row without an owner, and a row for each owner. The row without an owner has the number of the part,
-- from 1; the lease's number of partitions (0: there is no such lease) and its generation without the joins; the
-- incarnation (empty: not known) and the transaction to name the next time; the first and the last partitions of what was
-- read. The row of an owner has the number of the part; its client ID and metadata; arrays of its partitions among those
-- that were read, and of their epochs.
--
-- It is a change if a partition goes to another owner, or a session is evicted. It is no change if a session expires or
-- a fence raises an epoch.
SELECT number, partitions, generation, run, seen, firsts, lasts, id, metadata, owned, epochs
FROM pgleases.owners($1::text[], $2::int[], $3::int[], $4::text[], $5::xid8[])
