-- doctor.sql: facts from the catalogs and statistics about a server and a schema, which may be missing.
-- The search_path must be pg_catalog only.
--
-- $1 text              schema
-- $2 text              role whose limit of connections is returned; empty: the current role
-- $3 double precision  minimum age in seconds of returned idle transactions; 10 times that for working transactions
--
-- One value, JSON. Only members of pg_read_all_stats see the state of sessions of other roles.
WITH t AS MATERIALIZED (SELECT clock_timestamp() AS now),
role AS MATERIALIZED (
    SELECT n.name, r.oid, r.rolconnlimit
    FROM (SELECT CASE WHEN $2::text = '' THEN current_user::text ELSE $2::text END AS name) AS n
    LEFT JOIN pg_roles AS r ON r.rolname = n.name
),
space AS MATERIALIZED (SELECT n.oid FROM (SELECT) AS one LEFT JOIN pg_namespace AS n ON n.nspname = $1::text),
sessions AS MATERIALIZED ( -- of other roles, the type may be hidden, but not who is connected to which database
    SELECT a.* FROM pg_stat_activity AS a
    WHERE a.backend_type = 'client backend' OR a.backend_type IS NULL AND a.datid IS NOT NULL AND a.usesysid IS NOT NULL
),
busy AS MATERIALIZED (
    SELECT a.pid, coalesce(a.usename, '') AS owner, coalesce(a.application_name, '') AS application, a.state LIKE 'idle in transaction%' AS idle,
           extract(epoch FROM t.now - a.xact_start)::double precision AS seconds, a.backend_xmin IS NOT NULL AS keeps
    FROM sessions AS a CROSS JOIN t
    WHERE a.datname = current_database() AND a.pid <> pg_backend_pid()
    UNION ALL
    SELECT 0, p.owner, p.gid, true, extract(epoch FROM t.now - p.prepared)::double precision, true -- it waits for somebody to end it, without a process
    FROM pg_prepared_xacts AS p CROSS JOIN t
    WHERE p.database = current_database()
),
relations AS MATERIALIZED (
    SELECT c.oid, c.relname, c.relkind, c.reloptions
    FROM pg_class AS c CROSS JOIN space AS s
    WHERE c.relnamespace = s.oid AND c.relkind IN ('r', 'v', 'S')
),
locks AS MATERIALIZED (
    SELECT l.* FROM pg_locks AS l
    WHERE l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
      AND l.locktype = 'relation' -- a session that waits for a row locks the tuple
),
calls AS MATERIALIZED ( -- defaults that call partition_for, except of tables that pg_get_expr would wait for
    SELECT d.adrelid, d.adnum, d.adbin
    FROM pg_attrdef AS d
    WHERE EXISTS (SELECT FROM pg_depend AS p JOIN pg_proc AS f ON f.oid = p.refobjid JOIN space AS s ON s.oid = f.pronamespace
                  WHERE (p.classid = 'pg_attrdef'::regclass AND p.objid = d.oid OR p.classid = 'pg_class'::regclass AND p.objid = d.adrelid AND p.objsubid = d.adnum) -- the latter before PostgreSQL 15
                    AND p.refclassid = 'pg_proc'::regclass AND f.proname = 'partition_for')
      AND NOT EXISTS (SELECT FROM locks AS l WHERE l.relation = d.adrelid AND l.mode = 'AccessExclusiveLock')
),
locked AS MATERIALIZED ( -- tables that others cannot write or read, or with rows that a prepared transaction, which has no process, guards
    SELECT coalesce(l.pid, 0) AS pid, coalesce(a.usename, p.owner, '') AS owner, coalesce(a.application_name, p.gid, '') AS application, c.relname AS of,
           l.mode = 'AccessExclusiveLock' AS hides, l.mode = 'RowShareLock' AS guards, coalesce(extract(epoch FROM t.now - coalesce(a.xact_start, p.prepared)), -1)::double precision AS seconds
    FROM locks AS l
    JOIN relations AS c ON c.oid = l.relation AND c.relkind = 'r'
    LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid
    LEFT JOIN pg_prepared_xacts AS p ON l.pid IS NULL AND EXISTS (
        SELECT FROM pg_locks AS x WHERE x.pid IS NULL AND x.transactionid = p.transaction AND x.virtualtransaction = l.virtualtransaction)
    CROSS JOIN t
    WHERE (l.mode = 'AccessExclusiveLock' -- a session that waits for it, as ALTER TABLE does, makes later ones wait, too
           OR l.granted AND (l.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock')
                             OR l.mode = 'RowShareLock' AND l.pid IS NULL AND c.relname IN ('partitions', 'locks')))
      AND l.pid IS DISTINCT FROM pg_backend_pid()
      AND coalesce(coalesce(a.xact_start, p.prepared) < t.now - interval '1 second', true) -- DDL of Migrate takes less time
)
SELECT json_build_object(
    'now', t.now,
    'server_version', current_setting('server_version_num')::int,
    'provider', CASE WHEN to_regproc('pg_catalog.aurora_version') IS NOT NULL THEN 'Amazon Aurora'
                     WHEN current_setting('rds.extensions', true) IS NOT NULL THEN 'Amazon RDS'
                     WHEN current_setting('azure.extensions', true) IS NOT NULL THEN 'Azure Database for PostgreSQL'
                     WHEN current_setting('alloydb.iam_authentication', true) IS NOT NULL THEN 'AlloyDB'
                     WHEN current_setting('cloudsql.iam_authentication', true) IS NOT NULL THEN 'Cloud SQL'
                     WHEN current_setting('neon.tenant_id', true) IS NOT NULL THEN 'Neon' ELSE '' END,
    'recovery', pg_is_in_recovery(),
    'read_only', current_setting('default_transaction_read_only')::boolean,
    'backend', pg_backend_pid(),
    'autovacuum', current_setting('autovacuum')::boolean AND current_setting('track_counts')::boolean,
    'sees_all', pg_has_role(current_user, 'pg_read_all_stats', 'usage'),
    'schema', s.oid IS NOT NULL,
    'role', r.name,
    'room', json_build_array( -- maximum and current number of sessions: of the server, the database and the role
        json_build_object('of', 'the server', 'most', current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int,
                          'now', (SELECT count(*) FROM sessions)),
        json_build_object('of', 'the database', 'most', d.datconnlimit, 'now', (SELECT count(*) FROM sessions AS a WHERE a.datid = d.oid)),
        json_build_object('of', 'the role', 'most', coalesce(r.rolconnlimit, -1), 'now', (SELECT count(*) FROM sessions AS a WHERE a.usesysid = r.oid))),
    'idle', (SELECT coalesce(json_agg(b ORDER BY b.seconds DESC), '[]') FROM busy AS b WHERE b.idle AND b.seconds > $3),
    'old', (SELECT coalesce(json_agg(b ORDER BY b.seconds DESC), '[]') FROM busy AS b WHERE NOT b.idle AND b.keeps AND b.seconds > 10 * $3),
    'locked', (SELECT coalesce(json_agg(l ORDER BY l.hides DESC, l.guards, l.seconds DESC, l.of), '[]') FROM locked AS l),
    'parts', (SELECT coalesce(json_agg(c.relname), '[]') FROM relations AS c WHERE c.relname IN ('schedule_version', 'consumer_version')),
    'unvacuumed', (
        SELECT coalesce(json_agg(c.relname), '[]') FROM relations AS c
        WHERE c.relkind = 'r' AND EXISTS (SELECT FROM pg_options_to_table(c.reloptions) AS o WHERE o.option_name = 'autovacuum_enabled' AND NOT o.option_value::boolean)),
    'functions', (SELECT coalesce(json_agg(json_build_object('name', f.proname, 'body', f.prosrc)), '[]') FROM pg_proc AS f WHERE f.pronamespace = s.oid),
    'relations', (SELECT coalesce(json_agg(c.relname), '[]') FROM pg_class AS c WHERE c.relnamespace = s.oid),
    'executable', (SELECT coalesce(json_agg(f.proname), '[]') FROM pg_proc AS f WHERE f.pronamespace = s.oid AND has_function_privilege('public', f.oid, 'EXECUTE')),
    'columns', (SELECT coalesce(json_agg(json_build_object('name', concat(a.attrelid::regclass, '.', quote_ident(a.attname)), 'expression', e.text)), '[]')
                FROM calls AS d JOIN pg_attribute AS a ON a.attrelid = d.adrelid AND a.attnum = d.adnum AND a.attgenerated <> '' CROSS JOIN LATERAL (SELECT pg_get_expr(d.adbin, d.adrelid)) AS e (text)
                WHERE starts_with(e.text, quote_ident($1) || '.partition_for(')),
    'triggers', (SELECT coalesce(json_agg(g.tgname), '[]') FROM pg_trigger AS g JOIN relations AS c ON c.oid = g.tgrelid
                 WHERE c.relname = 'leases' AND g.tgenabled IN ('O', 'A'))
)
FROM t CROSS JOIN role AS r CROSS JOIN space AS s JOIN pg_database AS d ON d.datname = current_database()
