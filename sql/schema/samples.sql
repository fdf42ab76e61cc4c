-- samples.sql: how the numbers that no event tells have changed, once a minute.

-- For people: no statement of the protocol reads it. It has few columns, because 90 leases and 50 consumers write
-- 350 of them a minute.
CREATE TABLE IF NOT EXISTS pgleases.samples (
    at    pg_catalog.timestamptz NOT NULL,
    kind  pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    name  pg_catalog.text COLLATE pg_catalog."C" NOT NULL,
    value double precision,
    PRIMARY KEY (kind, name, at)
) WITH (autovacuum_vacuum_insert_scale_factor = 0.05);
COMMENT ON TABLE pgleases.samples IS 'Numbers of leases, consumers and schedules, once a minute while a client lives. Rows older than 7 days are deleted.';
COMMENT ON COLUMN pgleases.samples.at IS 'The minute.';
COMMENT ON COLUMN pgleases.samples.kind IS 'The kind of number. Of a lease: members, unowned (partitions without a live owner). Of a consumer: waiting (rows in its table, at most 1000), oldest (age of the oldest row, seconds), blocked (keys). Of a group of schedules: failing, late. Of all together, with an empty name: the sums of these, of oldest the highest, and clients, leases, locks.';
COMMENT ON COLUMN pgleases.samples.name IS 'Name of the lease, the consumer or the group. It is empty for all together.';
COMMENT ON COLUMN pgleases.samples.value IS 'The number. It is null if it took too long to count.';
CREATE INDEX IF NOT EXISTS samples_by_time ON pgleases.samples (at);

-- Clients call it once a minute. Of all clients, one writes the samples of a minute: the others find the last of them,
-- or do not get the advisory lock, for which they do not wait. So no client is elected, and if one dies, the next call
-- goes on where it was. It runs with the rights of its caller, because roles that run consumers write the names of
-- tables. The caller's rights decide what has a sample.
--
-- It never takes long, because the other statements of the client wait for it. It takes another lease,
-- consumer or group only in its first 20 ms, and says whether some remain for the next call. The caller has a
-- statement_timeout. A count that takes longer has a sample without a value.
CREATE OR REPLACE FUNCTION pgleases.sample(p_lock_ms int, OUT wrote boolean, OUT remains boolean)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $pgleases_body$
DECLARE
    began CONSTANT timestamptz := clock_timestamp();
    rests_at CONSTANT timestamptz := began + interval '20 milliseconds'; -- what is not begun by then is left to the next call
    minute CONSTANT timestamptz := date_trunc('minute', began, 'UTC');
    status CONSTANT regclass := to_regclass('pgleases.consumers_status');
    groups CONSTANT regclass := to_regclass('pgleases.schedule_groups');
    schedules CONSTANT regclass := to_regclass('pgleases.schedules');
    schedules_status CONSTANT regclass := to_regclass('pgleases.schedules_status');
    sampled int := 0;
    s record;
    v record;
BEGIN
    PERFORM pgleases.settings(false, p_lock_ms);
    wrote := false;
    remains := false;
    IF EXISTS (SELECT FROM pgleases.samples AS d WHERE d.kind = 'clients' AND d.name = '' AND d.at = minute)
       OR NOT pg_try_advisory_xact_lock(hashtextextended('sample', 'pgleases.samples'::regclass::bigint)) THEN
        RETURN;
    END IF;
    wrote := true;
    remains := true;

    FOR s IN SELECT l.name FROM (SELECT l.name FROM pgleases.leases AS l WHERE l.partitions > 0 ORDER BY l.name LIMIT 200) AS l
             WHERE NOT EXISTS (SELECT FROM pgleases.samples AS d WHERE d.kind = 'members' AND d.name = l.name AND d.at = minute)
             ORDER BY l.name LOOP
        IF sampled > 0 AND clock_timestamp() > rests_at THEN
            RETURN;
        END IF;
        BEGIN
            SELECT (SELECT count(*) FROM pgleases.members AS m JOIN pgleases.clients AS c ON c.session = m.session WHERE m.lease = s.name) AS members,
                   (SELECT coalesce(sum(p.number), 0)
                    FROM (SELECT p.owner, count(*) AS number FROM pgleases.partitions AS p WHERE p.lease = s.name GROUP BY p.owner) AS p
                    WHERE NOT EXISTS (SELECT FROM pgleases.clients AS c WHERE c.session = p.owner)) AS unowned
            INTO v;
        EXCEPTION WHEN query_canceled THEN -- of this statement the time is over, so the rest is left to the next call
            INSERT INTO pgleases.samples (at, kind, name) VALUES (minute, 'members', s.name) ON CONFLICT DO NOTHING;
            RETURN;
        END;
        INSERT INTO pgleases.samples (at, kind, name, value)
        VALUES (minute, 'members', s.name, v.members), (minute, 'unowned', s.name, v.unowned)
        ON CONFLICT DO NOTHING;
        sampled := sampled + 1;
    END LOOP;

    IF status IS NOT NULL AND has_table_privilege(status, 'SELECT') THEN
        FOR s IN EXECUTE format('SELECT c.name FROM (SELECT c.name FROM %s AS c ORDER BY c.name LIMIT 100) AS c '
                                'WHERE NOT EXISTS (SELECT FROM %s AS d WHERE d.kind = ''waiting'' AND d.name = c.name AND d.at = $1) ORDER BY c.name', 'pgleases.consumers'::regclass, 'pgleases.samples'::regclass) USING minute LOOP
            IF sampled > 0 AND clock_timestamp() > rests_at THEN
                RETURN;
            END IF;
            BEGIN
                EXECUTE format('SELECT c.waiting, CASE WHEN c.timed THEN coalesce(greatest(extract(epoch FROM c.oldest), 0), 0) END AS oldest, c.blocked_keys AS blocked '
                               'FROM %s AS c WHERE c.consumer = $1', status) INTO v USING s.name;
            EXCEPTION
            WHEN query_canceled THEN -- of this statement the time is over, so the rest is left to the next call
                INSERT INTO pgleases.samples (at, kind, name) VALUES (minute, 'waiting', s.name) ON CONFLICT DO NOTHING;
                RETURN;
            WHEN OTHERS THEN
                SELECT NULL::int AS waiting, NULL::float8 AS oldest, NULL::int AS blocked INTO v;
            END;
            INSERT INTO pgleases.samples (at, kind, name, value)
            SELECT minute, n.kind, s.name, n.value
            FROM (VALUES ('waiting', v.waiting::float8), ('oldest', v.oldest::float8), ('blocked', v.blocked::float8)) AS n (kind, value)
            WHERE n.value IS NOT NULL OR n.kind = 'waiting' -- the next call does not try it again
            ON CONFLICT DO NOTHING;
            sampled := sampled + 1;
        END LOOP;
    END IF;

    -- The counts end at 1,001, as those of admin's groups.sql, which explains how late schedules are counted.
    IF groups IS NOT NULL AND has_table_privilege(schedules_status, 'SELECT') AND has_table_privilege(schedules, 'SELECT') AND has_table_privilege(groups, 'SELECT') THEN
        FOR s IN EXECUTE format('SELECT g.name, g.partitions FROM (SELECT g.name, g.partitions FROM %s AS g ORDER BY g.name LIMIT 100) AS g '
                                'WHERE NOT EXISTS (SELECT FROM %s AS d WHERE d.kind = ''late'' AND d.name = g.name AND d.at = $1) ORDER BY g.name', groups, 'pgleases.samples'::regclass) USING minute LOOP
            IF sampled > 0 AND clock_timestamp() > rests_at THEN
                RETURN;
            END IF;
            BEGIN
                EXECUTE format(
                    'SELECT (SELECT count(*) FROM (SELECT FROM %1$s AS s WHERE s.group_name = $1 AND s.failures > 0 LIMIT 1001) AS n) AS failing, '
                    '(SELECT count(*) FROM (SELECT l.id FROM ' || CASE WHEN s.partitions <= 1000 THEN
                        'generate_series(0, $2 - 1) AS p CROSS JOIN LATERAL (SELECT s.id FROM %1$s AS s WHERE s.group_name = $1 AND s.partition = p AND s.due < $3 ORDER BY s.due LIMIT 1001) AS l'
                        ELSE '%1$s AS l WHERE l.group_name = $1 AND l.due < $3' END ||
                    ' LIMIT 1001) AS n JOIN %2$s AS v ON v.id = n.id WHERE v.state <> ''running'') AS late', schedules, schedules_status)
                INTO v USING s.name, s.partitions, began - interval '10 seconds';
            EXCEPTION
            WHEN query_canceled THEN
                INSERT INTO pgleases.samples (at, kind, name) VALUES (minute, 'late', s.name) ON CONFLICT DO NOTHING;
                RETURN;
            WHEN OTHERS THEN
                SELECT NULL::int AS failing, NULL::int AS late INTO v;
            END;
            INSERT INTO pgleases.samples (at, kind, name, value)
            SELECT minute, n.kind, s.name, n.value FROM (VALUES ('failing', v.failing::float8), ('late', v.late::float8)) AS n (kind, value)
            WHERE n.value IS NOT NULL OR n.kind = 'late'
            ON CONFLICT DO NOTHING;
            sampled := sampled + 1;
        END LOOP;
    END IF;

    IF sampled > 0 AND clock_timestamp() > rests_at THEN
        RETURN;
    END IF;
    INSERT INTO pgleases.samples (at, kind, name, value)
    SELECT minute, d.kind, '', CASE d.kind WHEN 'oldest' THEN max(d.value) ELSE sum(d.value) END
    FROM pgleases.samples AS d WHERE d.at = minute AND d.kind <> 'members' AND d.name <> '' AND d.value IS NOT NULL
    GROUP BY d.kind
    UNION ALL SELECT minute, 'clients', '', count(*) FROM pgleases.clients AS c WHERE c.expires_at > began
    UNION ALL SELECT minute, 'leases', '', count(*) FROM (SELECT FROM pgleases.leases AS l WHERE l.partitions > 0 LIMIT 10001) AS n
    UNION ALL SELECT minute, 'locks', '', count(DISTINCT k.name) FROM (SELECT l.name FROM pgleases.locks AS l WHERE l.token IS NOT NULL LIMIT 10001) AS k
    ON CONFLICT DO NOTHING;
    remains := false;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.sample(int) IS 'Writes samples of this minute, unless another client has written them or writes them now. It returns whether this call has written, and whether some remain for the next call.';

-- As trim_events: clients may not delete samples. A sample of the future was written under a wrong clock.
CREATE OR REPLACE FUNCTION pgleases.trim_samples() RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $pgleases_body$
DECLARE
    old CONSTANT timestamptz := clock_timestamp() - interval '7 days';
    ahead CONSTANT timestamptz := clock_timestamp() + interval '1 day';
BEGIN
    DELETE FROM pgleases.samples AS s
    WHERE s.ctid = ANY (ARRAY(SELECT o.ctid FROM pgleases.samples AS o WHERE o.at < old ORDER BY o.at LIMIT 10000 FOR UPDATE SKIP LOCKED));
    DELETE FROM pgleases.samples AS s
    WHERE s.ctid = ANY (ARRAY(SELECT o.ctid FROM pgleases.samples AS o WHERE o.at > ahead ORDER BY o.at DESC LIMIT 10000 FOR UPDATE SKIP LOCKED));
END
$pgleases_body$;
REVOKE EXECUTE ON FUNCTION pgleases.trim_samples() FROM PUBLIC;
COMMENT ON FUNCTION pgleases.trim_samples() IS 'Deletes some of the samples that are older than 7 days. Checks for expired sessions call it.';
