-- groupsize.sql: the number of partitions of a group of schedules and jobs. The search_path must be pg_catalog only.
--
-- $1 text  group
--
-- One row, or none if the group has never run.
SELECT g.partitions FROM pgleases.schedule_groups AS g WHERE g.name = $1::text
