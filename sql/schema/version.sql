-- version.sql: the version of this schema. It runs last, because a schema without its version counts as missing.

CREATE TABLE IF NOT EXISTS pgleases.schema_version (
    version  int NOT NULL,
    min_code int NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS schema_version_one_row ON pgleases.schema_version ((true));
ALTER TABLE pgleases.schema_version REPLICA IDENTITY FULL;
COMMENT ON TABLE pgleases.schema_version IS 'This table has one row, with the version of this schema, and which code can use it.';
COMMENT ON COLUMN pgleases.schema_version.version IS 'Version of these tables. Migrations only add.';
COMMENT ON COLUMN pgleases.schema_version.min_code IS 'The oldest code that can run here, given as the schema version that it was written for.';

INSERT INTO pgleases.schema_version AS v (version, min_code) VALUES (1, 1)
ON CONFLICT ((true)) DO UPDATE SET version = EXCLUDED.version, min_code = EXCLUDED.min_code WHERE v.version OPERATOR(pg_catalog.<) EXCLUDED.version;
