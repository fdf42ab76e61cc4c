-- duties.sql: the epochs that consumers have recorded, with the epoch of the partition. That is the floor if the lease was
-- dropped or has fewer partitions now.
SELECT o.consumer, o.partition, o.begun, coalesce(o.ended, 0), coalesce(o.crashed, 0), coalesce(b.epoch, 0), coalesce(p.epoch, l.epoch_floor)
FROM pgleases.consumer_owners AS o
JOIN pgleases.leases AS l ON l.name = 'consumer/' || o.consumer
LEFT JOIN pgleases.partitions AS p ON p.lease = 'consumer/' || o.consumer AND p.partition = o.partition
LEFT JOIN (SELECT r.consumer, r.partition, greatest(max(r.crashed), max(r.charged)) AS epoch
           FROM pgleases.consumer_blocked AS r GROUP BY r.consumer, r.partition) AS b ON b.consumer = o.consumer AND b.partition = o.partition
ORDER BY o.consumer, o.partition
