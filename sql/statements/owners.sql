-- owners.sql: who owns partitions, for applications that ask. A session that has expired or was revoked is no owner: its
-- client does not act as owner any longer. It reads by keys, and locks no row.
--
-- $1 text[], $2 int[], $3 int[]  lease, first and last partition of each part
--
-- For each part, a row for each of its owners, or one row without an owner: the number of the part, from 1; the lease's
-- number of partitions (0: there is no such lease) and its generation; the owner's client ID and metadata; arrays of
-- the partitions that it owns, and of their epochs.
SELECT w.number, coalesce(l.partitions, 0), coalesce(l.generation, 0), coalesce(o.id, ''), coalesce(o.metadata, '{}')::text,
       coalesce(o.partitions, '{}'), coalesce(o.epochs, '{}')
FROM unnest($1::text[], $2::int[], $3::int[]) WITH ORDINALITY AS w (lease, first, last, number)
LEFT JOIN pgleases.leases AS l ON l.name = w.lease
LEFT JOIN LATERAL (
    SELECT c.id, c.metadata, array_agg(p.partition) AS partitions, array_agg(p.epoch) AS epochs
    FROM pgleases.partitions AS p
    JOIN pgleases.clients AS c ON c.session = p.owner
    WHERE p.lease = w.lease AND p.partition BETWEEN w.first AND w.last
      AND c.incarnation >= 0 AND c.expires_at > clock_timestamp()
    GROUP BY c.session
) AS o ON true
