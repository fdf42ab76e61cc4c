-- apply.sql: writes a plan, whole or not at all: nothing where a lease of the plan has changed since the plan read it. A
-- partition whose owner is a live member gets its target, and the owner will hand it over. Any other partition goes to its
-- target at once, under the next epoch.
--
-- $1 text[], $2 bigint[]  leases of the plan, and their generations as the plan read them
-- $3 text[], $4 bigint[]  successors: lease and session of each target of a move (0: none)
-- $5 text[], $6 int[], $7 int[]  runs: lease, first and last partition of each part of a lease in which there are moves
-- $8 int[]    one element for each partition of each run: the number of its successor, from 1; 0: it is not moved
-- $9 int      lock timeout, milliseconds
-- $10 bigint  microseconds until another plan is due; negative: only of leases in which moves are left over, after so many
-- $11 text    channel to notify; empty: none
--
-- One row: whether the plan was written; if not, whether the server is not accepted; the number of owners asked to hand over; of partitions given to their targets; of
-- moves left over, because a guarded transaction is open on the partition, or because its epoch rose meanwhile; the leases whose
-- generation it raised, by one.
SELECT applied, unaccepted, asked, given, left_over, moved
FROM pgleases.apply($1::text[], $2::bigint[], $3::text[], $4::bigint[], $5::text[], $6::int[], $7::int[], $8::int[],
                    $9::int, $10::bigint, $11::text)
