-- After consumer.Migrate, or the DDL of consumer.Schema.
CREATE TABLE {table} (
    {id} bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    uid uuid NOT NULL DEFAULT gen_random_uuid(), -- for receivers elsewhere: an ID may come again after a failover that lost transactions
    {key}{partition}
    {time} timestamptz NOT NULL DEFAULT now(),
    payload jsonb NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_insert_threshold = -1);
CREATE INDEX ON {table} ({p}, {id});
-- Leave this trigger out if inserts are in transactions that are prepared for a two-phase commit: PREPARE TRANSACTION fails
-- after a notification. Rows then wait for the poll, up to a second.
CREATE TRIGGER consumer_inserted AFTER INSERT ON {table} FOR EACH STATEMENT EXECUTE FUNCTION {pgleases}.consumer_inserted('{name}');

-- Instead, for a table that exists and is in use. A generated column would rewrite the table under a lock that keeps all
-- others out, so a trigger fills a plain column. Triggers fire in the order of their names: this one comes after those that
-- change the key, unless their names sort after ~. All rows will be handled: before the consumer starts, delete or move those
-- that were handled. Run each statement by itself, outside of a transaction, in one session. A statement that fails by
-- lock_timeout can be repeated: a long query, a backup or an autovacuum of the table makes it fail, and without the limit
-- inserts would wait for these, too:
--
--   SET lock_timeout = '100ms';
--   ALTER TABLE {table} ADD COLUMN {p} int;
--   CREATE FUNCTION {set}() RETURNS trigger LANGUAGE plpgsql AS $pgleases$
--       BEGIN -- what partition_for computes, because roles that only insert may have no rights on its schema
--           NEW.{p} := ((('x'::pg_catalog.text OPERATOR(pg_catalog.||) pg_catalog.encode(pg_catalog.substr(
--                   pg_catalog.sha256(pg_catalog.convert_to(NEW.{k}::pg_catalog.text, 'UTF8')), 1, 8), 'hex'))::bit(64)::bigint
--               OPERATOR(pg_catalog.&) 9223372036854775807) OPERATOR(pg_catalog.%) {n})::int;
--           RETURN NEW;
--       END $pgleases$;
--   CREATE TRIGGER "~set_partition" BEFORE INSERT OR UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION {set}();
--   CREATE TRIGGER consumer_inserted AFTER INSERT ON {table} FOR EACH STATEMENT EXECUTE FUNCTION {pgleases}.consumer_inserted('{name}');
--   DO $pgleases$ <<backfill>> DECLARE v_low bigint := -9223372036854775808; v_high bigint; BEGIN
--       LOOP
--           SELECT max(b.id) INTO backfill.v_high FROM (SELECT t.{id} AS id FROM {table} AS t WHERE t.{id} > backfill.v_low ORDER BY t.{id} LIMIT 10000) AS b;
--           EXIT WHEN backfill.v_high IS NULL;
--           UPDATE {table} AS t SET {p} = {pgleases}.partition_for(t.{k}::text, {n}) WHERE t.{id} IN (
--               SELECT t.{id} FROM {table} AS t WHERE t.{id} > backfill.v_low AND t.{id} <= backfill.v_high AND t.{p} IS NULL FOR UPDATE SKIP LOCKED);
--           COMMIT;
--           backfill.v_low := backfill.v_high;
--       END LOOP; END $pgleases$;
--   ALTER TABLE {table} ADD CONSTRAINT partition_given CHECK ({p} IS NOT NULL) NOT VALID;
--   ALTER TABLE {table} VALIDATE CONSTRAINT partition_given; -- fails if DO has left out locked rows: repeat DO, then this
--   ALTER TABLE {table} ALTER COLUMN {p} SET NOT NULL; -- reads no row, because of the constraint
--   ALTER TABLE {table} DROP CONSTRAINT partition_given;
--   RESET lock_timeout; -- inserts do not wait for the following, which wait for open transactions
--   ALTER TABLE {table} SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000, autovacuum_vacuum_insert_threshold = -1);
--   CREATE INDEX CONCURRENTLY ON {table} ({p}, {id});
--   VACUUM ANALYZE {table};
--
-- Such a column says nothing about N, so give Queue.Partitions: {n}.
