-- operators.sql: overrides, and the verbs of operators.

-- The orders of operators. A plan of a lease applies the overrides that concern it. A separate table, because
-- clients would overwrite columns of other tables. Clients may read it; only the functions for operators write to it.
CREATE TABLE IF NOT EXISTS pgleases.overrides (
    verb      pg_catalog.text NOT NULL,
    lease     pg_catalog.text COLLATE pg_catalog."C",
    partition int,
    client    pg_catalog.text COLLATE pg_catalog."C",
    until     pg_catalog.timestamptz NOT NULL,
    since     pg_catalog.timestamptz NOT NULL,
    actor     pg_catalog.text NOT NULL,
    reason    pg_catalog.text NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS overrides_once ON pgleases.overrides (verb, coalesce(lease, ''), coalesce(partition, -1), (CASE WHEN partition IS NULL THEN coalesce(client, '') ELSE '' END));
CREATE INDEX IF NOT EXISTS overrides_client ON pgleases.overrides (client);
CREATE INDEX IF NOT EXISTS overrides_lease ON pgleases.overrides (lease);
ALTER TABLE pgleases.overrides REPLICA IDENTITY FULL;
COMMENT ON TABLE pgleases.overrides IS 'The orders of operators, until they take them back. Only the functions drain, cordon, pause, freeze, pin and their opposites write to it.';
COMMENT ON COLUMN pgleases.overrides.verb IS 'drain or cordon (a client); pause or freeze (a lease); pin (a partition to a client).';
COMMENT ON COLUMN pgleases.overrides.lease IS 'The lease concerned. It is null if the override concerns all leases.';
COMMENT ON COLUMN pgleases.overrides.partition IS 'The partition concerned. It is null if the override concerns all partitions.';
COMMENT ON COLUMN pgleases.overrides.client IS 'The ID of the client concerned, whichever process has it. It is null if the override concerns all clients.';
COMMENT ON COLUMN pgleases.overrides.until IS 'When the override ends automatically: the next check for expired sessions deletes it. infinity: never.';
COMMENT ON COLUMN pgleases.overrides.since IS 'When the override was last written.';
COMMENT ON COLUMN pgleases.overrides.actor IS 'The operator that ordered it.';
COMMENT ON COLUMN pgleases.overrides.reason IS 'The reason, as the actor gave it.';

-- Each verb writes an override or takes one back, and makes a plan due at once for the leases concerned. So ownership
-- changes only by the usual statements: a verb is safe, stays in force after its operator has gone, and is undone by
-- its opposite. PUBLIC may not execute the verbs. They run with the rights of their owner, so an operator needs no
-- other rights; session_user still names the operator.

-- Begins a verb, and returns its actor. Heartbeats and takeovers wait for the rows that a verb locks. So the verb's
-- transaction does not stay open, whatever the operator does: the shortest TTL allows 1 s without a heartbeat.
CREATE OR REPLACE FUNCTION pgleases.operator(p_verb pg_catalog.text, p_actor pg_catalog.text, p_reason pg_catalog.text) RETURNS pg_catalog.text
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    IF coalesce(p_reason, '') = '' THEN
        RAISE EXCEPTION '% needs a reason', p_verb
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Say why: the event stores the reason.';
    END IF;
    IF octet_length(p_reason) > 4000 OR octet_length(p_actor) > 255 THEN
        RAISE EXCEPTION '%: the reason has % bytes, the actor %', p_verb, octet_length(p_reason), coalesce(octet_length(p_actor), 0)
            USING ERRCODE = 'invalid_parameter_value',
                HINT = 'Every status shows them. Give at most 4,000 bytes for the reason, and 255 for the actor.';
    END IF;
    PERFORM pgleases.settings(true, 5000);
    PERFORM set_config('idle_in_transaction_session_timeout', '500', true), set_config('statement_timeout', '10000', true);
    RETURN CASE WHEN coalesce(p_actor, '') = '' THEN session_user::text ELSE p_actor || ' (' || session_user || ')' END;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.operator(pg_catalog.text, pg_catalog.text, pg_catalog.text) IS 'Part of the verbs of operators. It begins one, bounds how long its transaction stays open, and returns its actor.';

-- A plan that has read its leases before an override finds other generations, and is not written. A client may join a
-- lease while a verb runs. A join locks the client's row, so either the verb waits for the join and sees it, or the
-- join waits for the verb. So the plan of that lease does not miss the override.
CREATE OR REPLACE FUNCTION pgleases.override_locks(
    p_lease pg_catalog.text, p_client pg_catalog.text, p_until pg_catalog.timestamptz)
RETURNS pg_catalog.text[]
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    names text[];
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('override', 'pgleases.overrides'::regclass::bigint)); -- one verb at a time
    -- Lock order: leases, the server, clients.
    names := pgleases.leases_of(p_lease, p_client);
    PERFORM FROM pgleases.leases AS l WHERE l.name = ANY (names) ORDER BY l.name FOR UPDATE;
    UPDATE pgleases.server AS s SET next_check_at = least(s.next_check_at, p_until) WHERE p_until < 'infinity';
    PERFORM FROM pgleases.clients AS c WHERE c.id = p_client AND p_lease IS NULL ORDER BY c.session FOR UPDATE;
    RETURN pgleases.leases_of(p_lease, p_client);
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.override_locks(pg_catalog.text, pg_catalog.text, pg_catalog.timestamptz) IS 'Part of the verbs of operators. It locks what an override concerns, makes a check due when it ends, and returns the leases.';

CREATE OR REPLACE FUNCTION pgleases.override_written(
    p_leases pg_catalog.text[], p_cause pg_catalog.text, p_lease pg_catalog.text, p_partition int, p_client pg_catalog.text,
    p_actor pg_catalog.text, p_reason pg_catalog.text)
RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    UPDATE pgleases.leases AS l
    SET generation = l.generation + 1, plan_due_at = least(l.plan_due_at, clock_timestamp())
    WHERE l.name = ANY (p_leases);
    INSERT INTO pgleases.events (lease, cause, actor, reason, from_id, to_id, partitions, generation)
    VALUES (p_lease, p_cause, p_actor, p_reason,
            CASE WHEN p_partition IS NULL THEN p_client END, CASE WHEN p_partition IS NOT NULL THEN p_client END,
            CASE WHEN p_partition IS NOT NULL THEN int4multirange(int4range(p_partition, p_partition, '[]')) END,
            (SELECT l.generation - 1 FROM pgleases.leases AS l WHERE l.name = p_lease));
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.override_written(pg_catalog.text[], pg_catalog.text, pg_catalog.text, int, pg_catalog.text, pg_catalog.text, pg_catalog.text) IS 'Part of the verbs of operators. It makes a plan of the leases due, and records the verb.';

CREATE OR REPLACE FUNCTION pgleases.override(
    p_verb pg_catalog.text, p_lease pg_catalog.text, p_partition int, p_client pg_catalog.text,
    p_actor pg_catalog.text, p_reason pg_catalog.text, p_until pg_catalog.timestamptz, p_force boolean)
RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    who CONSTANT text := pgleases.operator(p_verb, p_actor, p_reason);
    present CONSTANT int := (SELECT l.partitions FROM pgleases.leases AS l WHERE l.name = p_lease AND l.partitions > 0);
    names text[]; -- the leases concerned
    lacking text;
BEGIN
    -- Refuse an order that cannot be obeyed.
    IF p_until IS NULL OR p_until <= clock_timestamp() THEN
        RAISE EXCEPTION '% until %: the time is over', p_verb, coalesce(p_until::text, 'null')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Give a future time, or infinity.';
    END IF;
    IF (octet_length(coalesce(p_client, p_lease)) BETWEEN 1 AND 255) IS NOT TRUE THEN
        RAISE EXCEPTION '% for a name of % bytes', p_verb, coalesce(octet_length(coalesce(p_client, p_lease)), 0)
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Names of leases and client IDs have 1 to 255 bytes.';
    END IF;
    IF p_lease IS NOT NULL AND present IS NULL THEN
        IF p_verb <> 'pause' THEN
            RAISE EXCEPTION 'lease "%" does not exist', p_lease USING ERRCODE = 'undefined_object';
        END IF;
        RAISE WARNING 'lease "%" does not exist yet: its pause begins when it is created', p_lease USING ERRCODE = 'undefined_object';
    END IF;
    IF p_verb = 'pin' AND p_client IS NULL THEN
        RAISE EXCEPTION '% to null', p_verb USING ERRCODE = 'invalid_parameter_value', HINT = 'Name a client.';
    END IF;
    IF p_verb = 'pin' AND (p_partition BETWEEN 0 AND present - 1) IS NOT TRUE THEN
        RAISE EXCEPTION 'lease "%" has no partition %', p_lease, coalesce(p_partition::text, 'null')
            USING ERRCODE = 'undefined_object', HINT = format('It has those from 0 to %s.', present - 1);
    END IF;
    IF p_client IS NOT NULL AND p_until = 'infinity' AND NOT EXISTS (SELECT FROM pgleases.identities AS i WHERE i.id = p_client) THEN
        RAISE EXCEPTION 'client "%" is not known', p_client
            USING ERRCODE = 'undefined_object', HINT = 'A client is known if it had a session in the last day. An override for one that starts later needs an end: until in SQL, or --for 2h.';
    END IF;

    names := pgleases.override_locks(p_lease, p_client, p_until);

    -- Keep the last client of a lease at work, unless the operator insists. A session that has expired may belong to a
    -- dead process, so it does not count as another client.
    IF p_verb = 'drain' AND NOT p_force THEN
        SELECT string_agg(n, ', ' ORDER BY n) INTO lacking
        FROM unnest(names) AS n
        WHERE (SELECT bool_and(c.id = p_client) -- null: no client works on it already
               FROM pgleases.members AS m JOIN pgleases.clients AS c ON c.session = m.session
               WHERE m.lease = n AND m.weight > 0 AND c.incarnation >= 0
                 AND (c.expires_at > clock_timestamp() OR c.id = p_client)
                 AND NOT EXISTS (SELECT FROM pgleases.overrides AS w WHERE w.verb = 'drain' AND w.client = c.id));
        IF lacking IS NOT NULL THEN
            RAISE EXCEPTION 'client "%" is the last that works on: %', p_client, lacking
                USING ERRCODE = 'object_in_use', HINT = 'Their partitions would have no owner. If that is what you want, add force => true.';
        END IF;
    END IF;

    -- Write the order. One for the same object is replaced, so that an operator can extend it.
    INSERT INTO pgleases.overrides AS w (verb, lease, partition, client, until, since, actor, reason)
    VALUES (p_verb, p_lease, p_partition, p_client, p_until, clock_timestamp(), who, p_reason)
    ON CONFLICT (verb, coalesce(lease, ''), coalesce(partition, -1), (CASE WHEN partition IS NULL THEN coalesce(client, '') ELSE '' END)) DO UPDATE
    SET client = EXCLUDED.client, until = EXCLUDED.until, since = EXCLUDED.since, actor = EXCLUDED.actor, reason = EXCLUDED.reason;
    PERFORM pgleases.override_written(names, p_verb, p_lease, p_partition, p_client, who, p_reason);
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.override(pg_catalog.text, pg_catalog.text, int, pg_catalog.text, pg_catalog.text, pg_catalog.text, pg_catalog.timestamptz, boolean) IS 'Part of the verbs of operators. It writes an override.';

CREATE OR REPLACE FUNCTION pgleases.take_back(
    p_verb pg_catalog.text, p_lease pg_catalog.text, p_partition int, p_client pg_catalog.text, p_actor pg_catalog.text, p_reason pg_catalog.text)
RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    opposite CONSTANT text := CASE p_verb WHEN 'pause' THEN 'resume' ELSE 'un' || p_verb END;
    who CONSTANT text := pgleases.operator(opposite, p_actor, p_reason);
    names CONSTANT text[] := pgleases.override_locks(p_lease, p_client, NULL::timestamptz);
    ended boolean := false; -- a rebalance delay, which is a freeze by time
BEGIN
    IF p_verb = 'freeze' THEN
        UPDATE pgleases.leases AS l SET settling_since = NULL, settles_at = NULL WHERE l.name = p_lease AND l.settles_at IS NOT NULL;
        ended := FOUND;
    END IF;
    DELETE FROM pgleases.overrides AS w
    WHERE w.verb = p_verb AND w.lease IS NOT DISTINCT FROM p_lease AND w.partition IS NOT DISTINCT FROM p_partition
      AND (w.client IS NOT DISTINCT FROM p_client OR p_partition IS NOT NULL); -- an unpin does not name the client
    IF NOT FOUND AND NOT ended THEN
        RAISE EXCEPTION 'there is no % of "%" to take back', p_verb, coalesce(p_lease || '/' || p_partition, p_lease, p_client)
            USING ERRCODE = 'undefined_object';
    END IF;
    PERFORM pgleases.override_written(names, opposite, p_lease, p_partition, p_client, who, p_reason);
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.take_back(pg_catalog.text, pg_catalog.text, int, pg_catalog.text, pg_catalog.text, pg_catalog.text) IS 'Part of the verbs of operators. It takes an override back.';

CREATE OR REPLACE FUNCTION pgleases.leases_of(p_lease pg_catalog.text, p_client pg_catalog.text) RETURNS pg_catalog.text[]
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    RETURN CASE WHEN p_lease IS NOT NULL THEN ARRAY[p_lease]
                ELSE ARRAY(SELECT m.lease FROM pgleases.members AS m JOIN pgleases.clients AS c ON c.session = m.session WHERE c.id = p_client
                           UNION SELECT g.lease FROM pgleases.graces AS g JOIN pgleases.leases AS l ON l.name = g.lease WHERE g.client = p_client
                           ORDER BY 1) END;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.leases_of(pg_catalog.text, pg_catalog.text) IS 'Part of the verbs of operators: the leases that an override concerns: the lease, or else the leases of the client.';

-- Does not wait for locks, because a check for expired sessions calls it: an override with locked rows ends at the next
-- check. It ends at most 200 overrides, because no expired session is evicted meanwhile. It updates each lease once,
-- because an UPDATE has to skip the row versions of the updates before it.
CREATE OR REPLACE FUNCTION pgleases.end_overrides() RETURNS pg_catalog.text[]
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    names text[];
    to_plan text[] := '{}';
    locked int;
    w record;
BEGIN
    FOR w IN SELECT o.ctid AS place, o.verb, o.lease, o.partition, o.client, o.actor FROM pgleases.overrides AS o WHERE o.until <= clock_timestamp()
             ORDER BY o.until, o.verb, o.lease, o.partition, o.client LIMIT 200 FOR UPDATE SKIP LOCKED LOOP
        names := ARRAY(SELECT l.name FROM pgleases.leases AS l WHERE l.name = ANY (pgleases.leases_of(w.lease, w.client)) ORDER BY l.name);
        SELECT count(*) INTO locked
        FROM (SELECT FROM pgleases.leases AS l WHERE l.name = ANY (names) ORDER BY l.name FOR UPDATE SKIP LOCKED) AS l;
        CONTINUE WHEN locked < cardinality(names);
        SELECT count(*) INTO locked
        FROM (SELECT FROM pgleases.clients AS c WHERE c.id = w.client AND w.lease IS NULL ORDER BY c.session FOR UPDATE SKIP LOCKED) AS c;
        CONTINUE WHEN locked < (SELECT count(*) FROM pgleases.clients AS c WHERE c.id = w.client AND w.lease IS NULL)
                   OR w.lease IS NULL AND names <> pgleases.leases_of(NULL::text, w.client);
        DELETE FROM pgleases.overrides AS o WHERE o.ctid = w.place;
        INSERT INTO pgleases.events (lease, cause, actor, reason, from_id, to_id, partitions)
        VALUES (w.lease, CASE w.verb WHEN 'pause' THEN 'resume' ELSE 'un' || w.verb END, w.actor, 'the override has expired',
                CASE WHEN w.partition IS NULL THEN w.client END, CASE WHEN w.partition IS NOT NULL THEN w.client END,
                CASE WHEN w.partition IS NOT NULL THEN int4multirange(int4range(w.partition, w.partition, '[]')) END);
        to_plan := to_plan || ARRAY(SELECT n FROM unnest(names) AS n WHERE NOT (n = ANY (to_plan)));
    END LOOP;
    UPDATE pgleases.leases AS l
    SET generation = l.generation + 1, plan_due_at = least(l.plan_due_at, clock_timestamp())
    WHERE l.name = ANY (to_plan);
    RETURN to_plan;
END
$pgleases_body$;
REVOKE EXECUTE ON FUNCTION pgleases.end_overrides() FROM PUBLIC; -- because in an open transaction it keeps clients from their rows
COMMENT ON FUNCTION pgleases.end_overrides() IS 'Ends the overrides whose time is over, and returns the leases that need a plan. Checks for expired sessions call it.';

CREATE OR REPLACE FUNCTION pgleases.drain(
    client pg_catalog.text, reason pg_catalog.text, actor pg_catalog.text DEFAULT NULL, until pg_catalog.timestamptz DEFAULT 'infinity',
    force boolean DEFAULT false)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $pgleases_body$
    SELECT pgleases.override('drain'::text, NULL::text, NULL::int, client, actor, reason, until, force);
$pgleases_body$;
COMMENT ON FUNCTION pgleases.drain(pg_catalog.text, pg_catalog.text, pg_catalog.text, pg_catalog.timestamptz, boolean) IS 'Makes the client own no partitions. Its work ends, and then others get its partitions. It is refused for the last client that works on a lease, unless it is forced.';

CREATE OR REPLACE FUNCTION pgleases.undrain(
    client pg_catalog.text, reason pg_catalog.text, actor pg_catalog.text DEFAULT NULL)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $pgleases_body$
    SELECT pgleases.take_back('drain'::text, NULL::text, NULL::int, client, actor, reason);
$pgleases_body$;
COMMENT ON FUNCTION pgleases.undrain(pg_catalog.text, pg_catalog.text, pg_catalog.text) IS 'Takes a drain back. The client gets its own partitions again.';

CREATE OR REPLACE FUNCTION pgleases.cordon(
    client pg_catalog.text, reason pg_catalog.text, actor pg_catalog.text DEFAULT NULL, until pg_catalog.timestamptz DEFAULT 'infinity')
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $pgleases_body$
    SELECT pgleases.override('cordon'::text, NULL::text, NULL::int, client, actor, reason, until, false);
$pgleases_body$;
COMMENT ON FUNCTION pgleases.cordon(pg_catalog.text, pg_catalog.text, pg_catalog.text, pg_catalog.timestamptz) IS 'Gives the client no further partitions. It keeps those that it has. If all members of a lease are cordoned, they still get the partitions without an owner.';

CREATE OR REPLACE FUNCTION pgleases.uncordon(
    client pg_catalog.text, reason pg_catalog.text, actor pg_catalog.text DEFAULT NULL)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $pgleases_body$
    SELECT pgleases.take_back('cordon'::text, NULL::text, NULL::int, client, actor, reason);
$pgleases_body$;
COMMENT ON FUNCTION pgleases.uncordon(pg_catalog.text, pg_catalog.text, pg_catalog.text) IS 'Takes a cordon back.';

CREATE OR REPLACE FUNCTION pgleases.pause(
    lease pg_catalog.text, reason pg_catalog.text, actor pg_catalog.text DEFAULT NULL, until pg_catalog.timestamptz DEFAULT 'infinity')
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $pgleases_body$
    SELECT pgleases.override('pause'::text, lease, NULL::int, NULL::text, actor, reason, until, false);
$pgleases_body$;
COMMENT ON FUNCTION pgleases.pause(pg_catalog.text, pg_catalog.text, pg_catalog.text, pg_catalog.timestamptz) IS 'Leaves the lease''s partitions without owners, after the work on them has ended. The lease need not exist yet.';

CREATE OR REPLACE FUNCTION pgleases.resume(
    lease pg_catalog.text, reason pg_catalog.text, actor pg_catalog.text DEFAULT NULL)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $pgleases_body$
    SELECT pgleases.take_back('pause'::text, lease, NULL::int, NULL::text, actor, reason);
$pgleases_body$;
COMMENT ON FUNCTION pgleases.resume(pg_catalog.text, pg_catalog.text, pg_catalog.text) IS 'Takes a pause back.';

CREATE OR REPLACE FUNCTION pgleases.freeze(
    lease pg_catalog.text, reason pg_catalog.text, actor pg_catalog.text DEFAULT NULL, until pg_catalog.timestamptz DEFAULT 'infinity')
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $pgleases_body$
    SELECT pgleases.override('freeze'::text, lease, NULL::int, NULL::text, actor, reason, until, false);
$pgleases_body$;
COMMENT ON FUNCTION pgleases.freeze(pg_catalog.text, pg_catalog.text, pg_catalog.text, pg_catalog.timestamptz) IS 'Lets partitions of the lease move only if their owner has crashed, leaves, or is drained.';

CREATE OR REPLACE FUNCTION pgleases.unfreeze(
    lease pg_catalog.text, reason pg_catalog.text, actor pg_catalog.text DEFAULT NULL)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $pgleases_body$
    SELECT pgleases.take_back('freeze'::text, lease, NULL::int, NULL::text, actor, reason);
$pgleases_body$;
COMMENT ON FUNCTION pgleases.unfreeze(pg_catalog.text, pg_catalog.text, pg_catalog.text) IS 'Takes a freeze back, and ends a rebalance delay.';

CREATE OR REPLACE FUNCTION pgleases.pin(
    lease pg_catalog.text, partition int, client pg_catalog.text, reason pg_catalog.text, actor pg_catalog.text DEFAULT NULL,
    until pg_catalog.timestamptz DEFAULT 'infinity')
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $pgleases_body$
    SELECT pgleases.override('pin'::text, lease, partition, client, actor, reason, until, false);
$pgleases_body$;
COMMENT ON FUNCTION pgleases.pin(pg_catalog.text, int, pg_catalog.text, pg_catalog.text, pg_catalog.text, pg_catalog.timestamptz) IS 'Makes the client own the partition whenever the client works on the lease. Otherwise another client owns it. The other partitions are shared as if there were no pinned ones.';

CREATE OR REPLACE FUNCTION pgleases.unpin(
    lease pg_catalog.text, partition int, reason pg_catalog.text, actor pg_catalog.text DEFAULT NULL)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $pgleases_body$
    SELECT pgleases.take_back('pin'::text, lease, partition, NULL::text, actor, reason);
$pgleases_body$;
COMMENT ON FUNCTION pgleases.unpin(pg_catalog.text, int, pg_catalog.text, pg_catalog.text) IS 'Takes a pin back.';

CREATE OR REPLACE FUNCTION pgleases.evict_client(
    client pg_catalog.text, reason pg_catalog.text, actor pg_catalog.text DEFAULT NULL)
RETURNS int
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    who CONSTANT text := pgleases.operator('evict_client'::text, evict_client.actor, evict_client.reason);
    names text[];
    revoked int;
BEGIN
    -- As if a newer process had the ID, but one that does not exist: the evicted process is not admitted again, and a
    -- process that starts later is.
    UPDATE pgleases.identities AS i SET incarnation = i.incarnation + 1, process = 0 WHERE i.id = evict_client.client;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'client "%" is not known', evict_client.client USING ERRCODE = 'undefined_object', HINT = 'A client is known if it had a session in the last day.';
    END IF;
    names := pgleases.leases_of(NULL::text, evict_client.client);
    PERFORM FROM pgleases.leases AS l WHERE l.name = ANY (names) ORDER BY l.name FOR UPDATE;
    -- From here on no heartbeat renews the session, and no guard passes for it. Others take over when it expires,
    -- because until then it may trust its ownership. The evicted process cannot shorten that when its work has ended: a
    -- copy of it, for example of a virtual machine's snapshot, has the same session, and may trust it for just as long.
    UPDATE pgleases.clients AS c SET incarnation = -1 WHERE c.id = evict_client.client AND c.incarnation >= 0;
    GET DIAGNOSTICS revoked = ROW_COUNT;
    UPDATE pgleases.leases AS l
    SET generation = l.generation + 1, plan_due_at = least(l.plan_due_at, clock_timestamp())
    WHERE l.name = ANY (pgleases.leases_of(NULL::text, evict_client.client));
    DELETE FROM pgleases.graces AS g WHERE g.client = evict_client.client; -- nothing waits for it
    INSERT INTO pgleases.events (cause, actor, reason, from_id)
    VALUES ('evict', who, evict_client.reason, evict_client.client);
    RETURN revoked;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.evict_client(pg_catalog.text, pg_catalog.text, pg_catalog.text) IS 'Revokes the sessions of a client. No heartbeat renews them, guards refuse them at once, and others take over when they expire, within a TTL. The client''s process ends. A process that starts later is admitted. Returns the number of revoked sessions.';

-- Not an override: the lease has no members that could obey one.
CREATE OR REPLACE FUNCTION pgleases.drop_lease(
    lease pg_catalog.text, reason pg_catalog.text, actor pg_catalog.text DEFAULT NULL, partitions int DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    who CONSTANT text := pgleases.operator('drop_lease'::text, drop_lease.actor, drop_lease.reason);
    live text;
BEGIN
    IF drop_lease.partitions NOT BETWEEN 1 AND 65536 THEN
        RAISE EXCEPTION 'drop_lease with % partitions', drop_lease.partitions USING ERRCODE = 'invalid_parameter_value', HINT = 'A lease has 1 to 65536 partitions.';
    END IF;
    PERFORM FROM pgleases.leases AS l WHERE l.name = drop_lease.lease AND (l.partitions > 0 OR drop_lease.partitions IS NOT NULL) FOR UPDATE; -- joins wait
    IF NOT FOUND THEN
        RAISE EXCEPTION 'lease "%" does not exist', drop_lease.lease USING ERRCODE = 'undefined_object';
    END IF;
    SELECT string_agg(c.id, ', ' ORDER BY c.id) INTO live
    FROM pgleases.members AS m JOIN pgleases.clients AS c USING (session) WHERE m.lease = drop_lease.lease;
    IF live IS NOT NULL THEN
        RAISE EXCEPTION 'lease "%" has live members: %', drop_lease.lease, live
            USING ERRCODE = 'object_in_use',
                HINT = 'First close them, or make them leave. A crashed client is removed when another client, of any lease, has run for its TTL. If no client runs, run one for longer than that TTL: pgleases run tidy --once -- sleep 60';
    END IF;
    UPDATE pgleases.leases AS l
    SET partitions = 0, generation = generation + 1, plan_due_at = 'infinity',
        next_partitions = coalesce(drop_lease.partitions, l.partitions), next_until = clock_timestamp() + interval '24 hours', successor = NULL,
        settling_since = NULL, settles_at = NULL, unowned = 0,
        epoch_floor = greatest(l.epoch_floor, (SELECT max(p.epoch) FROM pgleases.partitions AS p WHERE p.lease = drop_lease.lease))
    WHERE l.name = drop_lease.lease;
    DELETE FROM pgleases.partitions AS p WHERE p.lease = drop_lease.lease;
    DELETE FROM pgleases.members AS m WHERE m.lease = drop_lease.lease;
    DELETE FROM pgleases.graces AS g WHERE g.lease = drop_lease.lease;
    INSERT INTO pgleases.events (lease, cause, actor, reason, generation)
    SELECT drop_lease.lease, 'dropped', who, drop_lease.reason, l.generation - 1 FROM pgleases.leases AS l WHERE l.name = drop_lease.lease;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.drop_lease(pg_catalog.text, pg_catalog.text, pg_catalog.text, int) IS 'Drops a lease that has no live members. For 24 hours it can be created again only with the given number of partitions, by default its former number. Its later epochs are higher than all earlier ones.';

-- A process that was frozen or cut off is no member, but joins its lease again by itself when it comes back. So that there
-- is no member is true for a moment only. This closes the lease in that moment: joins wait for the lock, and are refused
-- after it. The DELETE of the partitions waits for guarded transactions, so none of them commits under the old lease later.
CREATE OR REPLACE FUNCTION pgleases.replace_lease(
    lease pg_catalog.text, successor pg_catalog.text, partitions int, reason pg_catalog.text, actor pg_catalog.text DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $pgleases_body$
DECLARE
    who CONSTANT text := pgleases.operator('replace_lease'::text, replace_lease.actor, replace_lease.reason);
    former pgleases.leases;
    present int; -- partitions of the successor
    members text;
BEGIN
    IF (replace_lease.partitions BETWEEN 1 AND 65536) IS NOT TRUE THEN
        RAISE EXCEPTION 'replace_lease with % partitions', coalesce(replace_lease.partitions::text, 'null')
            USING ERRCODE = 'invalid_parameter_value', HINT = 'A lease has 1 to 65536 partitions.';
    END IF;
    IF (octet_length(replace_lease.successor) BETWEEN 1 AND 255) IS NOT TRUE THEN
        RAISE EXCEPTION 'replace_lease by a name of % bytes', coalesce(octet_length(replace_lease.successor), 0)
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Names of leases have 1 to 255 bytes.';
    END IF;
    IF replace_lease.lease = replace_lease.successor THEN
        RAISE EXCEPTION 'lease "%" cannot replace itself', replace_lease.lease
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Give the new lease another name. To keep the name, pause the lease and drop it with the new number.';
    END IF;
    PERFORM FROM pgleases.leases AS l WHERE l.name IN (replace_lease.lease, replace_lease.successor) ORDER BY l.name FOR UPDATE; -- joins wait
    SELECT * INTO former FROM pgleases.leases AS l WHERE l.name = replace_lease.lease;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'lease "%" does not exist', replace_lease.lease USING ERRCODE = 'undefined_object';
    END IF;
    IF former.successor IS NOT NULL THEN
        RAISE EXCEPTION 'lease "%" was replaced by "%" already', replace_lease.lease, former.successor USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    present := (SELECT l.partitions FROM pgleases.leases AS l WHERE l.name = replace_lease.successor);
    IF present NOT IN (0, replace_lease.partitions) THEN
        RAISE EXCEPTION 'lease "%" has % partitions, not %', replace_lease.successor, present, replace_lease.partitions
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Give the number that it has, or another name.';
    END IF;
    SELECT string_agg(c.id || CASE WHEN c.expires_at > clock_timestamp() THEN ''
                                   ELSE ' (without a heartbeat since ' || date_trunc('second', c.expires_at - c.ttl) || ', not evicted yet)' END,
                      ', ' ORDER BY c.id, c.session) INTO members
    FROM pgleases.members AS m JOIN pgleases.clients AS c USING (session) WHERE m.lease = replace_lease.lease;
    IF members IS NOT NULL THEN
        RAISE EXCEPTION 'lease "%" has members: %', replace_lease.lease, members
            USING ERRCODE = 'object_in_use',
                HINT = 'First close them, or make them leave. A frozen or crashed client is removed when another client, of any lease, has run for its TTL. If no client runs, run one for longer than that TTL: pgleases run tidy --once -- sleep 60';
    END IF;
    UPDATE pgleases.leases AS l
    SET partitions = 0, generation = generation + 1, plan_due_at = 'infinity', successor = replace_lease.successor, settling_since = NULL, settles_at = NULL, unowned = 0,
        epoch_floor = greatest(l.epoch_floor, (SELECT max(p.epoch) FROM pgleases.partitions AS p WHERE p.lease = replace_lease.lease))
    WHERE l.name = replace_lease.lease
    RETURNING * INTO former;
    DELETE FROM pgleases.graces AS g WHERE g.lease = replace_lease.lease;
    DELETE FROM pgleases.partitions AS p WHERE p.lease = replace_lease.lease;
    DELETE FROM pgleases.members AS m WHERE m.lease = replace_lease.lease;
    INSERT INTO pgleases.leases AS l (name, partitions, generation, created_generation, epoch_floor, plan_due_at, planned_at)
    VALUES (replace_lease.successor, replace_lease.partitions, 1, 1, former.epoch_floor, 'infinity', clock_timestamp())
    ON CONFLICT (name) DO UPDATE
    SET partitions = EXCLUDED.partitions, generation = l.generation + 1, successor = NULL,
        created_generation = CASE WHEN l.partitions = 0 THEN l.generation + 1 ELSE l.created_generation END,
        epoch_floor = CASE WHEN l.partitions = 0 THEN greatest(l.epoch_floor, EXCLUDED.epoch_floor) ELSE l.epoch_floor END;
    INSERT INTO pgleases.partitions (lease, partition, epoch)
    SELECT l.name, n, l.epoch_floor
    FROM pgleases.leases AS l, generate_series(0, replace_lease.partitions - 1) AS n
    WHERE l.name = replace_lease.successor AND l.generation = l.created_generation;
    INSERT INTO pgleases.events (lease, cause, actor, reason, generation)
    SELECT l.name, CASE WHEN l.name = replace_lease.lease THEN 'replaced' ELSE 'replaces' END, who, replace_lease.reason, l.generation - 1
    FROM pgleases.leases AS l WHERE l.name IN (replace_lease.lease, replace_lease.successor) ORDER BY l.name = replace_lease.successor;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.replace_lease(pg_catalog.text, pg_catalog.text, int, pg_catalog.text, pg_catalog.text) IS 'Replaces a lease that has no members by another one. It closes the lease, so that joins of it are refused and name the successor, and creates the successor if it does not exist. Members that have expired count until they are evicted. If it creates the successor, its epochs are higher than all epochs of the replaced lease.';

REVOKE EXECUTE ON FUNCTION pgleases.drain, pgleases.undrain, pgleases.cordon, pgleases.uncordon, pgleases.pause, pgleases.resume,
    pgleases.freeze, pgleases.unfreeze, pgleases.pin, pgleases.unpin, pgleases.evict_client, pgleases.drop_lease, pgleases.replace_lease, pgleases.operator,
    pgleases.override_locks, pgleases.override_written, pgleases.override, pgleases.take_back FROM PUBLIC;
