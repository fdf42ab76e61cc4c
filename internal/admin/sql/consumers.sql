-- consumers.sql: the consumers, or one with its blocked rows, its latest dead letters and its latest changes. The
-- search_path must be pg_catalog only, and the zone UTC.
--
-- $1 text  name of the consumer; null: all, without rows, letters and changes
-- $2 int   maximum number of rows, of letters and of changes
--
-- One row for each consumer, JSON, as the type Consumer.
SELECT json_build_object(
       'name', s.consumer, 'queue', s.queue, 'partitions', s.partitions, 'owned', s.owned, 'waiting', s.waiting,
       'timed', coalesce(s.timed, false),
       'oldest_ns', CASE WHEN s.oldest IS NOT NULL THEN (greatest(0, least(extract(epoch FROM s.oldest), 9e9)) * 1e9)::bigint END, 'first_for_ns', coalesce((SELECT (greatest(0, least(extract(epoch FROM clock_timestamp() - least(greatest(c.first_since, '0001-01-02 UTC'), '9999-12-30 UTC')), 9e9)) * 1e9)::bigint FROM pgleases.consumers AS c
                                 WHERE c.name = s.consumer AND c.first_since IS NOT NULL AND (c.first_id = s.first_id OR s.waiting IS NULL) AND s.owned > 0 AND s.paused_at IS NULL
                                   AND NOT EXISTS (SELECT FROM pgleases.overrides AS w WHERE w.verb = 'pause' AND w.lease = 'consumer/' || s.consumer AND w.until > clock_timestamp())), 0),
       'blocked_keys', s.blocked_keys, 'blocked_for_ns', CASE WHEN s.blocked_for IS NULL THEN 0 ELSE (greatest(0, least(extract(epoch FROM s.blocked_for), 9e9)) * 1e9)::bigint END,
       'dead_letters', s.dead_letters, 'unhandled', s.unhandled,
       'paused_at', CASE WHEN s.paused_at IS NULL THEN timestamptz '0001-01-01 00:00:00Z' ELSE least(greatest(s.paused_at, '0001-01-02 UTC'), '9999-12-30 UTC') END, 'paused_by', coalesce(s.paused_by, ''), 'paused_reason', coalesce(s.paused_reason, ''),
       'lease_paused', EXISTS (SELECT FROM pgleases.overrides AS w WHERE w.verb = 'pause' AND w.lease = 'consumer/' || s.consumer AND w.until > clock_timestamp()),
       'blocked', (SELECT coalesce(json_agg(json_build_object(
                       'id', b.id::text, 'key', b.key, 'partition', b.partition, 'attempts', b.attempts, 'suspect', b.crashed IS NOT NULL, 'crashes', b.crashes, 'error', coalesce(b.error, ''),
                       'since', least(greatest(b.since, '0001-01-02 UTC'), '9999-12-30 UTC'), 'next', CASE WHEN b.next_at < 'infinity' THEN least(greatest(b.next_at, '0001-01-02 UTC'), '9999-12-30 UTC') ELSE timestamptz '0001-01-01 00:00:00Z' END, 'skipped_by', coalesce(b.skipped_by, ''))
                       ORDER BY b.since, b.id), '[]')
                   FROM (SELECT * FROM pgleases.consumer_blocked AS b WHERE b.consumer = $1::text AND b.consumer = s.consumer ORDER BY b.since, b.id LIMIT $2::int) AS b),
       'letters', (SELECT coalesce(json_agg(json_build_object('id', d.id::text, 'key', d.key, 'partition', d.partition, 'attempts', d.attempts, 'error', coalesce(d.error, ''), 'at', least(greatest(d.died_at, '0001-01-02 UTC'), '9999-12-30 UTC')) ORDER BY d.died_at DESC, d.id DESC), '[]')
                   FROM (SELECT d.id, d.key, d.partition, d.attempts, d.error, d.died_at FROM pgleases.consumer_dead_letters AS d WHERE d.consumer = $1::text AND d.consumer = s.consumer ORDER BY d.died_at DESC, d.id DESC LIMIT $2::int) AS d),
       'changes', (SELECT coalesce(json_agg(json_build_object('at', least(greatest(h.at, '0001-01-02 UTC'), '9999-12-30 UTC'), 'cause', h.cause, 'id', h.row_id::text, 'rows', h.rows, 'actor', h.actor, 'reason', h.reason) ORDER BY h.tx DESC, h.id DESC), '[]')
                   FROM (SELECT * FROM pgleases.events AS h WHERE h.lease = 'consumer/' || $1::text AND s.consumer = $1::text AND h.actor IS NOT NULL ORDER BY h.tx DESC, h.id DESC LIMIT $2::int) AS h))
FROM pgleases.consumers_status AS s
WHERE $1::text IS NULL OR s.consumer = $1::text
ORDER BY s.consumer
