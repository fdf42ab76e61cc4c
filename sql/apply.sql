-- apply.sql: writes a plan, whole or not at all: nothing where a lease of the plan has changed since the plan read it. A
-- partition whose owner is a living member gets its target, and the owner will hand it over. Any other partition goes to its
-- target at once, under the next epoch.
--
-- $1 text[], $2 bigint[]  leases of the plan, and their generations as the plan read them
-- $3 text[], $4 int[], $5 bigint[]  lease, partition and target session (0: none) of each move
-- $6 int      lock timeout, milliseconds
-- $7 bigint   microseconds until another plan is due: 0 where this one has more moves; negative: none is
-- $8 text     channel to notify; empty: none
--
-- One row: whether the plan was written; the number of owners asked to hand over; of partitions given to their targets; of
-- moves left over, because a guarded transaction is open on the partition, or because its epoch rose meanwhile.
SELECT applied, asked, given, left_over
FROM pgleases.apply($1::text[], $2::bigint[], $3::text[], $4::int[], $5::bigint[], $6::int, $7::bigint, $8::text)
