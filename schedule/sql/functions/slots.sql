-- functions/slots.sql: the slots of kinds with a limit.
--
-- Behind an old snapshot each slot has many row versions. The newest has the highest turn, by which the index finds it first, so
-- these functions read one version of each slot, and not all.

-- Creates the missing slots of a kind with a limit.
--   p_most: the limit
CREATE OR REPLACE FUNCTION pgleases.schedule_make_slots(p_group pg_catalog.text, p_kind pg_catalog.text, p_most int) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
AS $pgleases_body$
DECLARE
    missing int[];
BEGIN
    FOR i IN 1 .. 2 LOOP
        SELECT array_agg(n) INTO missing FROM generate_series(0, p_most - 1) AS n
        WHERE (SELECT l.turn FROM pgleases.schedule_slots AS l
               WHERE l.group_name = p_group AND l.kind = p_kind AND l.slot = n ORDER BY l.turn DESC LIMIT 1) IS NULL;
        IF missing IS NULL THEN
            RETURN; -- without the lock, which a frozen process may hold
        ELSIF i = 1 THEN -- one after the other from here on, so that no slot is created twice: its turn may differ by then
            PERFORM set_config('idle_in_transaction_session_timeout', '5000', true),
                pg_advisory_xact_lock(hashtextextended(p_group || '/' || p_kind, 'pgleases.schedule_slots'::regclass::bigint));
        END IF;
    END LOOP;
    INSERT INTO pgleases.schedule_slots (group_name, kind, slot) SELECT p_group, p_kind, n FROM unnest(missing) AS n;
END
$pgleases_body$;

-- Takes a slot of a kind with a limit, in the transaction of a run. The slot is free again when the
-- transaction ends. For a call outside of the transaction it is free after schedule_free_slot, or
-- when the epoch has ended.
--   p_most: the limit: take only slots with lower numbers
--   p_run: mark of a call outside of the transaction; null for a run in the transaction
-- Returns the number of the slot; null if all were taken.
CREATE OR REPLACE FUNCTION pgleases.schedule_take_slot(p_group pg_catalog.text, p_kind pg_catalog.text, p_most int, p_partition int, p_epoch bigint, p_run pg_catalog.text) RETURNS int
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
AS $pgleases_body$
DECLARE
    first CONSTANT int := floor(random() * p_most)::int; -- so concurrent runs try different slots
    n     int;
    taken bigint;
BEGIN
    FOR i IN 0 .. p_most - 1 LOOP
        n := (first + i) % p_most;
        SELECT s.turn INTO taken FROM pgleases.schedule_slots AS s
        WHERE s.group_name = p_group AND s.kind = p_kind AND s.slot = n
          AND s.turn = (SELECT l.turn FROM pgleases.schedule_slots AS l
                        WHERE l.group_name = p_group AND l.kind = p_kind AND l.slot = n ORDER BY l.turn DESC LIMIT 1)
          AND (s.run IS NULL OR NOT EXISTS (SELECT FROM pgleases.partitions AS p JOIN pgleases.clients AS c ON c.session = p.owner AND c.incarnation >= 0
                                            WHERE p.lease = 'schedule/' || p_group AND p.partition = s.partition AND p.epoch = s.epoch))
        FOR UPDATE OF s SKIP LOCKED;
        EXIT WHEN taken IS NOT NULL;
    END LOOP;
    IF taken IS NULL THEN
        RETURN NULL;
    END IF;
    IF p_run IS NOT NULL THEN
        UPDATE pgleases.schedule_slots AS s SET partition = p_partition, epoch = p_epoch, run = p_run, turn = s.turn + 1
        WHERE s.group_name = p_group AND s.kind = p_kind AND s.slot = n AND s.turn = taken;
    END IF;
    RETURN n;
END
$pgleases_body$;

-- Frees the slot of a call outside of a transaction.
--   p_slot: the number of the slot; null: it is not known
--   p_run: mark of the call, from schedule_take_slot
--   p_lock_ms: the most that it waits for a lock, milliseconds
CREATE OR REPLACE FUNCTION pgleases.schedule_free_slot(p_group pg_catalog.text, p_kind pg_catalog.text, p_slot int, p_run pg_catalog.text, p_lock_ms int) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
AS $pgleases_body$
DECLARE
    last CONSTANT int := coalesce(p_slot, (SELECT s.slot FROM pgleases.schedule_slots AS s
                                           WHERE s.group_name = p_group AND s.kind = p_kind ORDER BY s.slot DESC, s.turn DESC LIMIT 1));
BEGIN
    PERFORM set_config('lock_timeout', p_lock_ms::text, true);
    FOR n IN coalesce(p_slot, 0) .. coalesce(last, -1) LOOP
        UPDATE pgleases.schedule_slots AS s SET partition = NULL, epoch = NULL, run = NULL, turn = s.turn + 1
        WHERE s.group_name = p_group AND s.kind = p_kind AND s.slot = n AND s.run = p_run
          AND s.turn = (SELECT l.turn FROM pgleases.schedule_slots AS l
                        WHERE l.group_name = p_group AND l.kind = p_kind AND l.slot = n ORDER BY l.turn DESC LIMIT 1);
    END LOOP;
END
$pgleases_body$;
