-- apply.sql: writes a plan. A lease that has changed since the plan read it is overtaken: nothing of it is written, and
-- the other leases are written without it. A partition whose owner is a live member gets its target, and the owner will
-- hand it over. Any other partition goes to its target at once, under the next epoch.
--
-- $1 text[], $2 bigint[]  leases of the plan, and their generations as the plan read them
-- $3 text[], $4 bigint[]  successors: lease and session of each target of a move (0: none)
-- $5 text[], $6 int[], $7 int[]  runs: lease, first and last partition of each part of a lease that contains moves
-- $8 int[]    of each run: what is to be added to a partition's number to get its element in $9, counted from 1
-- $9 int[]    one element for each partition of each run: the number of its successor, from 1; 0: it is not moved
-- $10 int     lock timeout, milliseconds
-- $11 bigint  microseconds until another plan is due. If a lease was overtaken, another plan of all is due after 1 s,
--             because leases with the same members are balanced together
-- $12 bool    another plan is due only for leases with moves left over
-- $13 text[], $14 text[]  leases in which another number of partitions has no owner than before, because all members are
--             at their ceilings; and these partitions, as multiranges
-- $15 text    channel to notify; empty: do not notify
--
-- One row: whether the plan was written, for one lease at least; if not, whether the server is not accepted; the number of partitions that their
-- owners are asked to hand over; the number of partitions given to their targets; the number of moves left over, because
-- a guarded transaction is open on the partition, or because its epoch rose meanwhile; the leases that were overtaken; the
-- leases whose generation it raised, by 1.
SELECT applied, unaccepted, asked, given, left_over, overtaken, moved
FROM pgleases.apply($1::text[], $2::bigint[], $3::text[], $4::bigint[], $5::text[], $6::int[], $7::int[], $8::int[],
                    $9::int[], $10::int, $11::bigint, $12::bool, $13::text[], $14::text[], $15::text)
