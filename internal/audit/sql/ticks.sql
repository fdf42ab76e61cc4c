-- ticks.sql: the schedules, each with the entries of its ticks in a period. A schedule that was deleted has entries only,
-- and the columns of the schedule are null. A schedule without entries in the period has a row too, with nulls. Infinite
-- times are null, and so is the rule then: no run can read them.
--
-- $1 timestamptz  the begin of the period
SELECT coalesce(s.id, h.schedule), coalesce(s.group_name, h.group_name), coalesce(s.name, h.name),
       CASE WHEN isfinite(s.anchor) AND isfinite(s.cursor) THEN s.rule END,
       CASE WHEN isfinite(s.anchor) THEN s.anchor END, CASE WHEN isfinite(s.cursor) THEN s.cursor END, s.revision,
       h.id, h.since, h.until, h.ticks, h.outcome, h.epoch, h.started_at
FROM pgleases.schedules AS s
FULL JOIN (SELECT * FROM pgleases.history AS f WHERE f.source = 'tick' AND f.ended_at >= $1::timestamptz) AS h ON h.schedule = s.id
ORDER BY 1, h.until, h.id
