-- notify.sql: notifications to the processes that work on a lease.

CREATE SEQUENCE IF NOT EXISTS pgleases.notified MINVALUE 0;
COMMENT ON SEQUENCE pgleases.notified IS 'The time of the last notification, and the channels notified. A sequence, because a sequence is not locked until the end of a transaction, and not rolled back.';

-- Commits that notify wait for each other, over the whole server. So only the first commit in each 200 ms notifies, and
-- the processes look again when the 200 ms are over. The value of the sequence is the number of these 200 ms, followed by
-- one bit for each channel that was notified in them. All leases with one channel number use one channel. Otherwise a
-- lease would get no notification because another lease of its number had one. If two transactions race, both notify.
-- A transaction sends one notification, at its commit. Its later calls leave the following 200 ms to other transactions.
CREATE OR REPLACE FUNCTION pgleases.notify_channel(lease pg_catalog.text) RETURNS int
LANGUAGE sql IMMUTABLE AS $pgleases_body$
    SELECT (pg_catalog.hashtext(notify_channel.lease) OPERATOR(pg_catalog.&) 2147483647) OPERATOR(pg_catalog.%) 24
$pgleases_body$;
COMMENT ON FUNCTION pgleases.notify_channel(pg_catalog.text) IS 'The number of a lease''s channel. Several leases share a channel.';

-- Each insert into a queue table calls this, so it sets no search_path, and uses no query: both would cost some
-- microseconds. Everything is named with its schema instead.
CREATE OR REPLACE FUNCTION pgleases.notify(lease pg_catalog.text) RETURNS void
LANGUAGE plpgsql VOLATILE AS $pgleases_body$
DECLARE
    slice CONSTANT bigint := (pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 5::float)::bigint;
    mine  CONSTANT bigint := 1::bigint OPERATOR(pg_catalog.<<) pgleases.notify_channel(notify.lease);
    own   bigint;
    sent  bigint := coalesce(pg_catalog.pg_sequence_last_value('pgleases.notified'::pg_catalog.regclass), 0);
BEGIN
    IF (sent OPERATOR(pg_catalog.>>) 24) OPERATOR(pg_catalog.<>) slice THEN
        sent := slice OPERATOR(pg_catalog.<<) 24;
    ELSIF (sent OPERATOR(pg_catalog.&) mine) OPERATOR(pg_catalog.<>) 0::bigint THEN
        RETURN;
    END IF;
    own := coalesce(nullif(pg_catalog.current_setting('pgleases_notify.channels', true), '')::bigint, 0);
    IF (own OPERATOR(pg_catalog.&) mine) OPERATOR(pg_catalog.<>) 0::bigint THEN
        RETURN;
    END IF;
    PERFORM pg_catalog.set_config('pgleases_notify.channels', (own OPERATOR(pg_catalog.|) mine)::pg_catalog.text, true),
            pg_catalog.setval('pgleases.notified'::pg_catalog.regclass, sent OPERATOR(pg_catalog.|) mine),
            pg_catalog.pg_notify(pg_catalog.concat('pgleases_notify_', pgleases.notify_channel(notify.lease)), '');
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.notify(pg_catalog.text) IS 'Notifies the processes that work on a lease, at the commit, that there is work before their next poll.';
