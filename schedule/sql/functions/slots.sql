-- functions/slots.sql: the slots of kinds with a limit.

-- Creates the missing slots of a kind with a limit.
--   p_most: the limit
CREATE OR REPLACE FUNCTION pgleases.schedule_make_slots(p_group pg_catalog.text, p_kind pg_catalog.text, p_most int) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    INSERT INTO pgleases.schedule_slots (group_name, kind, slot) SELECT p_group, p_kind, n FROM generate_series(0, p_most - 1) AS n ON CONFLICT DO NOTHING;
END
$pgleases_body$;

-- Takes a slot of a kind with a limit, in the transaction of a run. The slot is free again when the
-- transaction ends. For a call outside of the transaction it is free after schedule_free_slot, or
-- when the epoch has ended.
--   p_most: the limit: take only slots with lower numbers
--   p_run: mark of a call outside of the transaction; null for a run in the transaction
-- Returns whether a slot was free.
CREATE OR REPLACE FUNCTION pgleases.schedule_take_slot(p_group pg_catalog.text, p_kind pg_catalog.text, p_most int, p_partition int, p_epoch bigint, p_run pg_catalog.text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    first CONSTANT int := floor(random() * p_most)::int; -- so concurrent runs try different slots
    taken int;
BEGIN
    FOR half IN 1..2 LOOP
        SELECT s.slot INTO taken FROM pgleases.schedule_slots AS s
        WHERE s.group_name = p_group AND s.kind = p_kind AND s.slot >= CASE half WHEN 1 THEN first ELSE 0 END AND s.slot < CASE half WHEN 1 THEN p_most ELSE first END
          AND (s.run IS NULL OR NOT EXISTS (SELECT FROM pgleases.partitions AS p JOIN pgleases.clients AS c ON c.session = p.owner AND c.incarnation >= 0
                                            WHERE p.lease = 'schedule/' || p_group AND p.partition = s.partition AND p.epoch = s.epoch))
        ORDER BY s.slot LIMIT 1 FOR UPDATE OF s SKIP LOCKED;
        EXIT WHEN taken IS NOT NULL;
    END LOOP;
    IF taken IS NULL THEN
        RETURN false;
    END IF;
    IF p_run IS NOT NULL THEN
        UPDATE pgleases.schedule_slots AS s SET partition = p_partition, epoch = p_epoch, run = p_run WHERE s.group_name = p_group AND s.kind = p_kind AND s.slot = taken;
    END IF;
    RETURN true;
END
$pgleases_body$;

-- Frees the slot of a call outside of a transaction.
--   p_run: mark of the call, from schedule_take_slot
--   p_lock_ms: the most that it waits for a lock, milliseconds
CREATE OR REPLACE FUNCTION pgleases.schedule_free_slot(p_group pg_catalog.text, p_kind pg_catalog.text, p_run pg_catalog.text, p_lock_ms int) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    PERFORM set_config('lock_timeout', p_lock_ms::text, true);
    UPDATE pgleases.schedule_slots AS s SET partition = NULL, epoch = NULL, run = NULL WHERE s.group_name = p_group AND s.kind = p_kind AND s.run = p_run;
END
$pgleases_body$;
