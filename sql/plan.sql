-- plan.sql: all that a plan needs, in one snapshot: the leases named and those that share members with them.
--
-- $1 text[] leases
--
-- A row a lease, by name: its generation; its living members, in arrays; its partitions, in arrays by number, with the
-- sessions that own them and shall (0: none) and the client IDs of their last owner, where that lives no more, and of who gets them back when it returns.
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
