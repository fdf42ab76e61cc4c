-- release.sql: the owner gives up partitions on which its work has ended, and leaves leases. Each partition goes to its target
-- at once, under the next epoch. Where the target does not exist any more, or is the session that leaves, the partition gets no
-- owner and a plan is due; where the target is the owner itself, a new ownership begins. An ownership of an era before the present
-- one is renewed: the owner stays, so that nobody has to wait for the end of what it has worked with. Repeated after a lost
-- answer it changes nothing, because it names epochs.
--
-- $1 bigint  session
-- $2 text[], $3 int[], $4 bigint[]  lease, partition and epoch of each release
-- $5 text[]  leases to leave; where the session still owns a partition, it stays a member, with weight 0
-- $6 bigint  number of the session's last join: a late message does not end a membership that a later join began
-- $7 int     lock timeout, milliseconds
-- $8 text    channel to notify; empty: none
--
-- One row of arrays: the partitions released, with new owner (0: none) and epoch; those still owned under the epoch given,
-- because a guarded transaction is open on them; the leases left; the leases for which a plan is due now.
WITH settings AS MATERIALIZED ( -- read below, else PostgreSQL would not run it
    SELECT pgleases.settings(true, $7::int) AS ok
), batch AS MATERIALIZED (
    SELECT b.* FROM unnest($2::text[], $3::int[], $4::bigint[]) AS b (lease, partition, epoch)
), before AS MATERIALIZED ( -- the generations in this statement's snapshot
    SELECT l.name, l.generation FROM pgleases.leases AS l
    WHERE l.name = ANY ($2::text[]) OR l.name = ANY ($5::text[])
), locked AS MATERIALIZED ( -- the generations now, after the wait for the locks
    SELECT l.name, l.generation FROM pgleases.leases AS l, settings
    WHERE settings.ok AND (l.name = ANY ($2::text[]) OR l.name = ANY ($5::text[]))
    ORDER BY l.name
    FOR UPDATE OF l
), valid AS MATERIALIZED ( -- one row: the server is settled. The count is always >= 0: leases are locked first
    SELECT s.era, pgleases.first_epoch(s.era) AS first_epoch FROM pgleases.server AS s
    WHERE (SELECT count(*) FROM locked) >= 0 AND s.timeline = pgleases.timeline()
), taken AS MATERIALIZED (
    SELECT p.lease, p.partition, p.target,
           b.epoch >> 32 < (SELECT era FROM valid) AND (p.lease = ANY ($5::text[])) IS NOT TRUE AS renewed
    FROM (SELECT * FROM batch ORDER BY lease, partition) AS b
    CROSS JOIN LATERAL ( -- IS TRUE keeps the planner from the index on owner: by the key is faster
        SELECT p.lease, p.partition, p.target
        FROM pgleases.partitions AS p
        WHERE p.lease = b.lease AND p.partition = b.partition
          AND (p.owner = $1::bigint) IS TRUE AND p.epoch = b.epoch
        FOR UPDATE SKIP LOCKED -- a guarded transaction has the others
    ) AS p
    WHERE EXISTS (SELECT FROM valid)
), heirs AS MATERIALIZED (
    SELECT k.lease, k.partition, c.session, c.id,
           CASE WHEN k.renewed THEN k.target ELSE c.session END AS target,
           EXISTS (SELECT FROM pgleases.members AS own
                   WHERE own.session = $1::bigint AND own.lease = k.lease AND own.weight = 0) AS draining
    FROM taken AS k
    LEFT JOIN pgleases.members AS m
           ON m.lease = k.lease AND m.session = CASE WHEN k.renewed THEN $1::bigint ELSE k.target END
          AND (m.session = $1::bigint AND m.lease = ANY ($5::text[])) IS NOT TRUE -- with no lease to leave the array is null
    LEFT JOIN pgleases.clients AS c ON c.session = m.session
), released AS (
    UPDATE pgleases.partitions AS p
    SET owner = h.session, target = h.target,
        epoch = greatest(p.epoch + 1, (SELECT first_epoch FROM valid)),
        owner_id = coalesce(h.id, p.owner_id),
        home_id = CASE WHEN h.id = p.home_id THEN NULL
                       WHEN h.id <> p.owner_id AND (p.lease = ANY ($5::text[]) OR h.draining) THEN p.owner_id
                       ELSE p.home_id END,
        owned_since = CASE WHEN h.session IS NOT NULL THEN clock_timestamp() END,
        asked_at = CASE WHEN h.target IS DISTINCT FROM h.session THEN p.asked_at END
    FROM heirs AS h
    WHERE p.lease = h.lease AND p.partition = h.partition
    RETURNING p.lease, p.partition, p.owner, p.epoch
), busy AS MATERIALIZED ( -- IS TRUE as above; OFFSET 0: looked up one by one, not joined
    SELECT b.lease, b.partition FROM batch AS b
    WHERE EXISTS (SELECT FROM pgleases.partitions AS p
                  WHERE p.lease = b.lease AND p.partition = b.partition
                    AND (p.owner = $1::bigint) IS TRUE AND p.epoch = b.epoch
                  OFFSET 0)
    EXCEPT SELECT r.lease, r.partition FROM released AS r
), rest AS MATERIALIZED ( -- still owned in leases to leave
    SELECT p.lease, p.partition FROM pgleases.partitions AS p
    WHERE p.owner = $1::bigint AND p.lease = ANY ($5::text[])
    EXCEPT SELECT r.lease, r.partition FROM released AS r
), gone AS (
    DELETE FROM pgleases.members AS m USING locked
    WHERE m.session = $1::bigint AND m.lease = locked.name AND m.lease = ANY ($5::text[])
      AND m.lease NOT IN (SELECT lease FROM rest) AND m.join_number <= $6::bigint
    RETURNING m.lease
), drained AS (
    UPDATE pgleases.members AS m SET weight = 0 FROM locked
    WHERE m.session = $1::bigint AND m.lease = locked.name AND m.lease IN (SELECT lease FROM rest) AND m.weight <> 0
      AND m.join_number <= $6::bigint
    RETURNING m.lease
), changed AS ( -- a plan is due also where a lease changed during the wait: this statement did not see the change
    UPDATE pgleases.leases AS l
    SET generation = l.generation + 1,
        next_check_at = CASE
            WHEN l.name IN (SELECT lease FROM gone UNION ALL SELECT lease FROM drained
                            UNION ALL SELECT lease FROM released WHERE owner IS NULL)
              OR locked.generation IS DISTINCT FROM before.generation
            THEN least(l.next_check_at, clock_timestamp())
            ELSE l.next_check_at END
    FROM locked LEFT JOIN before USING (name)
    WHERE l.name = locked.name
      AND l.name IN (SELECT lease FROM gone UNION ALL SELECT lease FROM drained UNION ALL SELECT lease FROM released)
    RETURNING l.name, l.next_check_at
), concerned AS MATERIALIZED ( -- sessions to notify
    SELECT DISTINCT owner FROM released WHERE owner <> $1::bigint
)
SELECT coalesce((SELECT array_agg(lease ORDER BY lease, partition) FROM released), '{}') AS released_leases,
       coalesce((SELECT array_agg(partition ORDER BY lease, partition) FROM released), '{}') AS released_partitions,
       coalesce((SELECT array_agg(coalesce(owner, 0) ORDER BY lease, partition) FROM released), '{}') AS owners,
       coalesce((SELECT array_agg(epoch ORDER BY lease, partition) FROM released), '{}') AS epochs,
       coalesce((SELECT array_agg(lease ORDER BY lease, partition) FROM busy), '{}') AS busy_leases,
       coalesce((SELECT array_agg(partition ORDER BY lease, partition) FROM busy), '{}') AS busy_partitions,
       coalesce((SELECT array_agg(lease ORDER BY lease) FROM gone), '{}') AS left_leases,
       coalesce((SELECT array_agg(name ORDER BY name) FROM changed WHERE next_check_at <= clock_timestamp()), '{}') AS asking,
       CASE WHEN $8::text <> '' AND (SELECT count(*) FROM concerned) > 0
            THEN pg_notify($8::text, CASE WHEN (SELECT count(*) FROM concerned) > 100 THEN 'all'
                                          ELSE (SELECT string_agg(owner::text, ',') FROM concerned) END)::text
       END AS notified
