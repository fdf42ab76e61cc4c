-- groups.sql: the groups of schedules. Entries of failures are kept for longer than others. So the first entry of
-- another kind shows from when on the history has all entries.
--
-- One row for each group: its name; when that entry was written, or null; the highest epoch of its lease, or null.
SELECT g.name, h.ended_at,
       greatest((SELECT max(p.epoch) FROM pgleases.partitions AS p WHERE p.lease = 'schedule/' || g.name),
                (SELECT l.epoch_floor FROM pgleases.leases AS l WHERE l.name = 'schedule/' || g.name))
FROM pgleases.schedule_groups AS g
LEFT JOIN (SELECT f.group_name, min(f.id) AS id FROM pgleases.history AS f
           WHERE f.outcome NOT IN ('failed', 'unknown') GROUP BY f.group_name) AS f ON f.group_name = g.name
LEFT JOIN pgleases.history AS h ON h.id = f.id
