-- jobs.sql: the entries of jobs in a period, and the revision of the job if it is live.
--
-- $1 timestamptz  the begin of the period
SELECT h.job, h.id, h.source, h.group_name, h.name, h.until, h.outcome, h.epoch, h.started_at, h.ended_at, h.revision, j.revision
FROM pgleases.history AS h
LEFT JOIN pgleases.jobs AS j ON j.id = h.job
WHERE h.job IS NOT NULL AND h.ended_at >= $1::timestamptz
ORDER BY h.job, h.id
