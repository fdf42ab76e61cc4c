-- undeclared.sql: schedules that code declared, and that no process has declared for a week, the oldest 1,000. Processes say each day what they declare.
--
-- Group, name, and when a process last declared it.
SELECT s.group_name, s.name, s.registered
FROM pgleases.schedules AS s
WHERE s.declared AND s.registered < pgleases.schedule_clock() - interval '7 days'
ORDER BY s.registered LIMIT 1000
