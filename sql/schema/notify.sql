-- notify.sql: notifications to the processes that work on a lease.

CREATE SEQUENCE IF NOT EXISTS pgleases.notified MINVALUE 0;
COMMENT ON SEQUENCE pgleases.notified IS 'The time of the last notification, and the channels that were not notified since. A sequence, because a sequence is not locked until the end of a transaction, and not rolled back.';

-- Commits that notify wait for each other, over the whole server. So only the first commit in each 200 ms notifies, and
-- the processes look again when the 200 ms are over. The low 38 bits of the sequence are the number of these 200 ms. Above
-- them is one bit for each channel that was not notified in them yet. All leases with one channel number use one channel.
-- Otherwise a lease would get no notification because another lease of its number had one. If two transactions race, both
-- notify. A transaction sends one notification, at its commit. Its later calls leave the following 200 ms to other
-- transactions.
CREATE OR REPLACE FUNCTION pgleases.notify_channel(lease pg_catalog.text) RETURNS int
LANGUAGE sql IMMUTABLE AS $pgleases_body$
    SELECT pg_catalog.hashtext(notify_channel.lease) OPERATOR(pg_catalog.&) 15
$pgleases_body$;
COMMENT ON FUNCTION pgleases.notify_channel(pg_catalog.text) IS 'The number of a lease''s channel. Several leases share a channel.';

-- Each insert into a queue table calls this. In plain SQL, because the server inlines it into the function that calls it.
-- Then a transaction pays for each operator that it prepares, and not for the evaluation. So these are few.
CREATE OR REPLACE FUNCTION pgleases.notify_due(lease pg_catalog.text) RETURNS boolean
LANGUAGE sql VOLATILE AS $pgleases_body$
    SELECT (coalesce(pg_catalog.pg_sequence_last_value('pgleases.notified'::pg_catalog.regclass), 0)
            OPERATOR(pg_catalog.#) (pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 5::float)::bigint)
           OPERATOR(pg_catalog.&) (274877906943 OPERATOR(pg_catalog.|) (274877906944 OPERATOR(pg_catalog.<<) pgleases.notify_channel(notify_due.lease)))
           OPERATOR(pg_catalog.<>) 0::bigint
$pgleases_body$;
COMMENT ON FUNCTION pgleases.notify_due(pg_catalog.text) IS 'Whether the channel of a lease was not notified in these 200 ms yet.';

CREATE OR REPLACE FUNCTION pgleases.notify(lease pg_catalog.text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    slice    CONSTANT bigint := (date_part('epoch', clock_timestamp()) * 5)::bigint;
    mine     CONSTANT bigint := 274877906944 << pgleases.notify_channel(lease);
    unsent   bigint := coalesce(pg_sequence_last_value('pgleases.notified'), 0);
    own      CONSTANT bigint := coalesce(nullif(current_setting('pgleases_notify.channels', true), '')::bigint, 0);
BEGIN
    IF own & mine <> 0 OR NOT pgleases.notify_due(lease) THEN
        RETURN;
    END IF;
    IF unsent & 274877906943 <> slice THEN
        unsent := slice | (65535::bigint << 38);
    END IF;
    PERFORM set_config('pgleases_notify.channels', (own | mine)::text, true), setval('pgleases.notified', unsent & ~mine),
            pg_notify('pgleases_notify_' || pgleases.notify_channel(lease), '');
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.notify(pg_catalog.text) IS 'Notifies the processes that work on a lease, at the commit, that there is work before their next poll.';
