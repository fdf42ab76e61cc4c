-- fence.sql: runs before a release that open guarded transactions keep waiting. It raises the epoch and keeps the
-- owner, so that no further transaction passes a guard under the previous epoch. Otherwise transactions that overlap
-- would keep a release waiting for ever. Open transactions continue, and the release waits for them. Repeated after a
-- lost answer it changes no row, because it names epochs.
--
-- $1 bigint  session
-- $2 text[], $3 int[], $4 bigint[]  lease, partition and epoch of each partition to release
-- $5 int     lock timeout, milliseconds
--
-- A later read returns the new epochs.
WITH settings AS MATERIALIZED ( -- read below, because PostgreSQL would not run it otherwise
    SELECT pgleases.settings(true, $5::int) AS ok
), owned AS MATERIALIZED ( -- SKIP LOCKED: a plan that gives them to others does not wait, and is not waited for
    SELECT p.lease, p.partition, pgleases.first_epoch(s.generation) AS first_epoch
    FROM settings, pgleases.server AS s, pgleases.partitions AS p
    JOIN unnest($2::text[], $3::int[], $4::bigint[]) AS b (lease, partition, epoch)
      ON b.lease = p.lease AND b.partition = p.partition AND b.epoch = p.epoch
    WHERE settings.ok AND s.accepted_timeline = pgleases.timeline() AND p.owner = $1::bigint
    ORDER BY p.lease, p.partition
    FOR NO KEY UPDATE OF p SKIP LOCKED -- open guards do not block this mode
)
UPDATE pgleases.partitions AS p
SET epoch = greatest(p.epoch + 1, o.first_epoch)
FROM owned AS o
WHERE p.lease = o.lease AND p.partition = o.partition
