-- functions/notify.sql: notifications to processes that something was enqueued.

-- Commits that notify wait for each other, over the whole server. So only the first commit in each
-- 200 ms notifies, and the processes poll again when the 200 ms are over. The value of the sequence
-- is the number of these 200 ms, followed by one bit for each channel that was notified in them.
-- All groups with one channel number listen to one channel. Otherwise a group would get no
-- notification because another group of its number had one. If two transactions race, both notify.
CREATE OR REPLACE FUNCTION pgleases.schedule_channel(p_group pg_catalog.text) RETURNS int
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    RETURN (hashtext(p_group) & 2147483647) % 24;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_channel(pg_catalog.text) IS 'The number of a group''s channel. Several groups share a channel.';

CREATE OR REPLACE FUNCTION pgleases.schedule_notify(p_group pg_catalog.text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    slice CONSTANT bigint := (extract(epoch FROM clock_timestamp()) * 5)::bigint;
    mine  CONSTANT bigint := 1::bigint << pgleases.schedule_channel(p_group);
    sent  bigint;
BEGIN
    SELECT t.last_value INTO sent FROM pgleases.schedule_notified AS t;
    IF sent >> 24 <> slice THEN
        sent := slice << 24;
    ELSIF sent & mine <> 0 THEN
        RETURN;
    END IF;
    PERFORM setval('pgleases.schedule_notified', sent | mine), pg_notify('pgleases_schedule_' || pgleases.schedule_channel(p_group), '');
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_notify(pg_catalog.text) IS 'Notifies the processes, at the commit, that something was enqueued that is due before their next poll.';
