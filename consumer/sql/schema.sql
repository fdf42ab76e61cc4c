-- schema.sql: the tables of package consumer and their functions, in the schema with the engine's tables. It is
-- idempotent: existing objects stay unchanged.
--
-- Types and operators are named with their schema, and names collate "C", as in the engine's files. Parameters begin with
-- p_, because the name of a column would be ambiguous. Statements on the user's own table are in statements.sql.

CREATE TABLE IF NOT EXISTS pgleases.consumer_version (
    version  int NOT NULL,
    min_code int NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS consumer_version_one_row ON pgleases.consumer_version ((true));
ALTER TABLE pgleases.consumer_version REPLICA IDENTITY FULL;
COMMENT ON TABLE pgleases.consumer_version IS 'One row: the version of the tables of package consumer, and the oldest code that can use them.';
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
    paused_reason    pg_catalog.text
);
COMMENT ON TABLE pgleases.consumers IS 'The consumers, each with its queue table.';
COMMENT ON COLUMN pgleases.consumers.name IS 'The consumer''s name. The name of its lease is "consumer/" and this name.';
COMMENT ON COLUMN pgleases.consumers.queue IS 'The queue table, with its schema, quoted where that is needed.';
COMMENT ON COLUMN pgleases.consumers.id_column IS 'The column with the rows'' IDs.';
COMMENT ON COLUMN pgleases.consumers.key_column IS 'The column with the keys; null: the partition is the key.';
COMMENT ON COLUMN pgleases.consumers.partition_column IS 'The column with the partitions.';
COMMENT ON COLUMN pgleases.consumers.time_column IS 'The column with the time at which a row was inserted; null: there is none.';
COMMENT ON COLUMN pgleases.consumers.partitions IS 'Number of the lease''s partitions.';
COMMENT ON COLUMN pgleases.consumers.since IS 'When the consumer was first opened.';
COMMENT ON COLUMN pgleases.consumers.paused_at IS 'When an operator paused it; null: it is not paused.';
COMMENT ON COLUMN pgleases.consumers.paused_by IS 'The operator who paused it.';
COMMENT ON COLUMN pgleases.consumers.paused_reason IS 'Why.';

CREATE TABLE IF NOT EXISTS pgleases.consumer_partitions (
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
COMMENT ON TABLE pgleases.consumer_partitions IS 'Which owners of a partition ended in order, so that the crash of an owner is known to the next.';
COMMENT ON COLUMN pgleases.consumer_partitions.consumer IS 'The consumer''s name.';
COMMENT ON COLUMN pgleases.consumer_partitions.partition IS 'The partition''s number.';
COMMENT ON COLUMN pgleases.consumer_partitions.begun IS 'The epoch of the last owner.';
COMMENT ON COLUMN pgleases.consumer_partitions.ended IS 'The epoch of the last owner that ended in order.';
COMMENT ON COLUMN pgleases.consumer_partitions.crashed IS 'The epoch of the last owner that did not end in order.';
COMMENT ON COLUMN pgleases.consumer_partitions.watched_to IS 'After a crash: the highest ID of a row at that time. Owners note each batch before it is handled, until they have passed this ID. Null: no notes are needed.';
COMMENT ON COLUMN pgleases.consumer_partitions.note_first IS 'The lowest ID of the batch in hand, if it was noted.';
COMMENT ON COLUMN pgleases.consumer_partitions.note_last IS 'The highest ID of that batch.';

CREATE TABLE IF NOT EXISTS pgleases.consumer_blocked (
    consumer  pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    partition int NOT NULL,
    id        bigint NOT NULL,
    key       pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    version   pg_catalog.text NOT NULL,
    attempts  int NOT NULL,
    crashes   int NOT NULL DEFAULT 0,
    error     pg_catalog.text,
    since     pg_catalog.timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    failed_at pg_catalog.timestamptz,
    next_at   pg_catalog.timestamptz NOT NULL,
    crashed   bigint,
    charged   bigint,
    PRIMARY KEY (consumer, partition, id)
) WITH (fillfactor = 70);
COMMENT ON TABLE pgleases.consumer_blocked IS 'The rows that block their keys: rows that failed, and crash suspects. No other row of such a key is handled.';
COMMENT ON COLUMN pgleases.consumer_blocked.consumer IS 'The consumer''s name.';
COMMENT ON COLUMN pgleases.consumer_blocked.partition IS 'The row''s partition.';
COMMENT ON COLUMN pgleases.consumer_blocked.id IS 'The row''s ID.';
COMMENT ON COLUMN pgleases.consumer_blocked.key IS 'The row''s key.';
COMMENT ON COLUMN pgleases.consumer_blocked.version IS 'The xmin of the row when it failed. A row that was changed since has its attempts anew.';
COMMENT ON COLUMN pgleases.consumer_blocked.attempts IS 'How many attempts failed.';
COMMENT ON COLUMN pgleases.consumer_blocked.crashes IS 'How many processes crashed while they handled the row alone, and the attempt under way.';
COMMENT ON COLUMN pgleases.consumer_blocked.error IS 'The error of the last attempt.';
COMMENT ON COLUMN pgleases.consumer_blocked.since IS 'When the row first blocked its key.';
COMMENT ON COLUMN pgleases.consumer_blocked.failed_at IS 'When the last attempt failed.';
COMMENT ON COLUMN pgleases.consumer_blocked.next_at IS 'When the row is handled again; infinity: not before an operator retries or skips it, or the row changes.';
COMMENT ON COLUMN pgleases.consumer_blocked.crashed IS 'The epoch of the owner that crashed while the row was in its batch: the row is a crash suspect. Null: it is none.';
COMMENT ON COLUMN pgleases.consumer_blocked.charged IS 'The epoch of the owner that handles this crash suspect, and has counted the attempt already.';

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

-- Wakes the consumers of a table after an insert. SECURITY DEFINER, so that a role that inserts needs no rights here.
CREATE OR REPLACE FUNCTION pgleases.consumer_inserted() RETURNS trigger
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    PERFORM pgleases.notify('consumer/' || TG_ARGV[0]);
    RETURN NULL;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.consumer_inserted() IS 'Trigger for a queue table, AFTER INSERT FOR EACH STATEMENT: wakes the consumer whose name is its argument.';

-- Sets the settings for statements of this package on the user's table, or sets back those of the session. A plan that
-- was made while the table was empty must be good for a million rows too, so the planner gets no choice but the index.
CREATE OR REPLACE FUNCTION pgleases.consumer_settings(p_ours boolean, p_lock_ms int) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    names CONSTANT text[] := '{enable_seqscan,enable_bitmapscan,enable_sort,enable_hashjoin,enable_mergejoin,jit,plan_cache_mode,lock_timeout}';
    saved CONSTANT text[] := string_to_array(nullif(current_setting('consumer.settings', true), ''), ' ');
    ours  CONSTANT text[] := ARRAY['off', 'off', 'off', 'off', 'off', 'off', 'force_generic_plan', p_lock_ms::text];
BEGIN
    IF p_ours THEN
        PERFORM set_config('consumer.settings', (SELECT string_agg(current_setting(n), ' ' ORDER BY i) FROM unnest(names) WITH ORDINALITY AS s (n, i)), true);
        PERFORM set_config(n, v, true) FROM unnest(names, ours) AS s (n, v);
    ELSE
        PERFORM set_config(n, v, true) FROM unnest(names, saved) AS s (n, v) WHERE v IS NOT NULL;
    END IF;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.consumer_settings(boolean, int) IS 'Sets the planner''s settings for statements of package consumer, in this transaction, or sets them back.';

-- Opens the transaction of a batch: guards its partitions, and sets limits.
--   p_idle_ms: the most that the transaction may be idle, milliseconds
--   p_lock_ms: the most that a statement of this package waits for a lock, milliseconds
-- refused are the partitions that are not owned under their epochs. xact identifies the transaction, for consumer_expect.
CREATE OR REPLACE FUNCTION pgleases.consumer_open(
    p_lease pg_catalog.text, p_partitions int[], p_epochs bigint[], p_idle_ms int, p_lock_ms int, OUT refused int[], OUT xact pg_catalog.text)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    refused := pgleases.guard_many(p_lease, p_partitions, p_epochs);
    xact := pg_current_xact_id()::text;
    PERFORM set_config('idle_in_transaction_session_timeout', p_idle_ms::text, true), pgleases.consumer_settings(true, p_lock_ms);
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.consumer_open(pg_catalog.text, int[], bigint[], int, int) IS 'Guards the partitions of a batch, and returns those that are not owned.';

-- PC001: another number of rows was removed. PC002: it is another transaction.
CREATE OR REPLACE FUNCTION pgleases.consumer_expect(p_xact pg_catalog.text, p_expected bigint, p_removed bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    IF pg_current_xact_id_if_assigned()::text IS DISTINCT FROM p_xact THEN
        RAISE EXCEPTION 'the handler ended its transaction: what it wrote may be committed' USING ERRCODE = 'PC002';
    ELSIF p_removed <> p_expected THEN
        RAISE EXCEPTION 'of % handled rows % were deleted', p_expected, p_removed
            USING ERRCODE = 'PC001', HINT = 'A trigger, a rule or row-level security prevents the DELETE, or the handler changed or deleted the rows.';
    END IF;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.consumer_expect(pg_catalog.text, bigint, bigint) IS 'Raises an error unless all handled rows were deleted in the transaction in which they were handled.';

-- Records the begin of ownerships, and returns what is known about the partitions before. The caller guards them.
CREATE OR REPLACE FUNCTION pgleases.consumer_begin(p_consumer pg_catalog.text, p_partitions int[], p_epochs bigint[])
RETURNS TABLE (number int, crashed_now boolean, crashed_epoch bigint, watched bigint, suspect_first bigint, suspect_last bigint)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off
AS $pgleases_body$
BEGIN
    RETURN QUERY
    WITH own AS MATERIALIZED (
        SELECT b.number, b.epoch, c.begun, c.crashed, c.watched_to, c.note_first, c.note_last,
               c.begun IS NOT NULL AND c.begun < b.epoch AND c.ended IS DISTINCT FROM c.begun AS fell
        FROM (SELECT * FROM unnest(p_partitions, p_epochs) AS b (number, epoch) ORDER BY number) AS b
        LEFT JOIN LATERAL (SELECT * FROM pgleases.consumer_partitions AS c WHERE c.consumer = p_consumer AND c.partition = b.number OFFSET 0) AS c ON true
    ), put AS (
        INSERT INTO pgleases.consumer_partitions AS c (consumer, partition, begun)
        SELECT p_consumer, o.number, o.epoch FROM own AS o
        ON CONFLICT (consumer, partition) DO UPDATE SET begun = EXCLUDED.begun, note_first = NULL, note_last = NULL,
            crashed = CASE WHEN c.begun < EXCLUDED.begun AND c.ended IS DISTINCT FROM c.begun THEN c.begun ELSE c.crashed END
    )
    SELECT o.number, o.fell, CASE WHEN o.fell THEN o.begun ELSE o.crashed END, o.watched_to, CASE WHEN o.fell THEN o.note_first END, CASE WHEN o.fell THEN o.note_last END
    FROM own AS o;
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
        UPDATE pgleases.consumer_partitions AS c
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

INSERT INTO pgleases.consumer_version AS v (version, min_code) VALUES (1, 1)
ON CONFLICT ((true)) DO UPDATE SET version = EXCLUDED.version, min_code = EXCLUDED.min_code WHERE v.version OPERATOR(pg_catalog.<) EXCLUDED.version;
