-- owners.sql: the epochs that schedules and their slots have recorded, with the epoch of the partition. That is the floor
-- if the lease was dropped or has fewer partitions now.
SELECT o.lease, o.partition, o.epoch, o.what, coalesce(p.epoch, l.epoch_floor)
FROM (SELECT 'schedule/' || s.group_name AS lease, s.partition, greatest(s.begun, s.ended) AS epoch, 'an owner that has run something' AS what
      FROM pgleases.schedule_owners AS s
      UNION ALL
      SELECT 'schedule/' || s.group_name, s.partition, s.epoch, 'a slot of kind ' || s.kind FROM pgleases.schedule_slots AS s WHERE s.epoch IS NOT NULL) AS o
JOIN pgleases.leases AS l ON l.name = o.lease
LEFT JOIN pgleases.partitions AS p ON p.lease = o.lease AND p.partition = o.partition
ORDER BY o.lease, o.partition
