-- queues.sql: the faults of consumers and their queue tables, as duties.sql returns those of schedules. The search_path
-- must be pg_catalog only, and enable_seqscan off.
--
-- $1 double precision  seconds; a row waits for long after 10 times that, and a key is blocked for long after 60 times that
-- $2 text[]            roles whose rights on queue tables are checked, if they run the consumer or may do so
--
-- One row for each fault of a consumer: the check; the fault; the consumer; a count; the name of the worst, or empty; its
-- seconds or rows; and a reason, the statement that mends it, or the rights that are missing. The row with the fault
-- column has no fault: its name is the generated column of a consumer's partition. One row with the fault none.
WITH s AS MATERIALIZED (
    SELECT s.*, c.id_column, c.key_column, c.partition_column, c.time_column, c.since, c.looked_at, c.first_id AS noted, c.first_since, make_interval(secs => $1) AS long,
           EXISTS (SELECT FROM pgleases.overrides AS w WHERE w.verb = 'pause' AND w.lease = 'consumer/' || s.consumer AND w.until > clock_timestamp()) AS lease_paused,
           NOT EXISTS (SELECT FROM pgleases.members AS m WHERE m.lease = 'consumer/' || s.consumer)
               AND NOT EXISTS (SELECT FROM pgleases.partitions AS p WHERE p.lease = 'consumer/' || s.consumer AND p.owner IS NOT NULL) AS unattended
    FROM pgleases.consumers_status AS s JOIN pgleases.consumers AS c ON c.name = s.consumer
),
queues AS MATERIALIZED (
    SELECT s.*, n.nspname, r.oid, r.reltuples, r.reloptions
    FROM pg_class AS r JOIN pg_namespace AS n ON n.oid = r.relnamespace JOIN s ON s.queue = format('%I.%I', n.nspname, r.relname)
    WHERE r.relkind IN ('r', 'p')
),
lacking AS MATERIALIZED ( -- columns that a queue table lacks, or has with a type that New refuses
    SELECT q.consumer, q.queue, w.name, coalesce('it is ' || format_type(a.atttypid, a.atttypmod), 'it is gone') AS why
    FROM queues AS q
    CROSS JOIN LATERAL (VALUES (q.id_column, '{int4,int8}'::regtype[]), (q.partition_column, '{int4}'), (q.key_column, '{text,varchar,int4,int8,uuid}')) AS w (name, types)
    LEFT JOIN pg_attribute AS a ON a.attrelid = q.oid AND a.attname = w.name AND a.attnum > 0
    WHERE w.name IS NOT NULL AND (a.atttypid = ANY (w.types::oid[])) IS NOT TRUE
),
rights AS MATERIALIZED ( -- on queue tables, of the roles that run the consumer or may do so
    SELECT q.consumer, q.queue, r.rolname, o.runs, bool_or(k.held AND k.kind IN ('UPDATE', 'DELETE')) AS handles, string_agg(k.kind, ', ' ORDER BY k.number) FILTER (WHERE NOT k.held) AS lacks,
           concat_ws('; ', min(format('GRANT USAGE ON SCHEMA %I TO %I', q.nspname, r.rolname)) FILTER (WHERE k.kind = 'USAGE' AND NOT k.held),
               'GRANT ' || string_agg(k.kind, ', ' ORDER BY k.number) FILTER (WHERE k.kind <> 'USAGE' AND NOT k.held) || format(' ON %s TO %I', q.queue, min(r.rolname))) AS grants
    FROM queues AS q JOIN pg_roles AS r ON r.rolname = ANY ($2::text[])
    CROSS JOIN LATERAL (SELECT EXISTS (SELECT FROM pgleases.members AS m JOIN pgleases.clients AS c ON c.session = m.session WHERE m.lease = 'consumer/' || q.consumer AND c.role = r.rolname AND c.expires_at > clock_timestamp())) AS o (runs)
    CROSS JOIN LATERAL (VALUES (1, 'USAGE', has_schema_privilege(r.oid, q.nspname, 'USAGE')), (2, 'SELECT', has_table_privilege(r.oid, q.oid, 'SELECT')),
        (3, 'UPDATE', has_any_column_privilege(r.oid, q.oid, 'UPDATE')), (4, 'DELETE', has_table_privilege(r.oid, q.oid, 'DELETE'))) AS k (number, kind, held)
    WHERE o.runs OR has_table_privilege(r.oid, 'pgleases.consumers'::regclass, 'UPDATE')
    GROUP BY q.consumer, q.queue, r.rolname, o.runs
),
vacuums AS ( -- the number of dead rows from which autovacuum removes them, if it is on
    SELECT q.consumer, q.queue, v.n_dead_tup AS dead, greatest(v.last_autovacuum, v.last_vacuum) AS at, coalesce(o.on, true) AS on,
           coalesce(o.threshold, current_setting('autovacuum_vacuum_threshold')::bigint) + coalesce(o.factor, current_setting('autovacuum_vacuum_scale_factor')::float8) * greatest(q.reltuples, 0) AS least
    FROM queues AS q JOIN pg_stat_all_tables AS v ON v.relid = q.oid
    CROSS JOIN LATERAL (
        SELECT bool_and(p.option_value::boolean) FILTER (WHERE p.option_name = 'autovacuum_enabled') AS on, max(p.option_value::bigint) FILTER (WHERE p.option_name = 'autovacuum_vacuum_threshold') AS threshold,
               max(p.option_value::float8) FILTER (WHERE p.option_name = 'autovacuum_vacuum_scale_factor') AS factor
        FROM pg_options_to_table(q.reloptions) AS p) AS o
)
SELECT 'consumers' AS "check", 'gone' AS fault, s.consumer AS "group", 1 AS count, s.queue AS name, 0::float8 AS worst, '' AS why FROM s WHERE NOT EXISTS (SELECT FROM queues AS q WHERE q.consumer = s.consumer)
UNION ALL SELECT 'consumers', 'lacking', l.consumer, 1, format('%I of %s', l.name, l.queue), 0, l.why FROM lacking AS l
UNION ALL SELECT 'rights', CASE WHEN r.runs THEN 'live' WHEN r.handles THEN 'some' ELSE 'all' END, r.consumer, 1, format('%s on %s for %I', r.lacks, r.queue, r.rolname), 0, r.grants FROM rights AS r WHERE r.lacks <> ''
UNION ALL SELECT 'consumers', 'index', q.consumer, 1, q.queue, 0, format('CREATE INDEX CONCURRENTLY ON %s (%I, %I)', q.queue, q.partition_column, q.id_column) FROM queues AS q
WHERE NOT EXISTS (SELECT FROM lacking AS l WHERE l.consumer = q.consumer)
  AND NOT EXISTS (SELECT FROM pg_index AS i JOIN pg_attribute AS p ON p.attrelid = q.oid AND p.attname = q.partition_column JOIN pg_attribute AS n ON n.attrelid = q.oid AND n.attname = q.id_column
                  WHERE i.indrelid = q.oid AND i.indisvalid AND i.indpred IS NULL AND i.indkey[0] = p.attnum AND i.indkey[1] = n.attnum
                    AND (SELECT r.relam FROM pg_class AS r WHERE r.oid = i.indexrelid) = 403 /* btree */)
UNION ALL SELECT 'consumers', 'misnamed', q.consumer, 1, min(a.name), 0, min(format('CREATE OR REPLACE TRIGGER %I AFTER INSERT ON %s FOR EACH STATEMENT EXECUTE FUNCTION %s(%L)', t.tgname, q.queue, t.tgfoid::regproc, q.consumer))
FROM queues AS q JOIN pg_trigger AS t ON t.tgrelid = q.oid AND t.tgenabled IN ('O', 'A') AND t.tgnargs = 1
JOIN pg_proc AS f ON f.oid = t.tgfoid AND f.proname = 'consumer_inserted' AND f.pronamespace = (SELECT r.relnamespace FROM pg_class AS r WHERE r.oid = 'pgleases.consumers'::regclass)
CROSS JOIN LATERAL (SELECT convert_from(substr(t.tgargs, 1, length(t.tgargs) - 1), getdatabaseencoding())) AS a (name)
GROUP BY q.consumer, q.queue HAVING NOT bool_or(a.name = q.consumer)
UNION ALL SELECT 'consumers', CASE WHEN has_any_column_privilege(q.oid, 'SELECT, INSERT, UPDATE') OR has_table_privilege(q.oid, 'DELETE') THEN 'unread' ELSE 'closed' END, q.consumer, 1, q.queue, 0,
    coalesce('as the table''s owner: ' || nullif(concat_ws('; ', CASE WHEN NOT has_schema_privilege(q.nspname, 'USAGE') THEN format('GRANT USAGE ON SCHEMA %I TO %I', q.nspname, current_user) END,
        CASE WHEN NOT has_table_privilege(q.oid, 'SELECT') THEN format('GRANT SELECT ON %s TO %I', q.queue, current_user) END), ''),
        CASE WHEN row_security_active(q.oid) THEN format('policies hide its rows from %I: use a role with BYPASSRLS, or the table''s owner', current_user)
             ELSE 'a session locks the table: run this again, and end that session''s transaction if it lasts' END)
FROM queues AS q WHERE q.waiting IS NULL AND NOT EXISTS (SELECT FROM lacking AS l WHERE l.consumer = q.consumer)
UNION ALL SELECT 'consumers', 'locked', q.consumer, 1, format('%s by process %s ("%s")', q.queue, l.pid, a.application_name), extract(epoch FROM clock_timestamp() - a.xact_start), format('SELECT pg_terminate_backend(%s)', l.pid)
FROM queues AS q JOIN pg_locks AS l ON l.relation = q.oid AND l.granted AND l.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
JOIN pg_stat_activity AS a ON a.pid = l.pid
WHERE l.pid <> pg_backend_pid() AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database()) AND coalesce(a.xact_start < clock_timestamp() - interval '1 second', true)
UNION ALL SELECT 'consumers', 'untimed', q.consumer, q.waiting, q.queue, 0,
    CASE WHEN t.attname IS NULL AND q.time_column <> '' THEN format('column %I of %s, which Queue.Time names, is gone, or is no timestamptz: correct it', q.time_column, q.queue)
         WHEN t.attname IS NULL THEN 'set Queue.Time; for a new column: ALTER TABLE ... ADD COLUMN created_at timestamptz NOT NULL DEFAULT now()' ELSE format('CREATE INDEX CONCURRENTLY ON %s (%I)', q.queue, q.id_column) END
FROM queues AS q LEFT JOIN pg_attribute AS t ON t.attrelid = q.oid AND t.attname = q.time_column AND t.atttypid = 'timestamptz'::regtype
WHERE q.waiting > 0 AND NOT q.timed
UNION ALL SELECT 'consumers', 'dead', s.consumer, s.dead_letters, '', 0, '' FROM s WHERE s.dead_letters > 0
UNION ALL SELECT 'consumers', 'unhandled', s.consumer, s.unhandled, s.queue, 0, s.queue FROM s WHERE s.unhandled > 0
UNION ALL SELECT 'consumers', CASE WHEN s.blocked_for > 5 * s.long THEN 'blocked' ELSE 'retried' END, s.consumer, s.blocked_keys, b.key, extract(epoch FROM s.blocked_for), b.error FROM s
CROSS JOIN LATERAL (SELECT b.key, split_part(left(coalesce(b.error, ''), 200), E'\n', 1) AS error FROM pgleases.consumer_blocked AS b
    WHERE b.consumer = s.consumer AND (b.attempts > 0 OR b.crashed IS NOT NULL) ORDER BY b.since LIMIT 1) AS b -- not one that was only snoozed
UNION ALL SELECT 'consumers', 'late', s.consumer, s.waiting, s.queue, least(extract(epoch FROM s.oldest), 9e9), '' FROM s WHERE s.paused_at IS NULL AND NOT s.lease_paused AND NOT s.unattended AND s.oldest > 10 * s.long
UNION ALL SELECT 'consumers', 'unlooked', s.consumer, s.waiting, s.queue, extract(epoch FROM clock_timestamp() - greatest(s.since, s.looked_at, '0001-01-02 UTC')), '' FROM s
WHERE s.owned > 0 AND s.waiting > 0 AND greatest(s.since, s.looked_at) < clock_timestamp() - 10 * s.long
UNION ALL SELECT 'consumers', 'still', s.consumer, s.waiting, s.first_id::text, extract(epoch FROM clock_timestamp() - greatest(s.first_since, '0001-01-02 UTC')), '' FROM s
WHERE s.owned > 0 AND s.paused_at IS NULL AND NOT s.lease_paused AND s.first_id = s.noted AND s.first_since < clock_timestamp() - 10 * s.long
  AND (s.oldest > 10 * s.long) IS NOT TRUE AND greatest(s.since, s.looked_at) >= clock_timestamp() - 10 * s.long
UNION ALL SELECT 'consumers', CASE WHEN q.waiting > 0 AND coalesce(q.oldest > 10 * q.long, true) THEN 'unattended' ELSE 'unused' END, q.consumer, 1, q.queue, 0,
    'rows that wait: ' || CASE WHEN q.waiting >= 1000 THEN '1000 or more' ELSE coalesce(q.waiting::text, 'unknown') END
FROM queues AS q WHERE q.unattended AND q.paused_at IS NULL AND NOT q.lease_paused
UNION ALL SELECT 'consumers', CASE WHEN s.paused_at < clock_timestamp() - interval '1 hour' THEN 'forgotten' ELSE 'paused' END, s.consumer, 1, s.queue, extract(epoch FROM clock_timestamp() - least(greatest(s.paused_at, '0001-01-02 UTC'), '9999-12-30 UTC')),
    format('by %s since %s UTC: "%s"; rows that wait: %s', s.paused_by, to_char(s.paused_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS'), s.paused_reason, coalesce(s.waiting::text, 'unknown'))
FROM s WHERE s.paused_at IS NOT NULL
UNION ALL SELECT 'autovacuum', CASE WHEN v.on THEN 'behind' ELSE 'off' END, v.consumer, 1, v.queue, v.dead, '' FROM vacuums AS v
WHERE NOT v.on OR v.dead > 10 * v.least AND coalesce(v.at < clock_timestamp() - interval '10 minutes', true)
UNION ALL SELECT 'columns', 'column', q.consumer, 1, format('%s.%I', q.queue, q.partition_column), 0, '' FROM queues AS q
UNION ALL SELECT 'consumers', 'none', '', 0, '', 0, CASE WHEN EXISTS (SELECT FROM s) THEN 'none has rows that wait for long, or keys that are blocked for long' ELSE 'there are none' END
