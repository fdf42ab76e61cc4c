-- plan.sql: what a plan needs to know, in one snapshot: of the leases named, and of all that share a member with them.
--
-- $1 text[]  leases
--
-- One row for each lease, by name: its generation; arrays of its living members, by ID, incarnation and session; arrays by
-- partition number: the owner and the target (sessions; 0: none), the last owner's client ID (empty where the owner's session
-- exists), and the client ID to which the partition returns (empty: none).
WITH related AS MATERIALIZED (
    SELECT l.name, l.generation FROM pgleases.leases AS l
    WHERE l.partitions > 0
      AND (l.name = ANY ($1::text[])
           OR l.name IN (SELECT other.lease FROM pgleases.members AS m
                         JOIN pgleases.members AS other USING (session)
                         WHERE m.lease = ANY ($1::text[])))
)
SELECT r.name, r.generation,
       coalesce(m.sessions, '{}') AS sessions, coalesce(m.ids, '{}') AS ids,
       coalesce(m.incarnations, '{}') AS incarnations, coalesce(m.weights, '{}') AS weights,
       p.owners, p.targets, p.owner_ids, p.home_ids
FROM related AS r
LEFT JOIN (
    SELECT m.lease,
           array_agg(m.session ORDER BY c.id, c.incarnation, c.session) AS sessions,
           array_agg(c.id ORDER BY c.id, c.incarnation, c.session) AS ids,
           array_agg(c.incarnation ORDER BY c.id, c.incarnation, c.session) AS incarnations,
           array_agg(m.weight ORDER BY c.id, c.incarnation, c.session) AS weights
    FROM pgleases.members AS m
    JOIN pgleases.clients AS c USING (session)
    WHERE m.lease IN (SELECT name FROM related)
    GROUP BY m.lease
) AS m ON m.lease = r.name
JOIN (
    SELECT p.lease,
           array_agg(coalesce(p.owner, 0) ORDER BY p.partition) AS owners,
           array_agg(coalesce(p.target, 0) ORDER BY p.partition) AS targets,
           array_agg(CASE WHEN c.session IS NULL THEN coalesce(p.owner_id, '') ELSE '' END ORDER BY p.partition) AS owner_ids,
           array_agg(coalesce(p.home_id, '') ORDER BY p.partition) AS home_ids
    FROM pgleases.partitions AS p
    LEFT JOIN pgleases.clients AS c ON c.session = p.owner
    WHERE p.lease IN (SELECT name FROM related)
    GROUP BY p.lease
) AS p ON p.lease = r.name
ORDER BY r.name
