-- partitions.sql: the partitions as they are, with the client that has the owner's session.
SELECT p.lease, p.partition, p.owner IS NOT NULL, coalesce(p.owner_id, ''), p.epoch, l.epoch_floor, coalesce(c.id, '')
FROM pgleases.partitions AS p
JOIN pgleases.leases AS l ON l.name = p.lease
LEFT JOIN pgleases.clients AS c ON c.session = p.owner
ORDER BY p.lease, p.partition
