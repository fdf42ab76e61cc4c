-- notify.sql: notifications to the processes that work on a lease.

CREATE SEQUENCE IF NOT EXISTS pgleases.notified MINVALUE 0;
COMMENT ON SEQUENCE pgleases.notified IS 'The time of the last notification, and the channels notified. A sequence, because a sequence is not locked until the end of a transaction, and not rolled back.';

-- Commits that notify wait for each other, over the whole server. So only the first commit in each 200 ms notifies, and
-- the processes look again when the 200 ms are over. The value of the sequence is the number of these 200 ms, followed by
-- one bit for each channel that was notified in them. All leases with one channel number use one channel. Otherwise a
-- lease would get no notification because another lease of its number had one. If two transactions race, both notify.
CREATE OR REPLACE FUNCTION pgleases.notify_channel(lease pg_catalog.text) RETURNS int
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    RETURN (hashtext($1) & 2147483647) % 24;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.notify_channel(pg_catalog.text) IS 'The number of a lease''s channel. Several leases share a channel.';

CREATE OR REPLACE FUNCTION pgleases.notify(lease pg_catalog.text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    slice CONSTANT bigint := (extract(epoch FROM clock_timestamp()) * 5)::bigint;
    mine  CONSTANT bigint := 1::bigint << pgleases.notify_channel($1);
    sent  bigint;
BEGIN
    SELECT t.last_value INTO sent FROM pgleases.notified AS t;
    IF sent >> 24 <> slice THEN
        sent := slice << 24;
    ELSIF sent & mine <> 0 THEN
        RETURN;
    END IF;
    PERFORM setval('pgleases.notified', sent | mine), pg_notify('pgleases_notify_' || pgleases.notify_channel($1), '');
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.notify(pg_catalog.text) IS 'Notifies the processes that work on a lease, at the commit, that there is work before their next poll.';
