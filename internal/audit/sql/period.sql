-- period.sql: what the records can cover.
--
-- One row: the time; when the tables were created or last emptied; how long events are kept; the time and the number of
-- the first event that is left, or null; whether there are tables of schedules and of consumers; the server generation.
SELECT pg_catalog.clock_timestamp(), (SELECT i.installed_at FROM pgleases.installation AS i),
       (SELECT extract(epoch FROM k.age)::double precision FROM pgleases.events_kept AS k),
       e.first_at, e.first_id,
       pg_catalog.to_regclass('pgleases.history') IS NOT NULL, pg_catalog.to_regclass('pgleases.consumer_owners') IS NOT NULL,
       (SELECT s.generation FROM pgleases.server AS s)
FROM (SELECT min(e.at) AS first_at, min(e.id) AS first_id FROM pgleases.events AS e) AS e
