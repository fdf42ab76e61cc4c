-- schema.sql: the tables of package consumer and their functions, in the schema with the engine's tables. It is
-- idempotent: existing objects stay unchanged.
--
-- Types and operators are named with their schema, and names collate "C", as in the engine's files. Parameters begin with
-- p_, because the name of a column would be ambiguous. Statements on the user's own table have files of their own.

CREATE TABLE IF NOT EXISTS pgleases.consumer_version (
    version  int NOT NULL,
    min_code int NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS consumer_version_one_row ON pgleases.consumer_version ((true));
ALTER TABLE pgleases.consumer_version REPLICA IDENTITY FULL;
COMMENT ON TABLE pgleases.consumer_version IS 'This table has one row, with the version of the tables of package consumer, and the oldest code that can use them.';
COMMENT ON COLUMN pgleases.consumer_version.version IS 'The version of these tables. Migrations only add.';
COMMENT ON COLUMN pgleases.consumer_version.min_code IS 'The oldest code that can run here, by the version of the tables that it knows.';

CREATE TABLE IF NOT EXISTS pgleases.consumers (
    name             pg_catalog.text COLLATE pg_catalog."C" PRIMARY KEY,
    queue            pg_catalog.text COLLATE pg_catalog."C" NOT NULL UNIQUE,
    id_column        pg_catalog.text NOT NULL,
    key_column       pg_catalog.text,
    partition_column pg_catalog.text NOT NULL,
    time_column      pg_catalog.text,
    partitions       int NOT NULL,
    since            pg_catalog.timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    paused_at        pg_catalog.timestamptz,
    paused_by        pg_catalog.text,
    paused_reason    pg_catalog.text,
    looked_at        pg_catalog.timestamptz,
    first_id         bigint,
    first_since      pg_catalog.timestamptz
);
COMMENT ON TABLE pgleases.consumers IS 'The consumers, each with its queue table.';
COMMENT ON COLUMN pgleases.consumers.name IS 'The consumer''s name. The name of its lease is "consumer/" and this name.';
COMMENT ON COLUMN pgleases.consumers.queue IS 'The queue table, with its schema, quoted where that is needed.';
COMMENT ON COLUMN pgleases.consumers.id_column IS 'The column with the rows'' IDs.';
COMMENT ON COLUMN pgleases.consumers.key_column IS 'The column with the keys. It is null if the partition is the key.';
COMMENT ON COLUMN pgleases.consumers.partition_column IS 'The column with the partitions.';
COMMENT ON COLUMN pgleases.consumers.time_column IS 'The column with the time at which a row was inserted. It is null if there is none.';
COMMENT ON COLUMN pgleases.consumers.partitions IS 'Number of the lease''s partitions.';
COMMENT ON COLUMN pgleases.consumers.since IS 'When the consumer was first opened.';
COMMENT ON COLUMN pgleases.consumers.paused_at IS 'When an operator paused it. It is null if it is not paused.';
COMMENT ON COLUMN pgleases.consumers.paused_by IS 'The operator who paused it.';
COMMENT ON COLUMN pgleases.consumers.paused_reason IS 'Why.';
COMMENT ON COLUMN pgleases.consumers.looked_at IS 'When a process last looked for the oldest row, which one of them does each minute.';
COMMENT ON COLUMN pgleases.consumers.first_id IS 'The lowest ID of a row whose key was not blocked then. It is null if there was none, or no index begins with the ID.';
COMMENT ON COLUMN pgleases.consumers.first_since IS 'When this ID was first found to be the lowest.';

CREATE TABLE IF NOT EXISTS pgleases.consumer_owners (
    consumer   pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    partition  int NOT NULL,
    begun      bigint NOT NULL,
    ended      bigint,
    crashed    bigint,
    watched_to bigint,
    note_first bigint,
    note_last  bigint,
    PRIMARY KEY (consumer, partition)
) WITH (fillfactor = 70);
COMMENT ON TABLE pgleases.consumer_owners IS 'Which owners of a partition ended in order, so that the crash of an owner is known to the next.';
COMMENT ON COLUMN pgleases.consumer_owners.consumer IS 'The consumer''s name.';
COMMENT ON COLUMN pgleases.consumer_owners.partition IS 'The partition''s number.';
COMMENT ON COLUMN pgleases.consumer_owners.begun IS 'The epoch of the last owner.';
COMMENT ON COLUMN pgleases.consumer_owners.ended IS 'The epoch of the last owner that ended in order.';
COMMENT ON COLUMN pgleases.consumer_owners.crashed IS 'The epoch of the last owner that crashed or was cut off.';
COMMENT ON COLUMN pgleases.consumer_owners.watched_to IS 'After a crash: the highest ID of a row at that time. Owners note each batch before it is handled, until they have passed this ID. It is null if no notes are needed.';
COMMENT ON COLUMN pgleases.consumer_owners.note_first IS 'The lowest ID of the batch in hand, if it was noted.';
COMMENT ON COLUMN pgleases.consumer_owners.note_last IS 'The highest ID of that batch.';

CREATE TABLE IF NOT EXISTS pgleases.consumer_blocked (
    consumer  pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    partition int NOT NULL,
    id        bigint NOT NULL,
    key       pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    version   pg_catalog.text NOT NULL,
    content   pg_catalog.text,
    attempts  int NOT NULL,
    crashes   int NOT NULL DEFAULT 0,
    error     pg_catalog.text,
    since     pg_catalog.timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    failed_at pg_catalog.timestamptz,
    next_at   pg_catalog.timestamptz NOT NULL,
    asked     boolean NOT NULL DEFAULT false,
    crashed   bigint,
    charged   bigint,
    skipped_by     pg_catalog.text,
    skipped_reason pg_catalog.text,
    PRIMARY KEY (consumer, partition, id)
) WITH (fillfactor = 70);
CREATE INDEX IF NOT EXISTS consumer_blocked_by_time ON pgleases.consumer_blocked (consumer, next_at) WHERE next_at OPERATOR(pg_catalog.<) 'infinity';
CREATE INDEX IF NOT EXISTS consumer_blocked_by_turn ON pgleases.consumer_blocked (consumer, partition, asked, (skipped_by IS NOT NULL), next_at);
-- A key may be too long for an index, so it has a hash.
CREATE INDEX IF NOT EXISTS consumer_blocked_by_key ON pgleases.consumer_blocked (consumer, partition, pg_catalog.hashtextextended(key, 0), id);
COMMENT ON TABLE pgleases.consumer_blocked IS 'The rows that block their keys: rows that failed, and crash suspects. No other row of such a key is handled.';
COMMENT ON COLUMN pgleases.consumer_blocked.consumer IS 'The consumer''s name.';
COMMENT ON COLUMN pgleases.consumer_blocked.partition IS 'The row''s partition.';
COMMENT ON COLUMN pgleases.consumer_blocked.id IS 'The row''s ID.';
COMMENT ON COLUMN pgleases.consumer_blocked.key IS 'The row''s key.';
COMMENT ON COLUMN pgleases.consumer_blocked.version IS 'The xmin of the row when it failed. A row that was changed since has its attempts anew.';
COMMENT ON COLUMN pgleases.consumer_blocked.content IS 'A hash of the row when it failed, with its length: see consumer_content. A restore, and ALTER TABLE that rewrites the table, change the xmin of each row and not its content. It is null if it is not known.';
COMMENT ON COLUMN pgleases.consumer_blocked.attempts IS 'How many attempts failed.';
COMMENT ON COLUMN pgleases.consumer_blocked.crashes IS 'How many processes crashed while they handled the row alone, and the attempt under way.';
COMMENT ON COLUMN pgleases.consumer_blocked.error IS 'The error of the last attempt.';
COMMENT ON COLUMN pgleases.consumer_blocked.since IS 'When the row first blocked its key.';
COMMENT ON COLUMN pgleases.consumer_blocked.failed_at IS 'When the last attempt failed.';
COMMENT ON COLUMN pgleases.consumer_blocked.next_at IS 'When the row is handled again. It is infinity if it waits until an operator retries or skips it, or the row changes.';
COMMENT ON COLUMN pgleases.consumer_blocked.asked IS 'An operator retries or skips the row, and no attempt was made since: it comes before others that are due.';
COMMENT ON COLUMN pgleases.consumer_blocked.crashed IS 'The epoch of the owner that crashed while the row was in its batch, so that the row is a crash suspect. It is null if it is no suspect.';
COMMENT ON COLUMN pgleases.consumer_blocked.charged IS 'The epoch of the owner that handles this crash suspect, and has counted the attempt already.';
COMMENT ON COLUMN pgleases.consumer_blocked.skipped_by IS 'The operator who skips the row. Its owner moves it to the dead letters. It is null if it is not skipped.';
COMMENT ON COLUMN pgleases.consumer_blocked.skipped_reason IS 'Why.';

CREATE TABLE IF NOT EXISTS pgleases.consumer_dead_letters (
    consumer  pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    id        bigint NOT NULL,
    partition int NOT NULL,
    key       pg_catalog.text NOT NULL,
    content   pg_catalog.jsonb NOT NULL,
    attempts  int NOT NULL,
    error     pg_catalog.text,
    died_at   pg_catalog.timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    PRIMARY KEY (consumer, id, died_at)
);
COMMENT ON TABLE pgleases.consumer_dead_letters IS 'Rows that were taken out of their queue table, because all attempts failed or an operator skipped them.';
COMMENT ON COLUMN pgleases.consumer_dead_letters.consumer IS 'The consumer''s name.';
COMMENT ON COLUMN pgleases.consumer_dead_letters.id IS 'The row''s ID.';
COMMENT ON COLUMN pgleases.consumer_dead_letters.partition IS 'The row''s partition.';
COMMENT ON COLUMN pgleases.consumer_dead_letters.key IS 'The row''s key.';
COMMENT ON COLUMN pgleases.consumer_dead_letters.content IS 'All columns of the row.';
COMMENT ON COLUMN pgleases.consumer_dead_letters.attempts IS 'How many attempts failed.';
COMMENT ON COLUMN pgleases.consumer_dead_letters.error IS 'The error of the last attempt.';
COMMENT ON COLUMN pgleases.consumer_dead_letters.died_at IS 'When the row was taken out.';

-- Wakes the consumers of a table after an insert. SECURITY DEFINER, so that a role that inserts needs no rights here. It
-- sets no search_path, because that would cost each insert some microseconds; everything is named with its schema.
CREATE OR REPLACE FUNCTION pgleases.consumer_inserted() RETURNS trigger
LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $pgleases_body$
BEGIN
    IF pgleases.notify_due('consumer/'::pg_catalog.text OPERATOR(pg_catalog.||) TG_ARGV[0]) THEN
        PERFORM pgleases.notify(pg_catalog.concat('consumer/', TG_ARGV[0]));
    END IF;
    RETURN NULL;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.consumer_inserted() IS 'Trigger for a queue table, AFTER INSERT FOR EACH STATEMENT: wakes the consumer whose name is its argument.';

-- PC001: another number of rows was removed. PC002: it is another transaction. It sets no search_path, because that would
-- cost each batch some microseconds; everything is named with its schema.
CREATE OR REPLACE FUNCTION pgleases.consumer_expect(p_xact pg_catalog.text, p_expected bigint, p_removed bigint) RETURNS void
LANGUAGE plpgsql VOLATILE AS $pgleases_body$
BEGIN
    IF (pg_catalog.pg_current_xact_id_if_assigned()::pg_catalog.text OPERATOR(pg_catalog.=) p_xact) IS NOT TRUE THEN
        RAISE EXCEPTION 'the handler ended its transaction: what it wrote may be committed' USING ERRCODE = 'PC002';
    ELSIF p_removed OPERATOR(pg_catalog.<>) p_expected THEN
        RAISE EXCEPTION 'of % handled rows % were deleted', p_expected, p_removed
            USING ERRCODE = 'PC001', HINT = 'A trigger, a rule or row-level security prevents the DELETE, or the handler changed or deleted the rows.';
    END IF;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.consumer_expect(pg_catalog.text, bigint, bigint) IS 'Raises an error unless all handled rows were deleted in the transaction in which they were handled.';

-- Returns a hash of a row, with the length of the text that it is made of. p_of is an earlier hash of the row, or null: the
-- new one is made of as many characters. So it stays the same when columns are added, which come last. It is empty if those
-- characters end within a column, and p_of if that was made by another version. It is null if the row has no text, for
-- example because that would be longer than 1 GB. The settings on which the text of values depends are fixed.
CREATE OR REPLACE FUNCTION pgleases.consumer_content(p_row record, p_of pg_catalog.text) RETURNS pg_catalog.text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET TimeZone = 'UTC' SET DateStyle = 'ISO' SET IntervalStyle = 'postgres' SET extra_float_digits = 1 SET bytea_output = 'hex'
AS $pgleases_body$
DECLARE
    other CONSTANT boolean := p_of !~ '^[0-9]{1,9}:';
    content text;
    n int;
BEGIN
    content := p_row::text;
    n := CASE WHEN p_of IS NULL THEN length(content) - 1 WHEN NOT other THEN split_part(p_of, ':', 1)::int END;
    RETURN CASE WHEN other THEN p_of WHEN substr(content, n + 1, 1) IN (',', ')') THEN n || ':' || md5(left(content, n)) ELSE '' END;
EXCEPTION WHEN OTHERS THEN
    RETURN NULL;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.consumer_content(record, pg_catalog.text) IS 'Returns a hash of a row of a queue table, from which it is known whether the row was changed since it failed.';

-- Records the begin of ownerships, and returns what is known about the partitions before. The caller guards them. If
-- crashed_now is false, the epoch and the suspects mean nothing.
CREATE OR REPLACE FUNCTION pgleases.consumer_begin(p_consumer pg_catalog.text, p_partitions int[], p_epochs bigint[])
RETURNS TABLE (number int, crashed_now boolean, crashed_epoch bigint, watched bigint, suspect_first bigint, suspect_last bigint)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off
AS $pgleases_body$
BEGIN
    PERFORM FROM pgleases.consumers AS c WHERE c.name = p_consumer FOR KEY SHARE; -- it is not deleted before this commits
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the consumer "%" was deleted', p_consumer USING ERRCODE = 'undefined_object', HINT = 'Start the process again.';
    END IF;
    RETURN QUERY
    WITH own AS MATERIALIZED (
        SELECT b.number, b.epoch, c.begun, c.watched_to, c.note_first, c.note_last,
               c.begun IS NOT NULL AND c.begun < b.epoch AND c.ended IS DISTINCT FROM c.begun AS fell
        FROM (SELECT * FROM unnest(p_partitions, p_epochs) AS b (number, epoch) ORDER BY number) AS b
        LEFT JOIN LATERAL (SELECT * FROM pgleases.consumer_owners AS c WHERE c.consumer = p_consumer AND c.partition = b.number OFFSET 0) AS c ON true
    ), put AS (
        INSERT INTO pgleases.consumer_owners AS c (consumer, partition, begun)
        SELECT p_consumer, o.number, o.epoch FROM own AS o
        ON CONFLICT (consumer, partition) DO UPDATE SET begun = EXCLUDED.begun, note_first = NULL, note_last = NULL,
            crashed = CASE WHEN c.begun < EXCLUDED.begun AND c.ended IS DISTINCT FROM c.begun THEN c.begun ELSE c.crashed END
    )
    SELECT o.number, o.fell, o.begun, o.watched_to, o.note_first, o.note_last FROM own AS o;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.consumer_begin(pg_catalog.text, int[], bigint[]) IS 'Records that an owner works on partitions, and returns whether the owner before crashed, and with which batch in hand.';

-- Records the end of ownerships. If an owner lost a partition and lives, the next owner took it for crashed: that is taken
-- back, with what was charged for it.
CREATE OR REPLACE FUNCTION pgleases.consumer_end(p_consumer pg_catalog.text, p_partitions int[], p_epochs bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off
AS $pgleases_body$
DECLARE
    b record;
BEGIN
    FOR b IN SELECT * FROM unnest(p_partitions, p_epochs) AS b (number, epoch) ORDER BY number LOOP
        UPDATE pgleases.consumer_owners AS c
        SET ended = CASE WHEN c.begun = b.epoch THEN b.epoch ELSE c.ended END,
            note_first = CASE WHEN c.begun <> b.epoch THEN c.note_first END, note_last = CASE WHEN c.begun <> b.epoch THEN c.note_last END,
            crashed = nullif(c.crashed, b.epoch), watched_to = CASE WHEN c.crashed IS DISTINCT FROM b.epoch THEN c.watched_to END
        WHERE c.consumer = p_consumer AND c.partition = b.number AND (c.begun = b.epoch OR c.crashed = b.epoch);
        DELETE FROM pgleases.consumer_blocked AS r
        WHERE r.consumer = p_consumer AND r.partition = b.number AND r.crashed = b.epoch AND r.attempts = 0 AND r.crashes = 0;
        UPDATE pgleases.consumer_blocked AS r SET crashes = r.crashes - 1, charged = NULL, next_at = clock_timestamp()
        WHERE r.consumer = p_consumer AND r.partition = b.number AND r.charged = b.epoch;
    END LOOP;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.consumer_end(pg_catalog.text, int[], bigint[]) IS 'Records that an owner has ended its work on partitions in order.';

-- Reads what waits in a queue table, for consumers_status. It runs with the rights of its caller, and roles that run
-- consumers write the names of tables. So it reads only a table, with columns of the system's types, and no table whose
-- rows are hidden by policies: code of the table's owner never runs in the session of a person who looks. A value that it cannot
-- read is null. It reads 1,000 rows by an index on the ID, if there is one, and never the whole table. It waits 50 ms for
-- a locked table, because a command that asks for all consumers has 10 s.
--
-- If the keys of all these rows are blocked, for example those of a receiver that is away, rows of other keys may wait
-- behind them. Then it asks each partition for its first row whose key is not blocked. It looks at 1,000 rows of a
-- partition with blocked keys, at one row of any other, and at 20,000 rows of 10,000 partitions in all. The ranges on the
-- partition keep the planner on the index of (partition, id).
--   oldest: the time of the oldest among these rows whose key is not blocked
--   timed: whether oldest is known: there is a column for the time, and an index that begins with the ID
--   unhandled: rows whose partition is null or out of range, 1,000 at most
--   first_id: the lowest ID among these rows of a row whose key is not blocked
CREATE OR REPLACE FUNCTION pgleases.consumer_backlog(p_consumer pgleases.consumers, OUT waiting int, OUT oldest pg_catalog.timestamptz, OUT timed boolean, OUT unhandled int, OUT first_id bigint)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET row_security = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off SET lock_timeout = '50ms'
AS $pgleases_body$
DECLARE
    queue   oid;
    ordered boolean;
    routed  boolean;
    fits    int;
    dated   boolean;
    at      text; -- the expressions of a row's time and key
    key     text;
BEGIN
    queue := to_regclass(p_consumer.queue);
    SELECT count(*) FILTER (WHERE w.name IS DISTINCT FROM p_consumer.time_column), coalesce(bool_or(w.name = p_consumer.time_column), false),
           bool_or(w.name = p_consumer.id_column AND i.found), bool_or(w.name = p_consumer.partition_column AND i.found)
    INTO fits, dated, ordered, routed
    FROM (VALUES (p_consumer.id_column, '{int4,int8}'::regtype[]), (p_consumer.partition_column, '{int4}'), (p_consumer.time_column, '{timestamptz}'),
                 (p_consumer.key_column, '{text,varchar,int4,int8,uuid}')) AS w (name, types)
    JOIN pg_attribute AS a ON a.attrelid = queue AND a.attname = w.name AND a.attnum > 0 AND a.atttypid = ANY (w.types::oid[])
    JOIN pg_class AS c ON c.oid = queue AND c.relkind IN ('r', 'p')
    CROSS JOIN LATERAL (SELECT EXISTS (SELECT FROM pg_index AS i WHERE i.indrelid = queue AND i.indisvalid AND i.indpred IS NULL AND i.indkey[0] = a.attnum
        AND (SELECT r.relam FROM pg_class AS r WHERE r.oid = i.indexrelid) = 403 /* btree */)) AS i (found);
    IF fits < num_nonnulls(p_consumer.id_column, p_consumer.partition_column, p_consumer.key_column) THEN
        RETURN;
    END IF;
    at := CASE WHEN dated THEN format('q.%I', p_consumer.time_column) ELSE 'NULL::timestamptz' END;
    key := coalesce('q.' || quote_ident(p_consumer.key_column), '''''') || '::text COLLATE "C"';
    EXECUTE format('SELECT count(*), min(r.at) FILTER (WHERE r.free AND isfinite(r.at)), min(r.id) FILTER (WHERE r.free) '
                   'FROM (SELECT r.at, r.id, $1 AND (r.partition, r.key) NOT IN (SELECT b.partition, b.key FROM %s AS b WHERE b.consumer = $2) AS free '
                   'FROM (SELECT q.%I::bigint AS id, %s AS at, q.%I AS partition, %s AS key FROM %s AS q%s LIMIT 1000) AS r) AS r', 'pgleases.consumer_blocked'::regclass,
                   p_consumer.id_column, at, p_consumer.partition_column, key, queue::regclass, CASE WHEN ordered THEN format(' ORDER BY q.%I', p_consumer.id_column) ELSE '' END)
    INTO waiting, oldest, first_id USING ordered, p_consumer.name;
    IF waiting = 1000 AND first_id IS NULL AND ordered AND EXISTS (
        SELECT FROM pg_index AS i JOIN pg_attribute AS p ON p.attrelid = queue AND p.attname = p_consumer.partition_column JOIN pg_attribute AS n ON n.attrelid = queue AND n.attname = p_consumer.id_column
        WHERE i.indrelid = queue AND i.indisvalid AND i.indpred IS NULL AND i.indkey[0] = p.attnum AND i.indkey[1] = n.attnum
          AND (SELECT r.relam FROM pg_class AS r WHERE r.oid = i.indexrelid) = 403 /* btree */) THEN
        EXECUTE format('WITH RECURSIVE parts AS ( -- those that have rows
                (SELECT q.%2$I AS number, 1 AS n FROM %1$s AS q WHERE q.%2$I >= 0 AND q.%2$I < $2 ORDER BY q.%2$I, q.%3$I LIMIT 1)
                UNION ALL
                SELECT q.number, p.n + 1 FROM parts AS p CROSS JOIN LATERAL (
                    SELECT q.%2$I AS number FROM %1$s AS q WHERE q.%2$I > p.number AND q.%2$I < $2 ORDER BY q.%2$I, q.%3$I LIMIT 1) AS q
                WHERE p.n < 2000
            ), heads AS MATERIALIZED ( -- those without blocked keys first, because each costs one row; the others share 8,000 rows
                SELECT p.number, CASE WHEN p.blocked THEN greatest(1, least(1000, 8000 / count(*) FILTER (WHERE p.blocked) OVER ())) ELSE 1 END AS most
                FROM (SELECT p.number, EXISTS (SELECT FROM %6$s AS b WHERE b.consumer = $1 AND b.partition = p.number) AS blocked FROM parts AS p) AS p
                ORDER BY p.blocked, p.number
            )
            SELECT min(r.at) FILTER (WHERE isfinite(r.at)), min(r.id)
            FROM (SELECT r.* FROM heads AS h CROSS JOIN LATERAL (
                      SELECT q.%3$I::bigint AS id, %4$s AS at, q.%2$I AS partition, %5$s AS key
                      FROM %1$s AS q WHERE q.%2$I >= h.number AND q.%2$I <= h.number ORDER BY q.%2$I, q.%3$I LIMIT h.most) AS r) AS r
            WHERE (SELECT b.id FROM %6$s AS b WHERE b.consumer = $1 AND b.partition = r.partition AND hashtextextended(b.key, 0) >= hashtextextended(r.key, 0)
                     AND hashtextextended(b.key, 0) <= hashtextextended(r.key, 0) AND b.key = r.key ORDER BY hashtextextended(b.key, 0), b.id LIMIT 1) IS NULL',
                       queue::regclass, p_consumer.partition_column, p_consumer.id_column, at, key, 'pgleases.consumer_blocked'::regclass)
        INTO oldest, first_id USING p_consumer.name, p_consumer.partitions;
    END IF;
    timed := dated AND ordered;
    IF routed THEN
        EXECUTE format('SELECT count(*) FROM ((SELECT 1 FROM %1$s WHERE %2$I IS NULL LIMIT 1000) UNION ALL (SELECT 1 FROM %1$s WHERE %2$I < 0 LIMIT 1000) '
                       'UNION ALL (SELECT 1 FROM %1$s WHERE %2$I >= $1 LIMIT 1000) LIMIT 1000) AS r', queue::regclass, p_consumer.partition_column)
        INTO unhandled USING p_consumer.partitions;
    END IF;
EXCEPTION WHEN insufficient_privilege OR undefined_table OR undefined_column OR invalid_name OR lock_not_available THEN
    waiting := NULL;
    oldest := NULL;
    timed := NULL;
    unhandled := NULL;
    first_id := NULL;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.consumer_backlog(pgleases.consumers) IS 'Part of consumers_status. It returns what waits in a consumer''s queue table, or null if the caller may not read it, or it is gone.';

CREATE OR REPLACE VIEW pgleases.consumers_status AS
SELECT c.name AS consumer,
       c.queue,
       c.partitions,
       (SELECT pg_catalog.count(*)::int FROM pgleases.partitions AS p
        WHERE p.lease OPERATOR(pg_catalog.=) ('consumer/' OPERATOR(pg_catalog.||) c.name)
          AND p.owner OPERATOR(pg_catalog.=) ANY (SELECT l.session FROM pgleases.clients AS l WHERE l.expires_at OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp())) AS owned,
       b.waiting,
       pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) b.oldest AS oldest,
       b.timed,
       k.keys AS blocked_keys,
       CASE WHEN k.since IS NOT NULL THEN pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-)
            least(greatest(k.since, '0001-01-02 00:00:00+00'), '9999-12-30 00:00:00+00') END AS blocked_for,
       (SELECT pg_catalog.count(*)::int FROM (SELECT FROM pgleases.consumer_dead_letters AS d WHERE d.consumer OPERATOR(pg_catalog.=) c.name LIMIT 1000) AS d) AS dead_letters,
       b.unhandled,
       c.paused_at,
       c.paused_by,
       c.paused_reason,
       b.first_id
FROM pgleases.consumers AS c
CROSS JOIN LATERAL (
    SELECT pg_catalog.count(DISTINCT ROW(k.partition, k.key))::int AS keys, pg_catalog.min(k.since) AS since
    FROM pgleases.consumer_blocked AS k
    WHERE k.consumer OPERATOR(pg_catalog.=) c.name
      AND (k.attempts OPERATOR(pg_catalog.>) 0 OR k.crashed IS NOT NULL) -- not one that was only snoozed
) AS k
CROSS JOIN LATERAL pgleases.consumer_backlog(c) AS b;
COMMENT ON VIEW pgleases.consumers_status IS 'Every consumer, with what waits in its queue table. waiting, oldest, timed and unhandled are null if the role that asks may not read the table, or if the table is gone.';
COMMENT ON COLUMN pgleases.consumers_status.consumer IS 'The consumer''s name. The name of its lease is "consumer/" and this name.';
COMMENT ON COLUMN pgleases.consumers_status.queue IS 'The queue table.';
COMMENT ON COLUMN pgleases.consumers_status.partitions IS 'Number of the lease''s partitions.';
COMMENT ON COLUMN pgleases.consumers_status.owned IS 'How many of them a live client owns.';
COMMENT ON COLUMN pgleases.consumers_status.waiting IS 'Rows in the table. 1000 means 1,000 or more.';
COMMENT ON COLUMN pgleases.consumers_status.oldest IS 'Age of the oldest row whose key is not blocked, among the 1,000 rows with the lowest IDs. If the keys of all these are blocked, it is the oldest among the first such rows of the partitions. It is null if there is none, the queue has no column for the time, or no index begins with the ID.';
COMMENT ON COLUMN pgleases.consumers_status.timed IS 'The queue has a column for the time, and an index begins with the ID, so oldest is known.';
COMMENT ON COLUMN pgleases.consumers_status.blocked_keys IS 'Keys whose rows wait, because a row failed or may have crashed a process.';
COMMENT ON COLUMN pgleases.consumers_status.blocked_for IS 'How long the oldest of these rows has blocked its key.';
COMMENT ON COLUMN pgleases.consumers_status.dead_letters IS 'Rows in consumer_dead_letters. 1000 means 1,000 or more.';
COMMENT ON COLUMN pgleases.consumers_status.unhandled IS 'Rows that no process handles, because their partition is null or out of range, at most 1,000. It is null also if no index begins with the partition.';
COMMENT ON COLUMN pgleases.consumers_status.paused_at IS 'When an operator paused it. It is null if it is not paused.';
COMMENT ON COLUMN pgleases.consumers_status.paused_by IS 'The operator who paused it.';
COMMENT ON COLUMN pgleases.consumers_status.paused_reason IS 'Why.';
COMMENT ON COLUMN pgleases.consumers_status.first_id IS 'The lowest ID of a row whose key is not blocked. It is null if there is none, or no index begins with the ID.';

-- Notes the oldest row of a queue table, for pgleases doctor: if it stays the oldest for long, no row is handled, and if
-- no process has looked for long, their reads fail. A process calls it each minute.
CREATE OR REPLACE FUNCTION pgleases.consumer_look(p_consumer pg_catalog.text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    b record;
BEGIN
    -- A poll must not wait for a row that somebody keeps locked.
    PERFORM FROM pgleases.consumers AS c WHERE c.name = p_consumer FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    SELECT l.* INTO b FROM pgleases.consumers AS c CROSS JOIN LATERAL pgleases.consumer_backlog(c) AS l WHERE c.name = p_consumer;
    IF b.waiting IS NOT NULL THEN
        UPDATE pgleases.consumers AS c
        SET looked_at = clock_timestamp(), first_id = b.first_id,
            first_since = CASE WHEN c.first_id = b.first_id THEN c.first_since WHEN b.first_id IS NOT NULL THEN clock_timestamp() END
        WHERE c.name = p_consumer;
    END IF;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.consumer_look(pg_catalog.text) IS 'Notes the oldest row of a consumer''s queue table, and that a process has looked for it.';

-- The verbs of operators. Each one records itself in the events, in its transaction, with its actor and reason, and wakes
-- the processes of the consumer. They run with the rights of their owner, and session_user stays the operator. PUBLIC may
-- not execute them. 42704: there is no such consumer, blocked row or dead letter.

-- Begins a verb, and returns its actor. A verb that waits for a deletion does not find the consumer after it.
CREATE OR REPLACE FUNCTION pgleases.consumer_operator(p_verb pg_catalog.text, p_consumer pg_catalog.text, p_actor pg_catalog.text, p_reason pg_catalog.text) RETURNS pg_catalog.text
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    who CONSTANT text := pgleases.operator(p_verb, p_actor, p_reason);
BEGIN
    IF p_verb = 'delete' THEN
        PERFORM FROM pgleases.consumers AS c WHERE c.name = p_consumer FOR UPDATE;
    ELSE
        PERFORM FROM pgleases.consumers AS c WHERE c.name = p_consumer FOR KEY SHARE;
    END IF;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no consumer "%"', p_consumer USING ERRCODE = 'undefined_object';
    END IF;
    RETURN who;
END
$pgleases_body$;
REVOKE EXECUTE ON FUNCTION pgleases.consumer_operator FROM PUBLIC;
COMMENT ON FUNCTION pgleases.consumer_operator(pg_catalog.text, pg_catalog.text, pg_catalog.text, pg_catalog.text) IS 'Part of the verbs on consumers. It begins one, and returns its actor.';

-- Ends a verb: records it, and wakes the processes of the consumer.
--   p_id: the row; null: the change is of the consumer, or of all its rows
--   p_rows: how many rows were changed; null: the change is of the consumer
CREATE OR REPLACE FUNCTION pgleases.consumer_changed(p_cause pg_catalog.text, p_consumer pg_catalog.text, p_id bigint, p_rows int, p_who pg_catalog.text, p_reason pg_catalog.text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    INSERT INTO pgleases.events (lease, cause, actor, reason, row_id, rows) VALUES ('consumer/' || p_consumer, p_cause, p_who, p_reason, p_id, p_rows);
    PERFORM pgleases.notify('consumer/' || p_consumer);
END
$pgleases_body$;
REVOKE EXECUTE ON FUNCTION pgleases.consumer_changed FROM PUBLIC;
COMMENT ON FUNCTION pgleases.consumer_changed(pg_catalog.text, pg_catalog.text, bigint, int, pg_catalog.text, pg_catalog.text) IS 'Part of the verbs on consumers. It records one, and wakes the processes of the consumer.';

CREATE OR REPLACE FUNCTION pgleases.consumer_pause(p_consumer pg_catalog.text, p_actor pg_catalog.text, p_reason pg_catalog.text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    who CONSTANT text := pgleases.consumer_operator('pause'::text, p_consumer, p_actor, p_reason);
BEGIN
    UPDATE pgleases.consumers AS c SET paused_at = clock_timestamp(), paused_by = who, paused_reason = p_reason
    WHERE c.name = p_consumer AND c.paused_at IS NULL;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM pgleases.consumer_changed('consumer paused'::text, p_consumer, NULL::bigint, NULL::int, who, p_reason);
    RETURN true;
END
$pgleases_body$;
REVOKE EXECUTE ON FUNCTION pgleases.consumer_pause FROM PUBLIC;
COMMENT ON FUNCTION pgleases.consumer_pause(pg_catalog.text, pg_catalog.text, pg_catalog.text) IS 'Pauses a consumer. Its processes take no rows until it is resumed. Returns whether it was not paused before.';

CREATE OR REPLACE FUNCTION pgleases.consumer_resume(p_consumer pg_catalog.text, p_actor pg_catalog.text, p_reason pg_catalog.text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    who CONSTANT text := pgleases.consumer_operator('resume'::text, p_consumer, p_actor, p_reason);
BEGIN
    UPDATE pgleases.consumers AS c SET paused_at = NULL, paused_by = NULL, paused_reason = NULL
    WHERE c.name = p_consumer AND c.paused_at IS NOT NULL;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM pgleases.consumer_changed('consumer resumed'::text, p_consumer, NULL::bigint, NULL::int, who, p_reason);
    RETURN true;
END
$pgleases_body$;
REVOKE EXECUTE ON FUNCTION pgleases.consumer_resume FROM PUBLIC;
COMMENT ON FUNCTION pgleases.consumer_resume(pg_catalog.text, pg_catalog.text, pg_catalog.text) IS 'Resumes a paused consumer. Returns whether it was paused.';

-- Makes blocked rows due now, with all attempts, and returns how many. A row whose attempt is under way keeps that one.
CREATE OR REPLACE FUNCTION pgleases.consumer_retry_rows(p_consumer pg_catalog.text, p_id bigint) RETURNS int
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    n int;
BEGIN
    UPDATE pgleases.consumer_blocked AS b
    SET attempts = 0, next_at = clock_timestamp(), asked = true, skipped_by = NULL, skipped_reason = NULL,
        crashes = CASE WHEN b.charged IS NULL THEN 0 ELSE 1 END -- 1: of the attempt under way
    FROM (SELECT o.partition, o.id FROM pgleases.consumer_blocked AS o WHERE o.consumer = p_consumer AND (p_id IS NULL OR o.id = p_id)
          ORDER BY o.partition, o.id FOR UPDATE) AS o
    WHERE b.consumer = p_consumer AND b.partition = o.partition AND b.id = o.id;
    GET DIAGNOSTICS n = ROW_COUNT;
    RETURN n;
END
$pgleases_body$;
REVOKE EXECUTE ON FUNCTION pgleases.consumer_retry_rows FROM PUBLIC;
COMMENT ON FUNCTION pgleases.consumer_retry_rows(pg_catalog.text, bigint) IS 'Part of consumer_retry and consumer_retry_all. It makes a blocked row due, or all if p_id is null.';

CREATE OR REPLACE FUNCTION pgleases.consumer_retry(p_consumer pg_catalog.text, p_id bigint, p_actor pg_catalog.text, p_reason pg_catalog.text) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    who CONSTANT text := pgleases.consumer_operator('retry'::text, p_consumer, p_actor, p_reason);
BEGIN
    IF p_id IS NULL OR pgleases.consumer_retry_rows(p_consumer, p_id) = 0 THEN
        PERFORM pgleases.consumer_no_row(p_consumer, p_id);
    END IF;
    PERFORM pgleases.consumer_changed('row retried'::text, p_consumer, p_id, 1, who, p_reason);
END
$pgleases_body$;
REVOKE EXECUTE ON FUNCTION pgleases.consumer_retry FROM PUBLIC;
COMMENT ON FUNCTION pgleases.consumer_retry(pg_catalog.text, bigint, pg_catalog.text, pg_catalog.text) IS 'Makes a blocked row due now, with all attempts. A row that is being skipped is no longer skipped.';

CREATE OR REPLACE FUNCTION pgleases.consumer_retry_all(p_consumer pg_catalog.text, p_actor pg_catalog.text, p_reason pg_catalog.text) RETURNS int
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    who CONSTANT text := pgleases.consumer_operator('retry'::text, p_consumer, p_actor, p_reason);
    n   CONSTANT int := pgleases.consumer_retry_rows(p_consumer, NULL::bigint);
BEGIN
    IF n > 0 THEN
        PERFORM pgleases.consumer_changed('rows retried'::text, p_consumer, NULL::bigint, n, who, p_reason);
    END IF;
    RETURN n;
END
$pgleases_body$;
REVOKE EXECUTE ON FUNCTION pgleases.consumer_retry_all FROM PUBLIC;
COMMENT ON FUNCTION pgleases.consumer_retry_all(pg_catalog.text, pg_catalog.text, pg_catalog.text) IS 'Makes all blocked rows due now, with all attempts, and returns how many.';

-- The owner of the row's partition moves it to the dead letters, so an operator needs no rights on queue tables.
CREATE OR REPLACE FUNCTION pgleases.consumer_skip(p_consumer pg_catalog.text, p_id bigint, p_actor pg_catalog.text, p_reason pg_catalog.text) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    who CONSTANT text := pgleases.consumer_operator('skip'::text, p_consumer, p_actor, p_reason);
BEGIN
    UPDATE pgleases.consumer_blocked AS b SET next_at = clock_timestamp(), asked = true, skipped_by = who, skipped_reason = p_reason
    WHERE b.consumer = p_consumer AND b.id = p_id;
    IF NOT FOUND THEN
        PERFORM pgleases.consumer_no_row(p_consumer, p_id);
    END IF;
    PERFORM pgleases.consumer_changed('row skipped'::text, p_consumer, p_id, 1, who, p_reason);
END
$pgleases_body$;
REVOKE EXECUTE ON FUNCTION pgleases.consumer_skip FROM PUBLIC;
COMMENT ON FUNCTION pgleases.consumer_skip(pg_catalog.text, bigint, pg_catalog.text, pg_catalog.text) IS 'Lets the owner of a blocked row move it to the dead letters.';

CREATE OR REPLACE FUNCTION pgleases.consumer_no_row(p_consumer pg_catalog.text, p_id bigint) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    RAISE EXCEPTION 'row % of consumer "%" blocks no key', coalesce(p_id::text, 'null'), p_consumer USING ERRCODE = 'undefined_object',
        HINT = 'It was handled, skipped or deleted, or it waits behind a blocked row of its key, or its ID is another.';
END
$pgleases_body$;
REVOKE EXECUTE ON FUNCTION pgleases.consumer_no_row FROM PUBLIC;
COMMENT ON FUNCTION pgleases.consumer_no_row(pg_catalog.text, bigint) IS 'Part of consumer_retry and consumer_skip. It raises the error for a row that blocks no key.';

-- Processes that begin meanwhile wait, and then find no consumer. The queue table and the dead letters stay.
CREATE OR REPLACE FUNCTION pgleases.consumer_delete(p_consumer pg_catalog.text, p_actor pg_catalog.text, p_reason pg_catalog.text) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    who CONSTANT text := pgleases.consumer_operator('delete'::text, p_consumer, p_actor, p_reason);
BEGIN
    IF EXISTS (SELECT FROM pgleases.partitions AS p WHERE p.lease = 'consumer/' || p_consumer AND p.owner IS NOT NULL) THEN
        RAISE EXCEPTION 'processes run the consumer "%"', p_consumer USING ERRCODE = 'object_in_use', HINT = 'End them first.';
    END IF;
    DELETE FROM pgleases.consumer_blocked AS b WHERE b.consumer = p_consumer;
    DELETE FROM pgleases.consumer_owners AS o WHERE o.consumer = p_consumer;
    DELETE FROM pgleases.consumers AS c WHERE c.name = p_consumer;
    PERFORM pgleases.consumer_changed('consumer deleted'::text, p_consumer, NULL::bigint, NULL::int, who, p_reason);
END
$pgleases_body$;
REVOKE EXECUTE ON FUNCTION pgleases.consumer_delete FROM PUBLIC;
COMMENT ON FUNCTION pgleases.consumer_delete(pg_catalog.text, pg_catalog.text, pg_catalog.text) IS 'Deletes a consumer that no process runs, with its blocked rows. Its queue table and its dead letters stay.';

-- Takes the latest dead letter with an ID, and returns its content. Until consumer_return has inserted it, in the same
-- transaction, it is nowhere. It is handled before a blocked row of its key.
CREATE OR REPLACE FUNCTION pgleases.consumer_take_letter(p_consumer pg_catalog.text, p_id bigint, p_actor pg_catalog.text, p_reason pg_catalog.text) RETURNS pg_catalog.jsonb
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    who CONSTANT text := pgleases.consumer_operator('return'::text, p_consumer, p_actor, p_reason);
    letter pgleases.consumer_dead_letters;
BEGIN
    DELETE FROM pgleases.consumer_dead_letters AS d
    WHERE d.consumer = p_consumer AND d.id = p_id
      AND d.died_at = (SELECT max(o.died_at) FROM pgleases.consumer_dead_letters AS o WHERE o.consumer = p_consumer AND o.id = p_id)
    RETURNING * INTO letter;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'row % of consumer "%" is no dead letter', coalesce(p_id::text, 'null'), p_consumer
            USING ERRCODE = 'undefined_object', HINT = 'It was returned or deleted, or its ID is another.';
    END IF;
    INSERT INTO pgleases.consumer_blocked (consumer, partition, id, key, version, attempts, next_at, asked)
    SELECT c.name, letter.partition, p_id, letter.key, '', 0, clock_timestamp(), true
    FROM pgleases.consumers AS c WHERE c.name = p_consumer AND c.partitions > letter.partition -- the number may have changed
    ON CONFLICT DO NOTHING;
    PERFORM pgleases.consumer_changed('row returned'::text, p_consumer, p_id, 1, who, p_reason);
    RETURN letter.content;
END
$pgleases_body$;
REVOKE EXECUTE ON FUNCTION pgleases.consumer_take_letter FROM PUBLIC;
COMMENT ON FUNCTION pgleases.consumer_take_letter(pg_catalog.text, bigint, pg_catalog.text, pg_catalog.text) IS 'Part of consumer_return. It takes a dead letter, and records who did that and why.';

-- Returns a dead letter to its queue table, with its ID and the other columns that both have. It runs with the rights of
-- its caller, who needs SELECT and INSERT on the table, and sets no search_path: triggers of the table run as in any insert.
-- 23505: the table has a row with the ID.
CREATE OR REPLACE FUNCTION pgleases.consumer_return(p_consumer pg_catalog.text, p_id bigint, p_actor pg_catalog.text, p_reason pg_catalog.text) RETURNS void
LANGUAGE plpgsql VOLATILE AS $pgleases_body$
DECLARE
    letter  CONSTANT pg_catalog.jsonb := pgleases.consumer_take_letter(p_consumer, p_id, p_actor, p_reason);
    queue   pg_catalog.regclass;
    column_ pg_catalog.text;
    names   pg_catalog.text;
    n       int;
BEGIN
    SELECT pg_catalog.to_regclass(c.queue), c.id_column INTO queue, column_ FROM pgleases.consumers AS c WHERE c.name OPERATOR(pg_catalog.=) p_consumer;
    SELECT pg_catalog.string_agg(pg_catalog.quote_ident(a.attname::pg_catalog.text), ', ') INTO names FROM pg_catalog.pg_attribute AS a
    WHERE a.attrelid OPERATOR(pg_catalog.=) queue AND a.attnum OPERATOR(pg_catalog.>) 0 AND a.attgenerated OPERATOR(pg_catalog.=) '' AND letter OPERATOR(pg_catalog.?) a.attname::pg_catalog.text;
    EXECUTE pg_catalog.format('INSERT INTO %1$s (%2$s) OVERRIDING SYSTEM VALUE SELECT %2$s FROM pg_catalog.jsonb_populate_record(NULL::%1$s, $1) '
                              'WHERE NOT EXISTS (SELECT FROM %1$s WHERE %3$I OPERATOR(pg_catalog.=) $2)', queue, names, column_) USING letter, p_id;
    GET DIAGNOSTICS n = ROW_COUNT;
    IF n OPERATOR(pg_catalog.=) 0 THEN
        RAISE EXCEPTION 'table % has a row with ID %', queue, p_id USING ERRCODE = 'unique_violation', HINT = 'IDs are given once: insert the letter''s content as a new row.';
    END IF;
END
$pgleases_body$;
REVOKE EXECUTE ON FUNCTION pgleases.consumer_return FROM PUBLIC;
COMMENT ON FUNCTION pgleases.consumer_return(pg_catalog.text, bigint, pg_catalog.text, pg_catalog.text) IS 'Returns a dead letter to the queue table. It is handled before other rows of its key.';

-- An error leaves all letters where they are.
CREATE OR REPLACE FUNCTION pgleases.consumer_return_all(p_consumer pg_catalog.text, p_actor pg_catalog.text, p_reason pg_catalog.text) RETURNS int
LANGUAGE plpgsql VOLATILE AS $pgleases_body$
DECLARE
    id bigint;
    n  int := 0;
BEGIN
    IF NOT EXISTS (SELECT FROM pgleases.consumers AS c WHERE c.name OPERATOR(pg_catalog.=) p_consumer) THEN
        RAISE EXCEPTION 'there is no consumer "%"', p_consumer USING ERRCODE = 'undefined_object';
    END IF;
    FOR id IN SELECT DISTINCT d.id FROM pgleases.consumer_dead_letters AS d WHERE d.consumer OPERATOR(pg_catalog.=) p_consumer ORDER BY d.id LOOP
        PERFORM pgleases.consumer_return(p_consumer, id, p_actor, p_reason);
        n := n OPERATOR(pg_catalog.+) 1;
    END LOOP;
    RETURN n;
END
$pgleases_body$;
REVOKE EXECUTE ON FUNCTION pgleases.consumer_return_all FROM PUBLIC;
COMMENT ON FUNCTION pgleases.consumer_return_all(pg_catalog.text, pg_catalog.text, pg_catalog.text) IS 'Returns all dead letters to the queue table, and returns how many. An error leaves all of them where they are.';

INSERT INTO pgleases.consumer_version AS v (version, min_code) VALUES (1, 1)
ON CONFLICT ((true)) DO UPDATE SET version = EXCLUDED.version, min_code = EXCLUDED.min_code WHERE v.version OPERATOR(pg_catalog.<) EXCLUDED.version;
