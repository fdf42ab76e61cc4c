package testkit

// ManySchedules creates 3,000 schedules and 1,200 jobs. Of each 100 schedules one is paused, one is
// blocked, one fails and one is late.
const ManySchedules = `INSERT INTO pgleases.schedule_groups VALUES ('billing', 16), ('other', 1);
INSERT INTO pgleases.schedules (group_name, name, key, partition, kind, args, rule, anchor, declared, cursor, due, failures, revision, paused_at, blocked_reason, blocked_since, registered)
	SELECT 'billing', 's' || lpad(n::text, 4, '0'), 'k' || n, n % 16, 'reports', '{}', '@every 1h', now(), false, now() - interval '1 hour',
		CASE n % 100 WHEN 1 THEN 'infinity' WHEN 4 THEN now() - interval '5 minutes' ELSE now() + interval '1 hour' END, CASE n % 100 WHEN 3 THEN 2 ELSE 0 END, 1,
		CASE n % 100 WHEN 1 THEN now() END, CASE n % 100 WHEN 2 THEN 'nobody knows its kind' END, CASE n % 100 WHEN 2 THEN now() END, now()
	FROM generate_series(0, 2999) AS n;
INSERT INTO pgleases.jobs (group_name, key, partition, kind, name, trigger, args, priority, at, due) SELECT 'billing', 'j' || n, n % 16, 'mail', '', 'job', '{}', n % 4,
	CASE n WHEN 1199 THEN '0001-06-01Z' ELSE now() END, -- later than a Duration holds
	CASE WHEN n < 1150 THEN 'infinity' ELSE now() END FROM generate_series(0, 1199) AS n;
INSERT INTO pgleases.history (source, schedule, job, group_name, name, kind, since, until, ticks, outcome, error, ended_at, key, args, priority) VALUES
	('tick', 1, NULL, 'billing', 's0001', 'reports', now() - interval '2 hours', now() - interval '1 hour', 1, 'succeeded', NULL, now(), NULL, NULL, NULL),
	('tick', 1, NULL, 'billing', 's0001', 'reports', now() - interval '1 hour', now(), 4, 'missed', NULL, now(), NULL, NULL, NULL),
	('job', NULL, 99999, 'billing', '', 'mail', now(), now(), 1, 'failed', 'no route', now(), 'j', '{}', 1),
	('job', NULL, 99997, 'billing', 's0001', 'mail', now(), now(), 1, 'succeeded', NULL, now(), NULL, NULL, NULL), -- whose unique key that is
	('job', NULL, 99998, 'other', '', 'mail', now(), now(), 1, 'failed', 'of another group', now(), NULL, NULL, NULL)`
