-- zones.sql: the zones that rules of schedules have.
--
-- $1 text  group
--
-- zone: its name; data: a digest of the changes of its clocks by which it was told when those schedules are due.
SELECT zone, data FROM pgleases.schedule_zones($1::pg_catalog.text)
