-- functions/version.sql: the version of the tables. It runs last, because a part without its
-- version counts as missing.

INSERT INTO pgleases.schedule_version AS v (version, min_code) VALUES (1, 1)
ON CONFLICT ((true)) DO UPDATE SET version = EXCLUDED.version, min_code = EXCLUDED.min_code WHERE v.version OPERATOR(pg_catalog.<) EXCLUDED.version;
