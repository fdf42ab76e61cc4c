-- kept.sql: since when all events are left. The search_path must be pg_catalog only.
--
-- One row: the time. It is that of the oldest event, if older ones were deleted, but not before the tables were created or
-- last emptied.
SELECT greatest((SELECT i.installed_at FROM pgleases.installation AS i), (SELECT clock_timestamp() - least(k.age, interval '1000 years') FROM pgleases.events_kept AS k),
                CASE WHEN (SELECT e.id FROM pgleases.events AS e ORDER BY e.tx, e.id LIMIT 1) > 1 THEN (SELECT min(e.at) FROM pgleases.events AS e) END)
