CREATE TABLE {table} (
    {id} bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    uid uuid NOT NULL DEFAULT gen_random_uuid(), -- for receivers elsewhere: an ID may come again after a failover that lost transactions
    {key}
    {partition}
    {time} timestamptz NOT NULL DEFAULT now(),
    payload jsonb NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_insert_threshold = -1);
CREATE INDEX ON {table} ({p}, {id});
CREATE TRIGGER consumer_inserted AFTER INSERT ON {table} FOR EACH STATEMENT EXECUTE FUNCTION {pgleases}.consumer_inserted('{name}');

-- Instead, for a table that exists and is in use. Adding a generated column would rewrite the table under a lock that keeps
-- all others out, so a trigger fills a plain column. Run each statement by itself, outside of a transaction:
--
--   ALTER TABLE {table} ADD COLUMN {p} int;
--   CREATE FUNCTION set_partition() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
--       NEW.{p} := {pgleases}.partition_for(NEW.{k}::text, {n});
--       RETURN NEW;
--   END $$;
--   CREATE TRIGGER set_partition BEFORE INSERT OR UPDATE OF {k} ON {table} FOR EACH ROW EXECUTE FUNCTION set_partition();
--   -- Again, until it changes no row:
--   UPDATE {table} SET {p} = {pgleases}.partition_for({k}::text, {n})
--       WHERE {id} IN (SELECT {id} FROM {table} WHERE {p} IS NULL LIMIT 10000 FOR UPDATE SKIP LOCKED);
--   ALTER TABLE {table} ADD CONSTRAINT partition_given CHECK ({p} IS NOT NULL) NOT VALID;
--   ALTER TABLE {table} VALIDATE CONSTRAINT partition_given;
--   ALTER TABLE {table} ALTER COLUMN {p} SET NOT NULL; -- reads no row, because of the constraint
--   ALTER TABLE {table} DROP CONSTRAINT partition_given;
--   CREATE INDEX CONCURRENTLY ON {table} ({p}, {id});
--   CREATE TRIGGER consumer_inserted AFTER INSERT ON {table} FOR EACH STATEMENT EXECUTE FUNCTION {pgleases}.consumer_inserted('{name}');
--
-- Such a column says nothing about N, so give Queue.Partitions: {n}.
