-- orders.sql: the jobs that retries and operators have ordered in a period, and that are neither live nor in the history.
--
-- $1 timestamptz  the begin of the period
SELECT o.group_name, o.job, o.at, o.what
FROM (SELECT h.group_name, h.retried AS job, h.ended_at AS at, 'retry of entry ' || h.id || ' of the history' AS what
      FROM pgleases.history AS h WHERE h.retried IS NOT NULL AND h.ended_at >= $1::timestamptz
      UNION ALL
      SELECT substr(e.lease, length('schedule/') + 1), e.row_id, e.at, e.cause || ' by ' || e.actor
      FROM pgleases.events AS e WHERE e.name IS NOT NULL AND e.row_id IS NOT NULL AND e.at >= $1::timestamptz) AS o
WHERE NOT EXISTS (SELECT FROM pgleases.jobs AS j WHERE j.id = o.job)
  AND NOT EXISTS (SELECT FROM pgleases.history AS h WHERE h.job = o.job)
ORDER BY o.at
