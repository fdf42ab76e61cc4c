-- application.sql: what applications call.

-- In PL/pgSQL, because the server would run a function in SQL as a statement for each row, and under some settings
-- compile it each time.
CREATE OR REPLACE FUNCTION pgleases.partition_for(key pg_catalog.text, partitions int) RETURNS int
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $pgleases_body$
BEGIN
    IF partition_for.partitions OPERATOR(pg_catalog.<) 1 THEN
        RAISE EXCEPTION 'partition_for with % partitions', partition_for.partitions
            USING ERRCODE = 'invalid_parameter_value', HINT = 'A lease has 1 to 65536 partitions.';
    END IF;
    RETURN ((('x'::pg_catalog.text OPERATOR(pg_catalog.||) pg_catalog.encode(pg_catalog.substr(
                  pg_catalog.sha256(pg_catalog.convert_to(partition_for.key, 'UTF8')), 1, 8), 'hex'))::bit(64)::bigint
             OPERATOR(pg_catalog.&) 9223372036854775807) OPERATOR(pg_catalog.%) partition_for.partitions::bigint)::int;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.partition_for(pg_catalog.text, int) IS 'The partition of a key in a lease with this number of partitions: the first 8 bytes of the SHA-256 of the key''s UTF-8, big-endian, without the sign bit, modulo the number. If the number is below 1, it raises 22023.';

-- The row lock is the guard lock. Without it a former owner would pass while the takeover is not committed. It lasts
-- until the caller commits, and until then a takeover skips the partition (FOR UPDATE SKIP LOCKED). A guard that waited
-- for a takeover finds the new epoch, and is refused.
--
-- An evicted owner is refused even before a takeover, and a revoked owner at once. The guard does not compare expires_at:
-- until its session is evicted, nobody else can own the partition. An epoch of an earlier server
-- generation is refused too: its owner has to renew the ownership first.
--
-- The function's plan is kept (plan_cache_mode). Otherwise a server that compares costs would plan it for every call,
-- if transactions have other settings, for example in runs of schedules. The plan is not compiled (jit), under any
-- settings: without sequential scans it seems very expensive.
CREATE OR REPLACE FUNCTION pgleases.guard(lease pg_catalog.text, partition int, epoch bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SET plan_cache_mode = force_generic_plan SET jit = off AS $pgleases_body$
BEGIN
    PERFORM FROM pgleases.partitions AS p
    WHERE p.lease OPERATOR(pg_catalog.=) guard.lease AND p.partition OPERATOR(pg_catalog.=) guard.partition AND p.epoch OPERATOR(pg_catalog.=) guard.epoch
      AND EXISTS (SELECT FROM pgleases.clients AS c WHERE c.session OPERATOR(pg_catalog.=) p.owner AND c.incarnation OPERATOR(pg_catalog.>=) 0)
      AND (guard.epoch OPERATOR(pg_catalog.>>) 32) OPERATOR(pg_catalog.>=) (SELECT s.generation FROM pgleases.server AS s)
    FOR KEY SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'partition % of lease "%" is not owned under epoch %', guard.partition, guard.lease, guard.epoch
            USING ERRCODE = 'PL001',
                  HINT = 'Its owner has changed since, or a failover ended the epoch. Roll back and leave the work to the owner.';
    END IF;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.guard(pg_catalog.text, int, bigint) IS 'Raises PL001 unless the partition is owned under this epoch, by a session that was not evicted. Until the transaction ends, no other client gets the partition after it, and no lower epoch passes.';

-- Does what guard does, for many partitions, in the order of their numbers. It raises no error, so that a transaction can
-- leave out those that are not owned.
CREATE OR REPLACE FUNCTION pgleases.guard_many(lease pg_catalog.text, partitions int[], epochs bigint[]) RETURNS int[]
LANGUAGE plpgsql VOLATILE SET plan_cache_mode = force_generic_plan SET jit = off AS $pgleases_body$
BEGIN
    RETURN ARRAY(
        SELECT b.partition
        FROM (SELECT * FROM ROWS FROM (pg_catalog.unnest(guard_many.partitions), pg_catalog.unnest(guard_many.epochs)) AS b (partition, epoch) ORDER BY partition) AS b
        LEFT JOIN LATERAL (
            SELECT true AS passed FROM pgleases.partitions AS p
            WHERE p.lease OPERATOR(pg_catalog.=) guard_many.lease AND p.partition OPERATOR(pg_catalog.=) b.partition AND p.epoch OPERATOR(pg_catalog.=) b.epoch
              AND EXISTS (SELECT FROM pgleases.clients AS c WHERE c.session OPERATOR(pg_catalog.=) p.owner AND c.incarnation OPERATOR(pg_catalog.>=) 0)
              AND (b.epoch OPERATOR(pg_catalog.>>) 32) OPERATOR(pg_catalog.>=) (SELECT s.generation FROM pgleases.server AS s)
            FOR KEY SHARE
        ) AS g ON true
        WHERE g.passed IS NULL
    );
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.guard_many(pg_catalog.text, int[], bigint[]) IS 'Guards partitions of a lease, each with its epoch, and returns those that are not owned under it. Until the transaction ends, no other client gets the others.';

-- Does for a lock what guard does for a partition.
CREATE OR REPLACE FUNCTION pgleases.guard_lock(name pg_catalog.text, token bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $pgleases_body$
BEGIN
    PERFORM FROM pgleases.locks AS l
    WHERE l.name = guard_lock.name AND l.token = guard_lock.token
      AND (SELECT c.session FROM pgleases.clients AS c WHERE c.session = l.session AND c.incarnation >= 0) IS NOT NULL
    FOR KEY SHARE OF l;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'lock "%" is not held under token %', guard_lock.name, guard_lock.token
            USING ERRCODE = 'PL001',
                  HINT = 'It was released, or its holder has expired. Roll back and leave the work to the present holder.';
    END IF;
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.guard_lock(pg_catalog.text, bigint) IS 'Raises PL001 unless the lock is held under this token, by a session that was not evicted. After it, no other session gets the lock until the transaction ends.';

-- Sets client_connection_check_interval, if the operating system of the server supports it. Only setting it shows that.
-- IMMUTABLE, because the operating system does not change, so a cached plan has the answer.
CREATE OR REPLACE FUNCTION pgleases.check_interval() RETURNS pg_catalog.text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $pgleases_body$
BEGIN
    RETURN set_config('client_connection_check_interval', '500', true);
EXCEPTION WHEN invalid_parameter_value THEN
    RETURN '0';
END
$pgleases_body$;
COMMENT ON FUNCTION pgleases.check_interval() IS 'How often a transaction of a handler checks whether its client is still connected, milliseconds. It is 0 if the operating system of the server does not support it.';
