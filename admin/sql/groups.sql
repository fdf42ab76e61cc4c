-- groups.sql: the groups of schedules, with how many schedules and jobs they have. No count goes beyond 1,001, whatever there is: each is
-- what an index tells. The search_path is to be pg_catalog alone, and enable_seqscan off.
--
-- What is late stands in the index behind the partition: with few partitions each is looked up; with many the part of the index that is the
-- group's is passed over, as 65,536 look-ups take as long as that of 4,000,000 schedules.
--
-- $1 int  the most groups
--
-- Name; schedules; paused, waiting, failing ones, and those that are more than 10 s late; jobs, waiting ones.
SELECT g.name,
       (SELECT count(*) FROM (SELECT FROM pgleases.schedules AS s WHERE s.group_name = g.name LIMIT 1001) AS n),
       (SELECT count(*) FROM (SELECT FROM pgleases.schedules AS s WHERE s.group_name = g.name AND s.paused_at IS NOT NULL LIMIT 1001) AS n),
       (SELECT count(*) FROM (SELECT FROM pgleases.schedules AS s WHERE s.group_name = g.name AND s.waits IS NOT NULL LIMIT 1001) AS n),
       (SELECT count(*) FROM (SELECT FROM pgleases.schedules AS s WHERE s.group_name = g.name AND s.failures > 0 LIMIT 1001) AS n),
       CASE WHEN g.partitions <= 1000
           THEN (SELECT count(*) FROM (SELECT FROM generate_series(0, g.partitions - 1) AS p CROSS JOIN LATERAL
                                           (SELECT FROM pgleases.schedules AS s WHERE s.group_name = g.name AND s.partition = p AND s.due < pgleases.schedule_clock() - interval '10 seconds'
                                            ORDER BY s.due LIMIT 1001) AS l LIMIT 1001) AS n)
           ELSE (SELECT count(*) FROM (SELECT FROM pgleases.schedules AS s WHERE s.group_name = g.name AND s.due < pgleases.schedule_clock() - interval '10 seconds' LIMIT 1001) AS n) END,
       (SELECT count(*) FROM (SELECT FROM pgleases.jobs AS j WHERE j.group_name = g.name LIMIT 1001) AS n),
       (SELECT count(*) FROM (SELECT FROM pgleases.jobs AS j WHERE j.group_name = g.name AND j.waits IS NOT NULL LIMIT 1001) AS n)
FROM pgleases.schedule_groups AS g
ORDER BY g.name
LIMIT $1::int
