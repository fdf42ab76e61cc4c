-- declared.sql: what is to be compared with what the code declares, when a process starts.
--
-- $1 text    group
-- $2 text[]  names of schedules
-- $3 text    the group's lease
--
-- One row: the schedules that are there, as JSON; how many partitions the lease has, or had where it was dropped, or
-- is to have; null where there is none.
SELECT ARRAY(SELECT pgleases.schedule_json(s)::pg_catalog.text FROM pgleases.schedules AS s
             WHERE s.group_name OPERATOR(pg_catalog.=) $1::pg_catalog.text AND s.name OPERATOR(pg_catalog.=) ANY ($2::pg_catalog.text[])),
       (SELECT CASE WHEN l.partitions OPERATOR(pg_catalog.>) 0 THEN l.partitions ELSE l.next_partitions END FROM pgleases.leases AS l WHERE l.name OPERATOR(pg_catalog.=) $3::pg_catalog.text)
