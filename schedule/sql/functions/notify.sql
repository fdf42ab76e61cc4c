-- functions/notify.sql: how processes learn that something was enqueued.

-- Commits that notify wait for each other, all of the server's. So only the first in each 200 ms
-- notifies, and the processes poll again when these are over. The value of the sequence is the
-- number of these 200 ms, then a bit for each channel that was notified in them. All groups of a
-- number listen to one channel: else a group would get no notification while another of its number
-- had one. If two race, both notify.
CREATE OR REPLACE FUNCTION pgleases.schedule_channel(p_group pg_catalog.text) RETURNS int
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    RETURN (hashtext(p_group) & 2147483647) % 24;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_channel(pg_catalog.text) IS 'The number of a group''s channel, which it shares with other groups.';

CREATE OR REPLACE FUNCTION pgleases.schedule_notify(p_group pg_catalog.text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    fifth CONSTANT bigint := (extract(epoch FROM clock_timestamp()) * 5)::bigint;
    mine  CONSTANT bigint := 1::bigint << pgleases.schedule_channel(p_group);
    told  bigint;
BEGIN
    SELECT t.last_value INTO told FROM pgleases.schedule_notified AS t;
    IF told >> 24 <> fifth THEN
        told := fifth << 24;
    ELSIF told & mine <> 0 THEN
        RETURN;
    END IF;
    PERFORM setval('pgleases.schedule_notified', told | mine), pg_notify('pgleases_schedule_' || pgleases.schedule_channel(p_group), '');
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.schedule_notify(pg_catalog.text) IS 'Notifies processes, at the commit, that something was enqueued that is due before they poll.';
