-- lately.sql: what happened lately, and may still matter: the promoted servers that were accepted in the last hour; the
-- evictions of the last day, at most 50; and what shows which leases lost a member by them, and who joined or left since.
-- The search_path must be pg_catalog only, the zone UTC, and enable_seqscan off. It reads the joins and leaves of the past
-- only if a client was evicted.
--
-- $1 int  maximum number of events of each cause that are read: the newest
--
-- One row for each event, the newest first, JSON, as the type Event. Evictions before the oldest event that is read of a
-- cause are left out, because events after them are missing.
WITH evicted AS MATERIALIZED (
    SELECT e.* FROM pgleases.events AS e WHERE e.cause = 'evicted' AND e.at > clock_timestamp() - interval '24 hours' ORDER BY e.at DESC LIMIT 50
), members AS MATERIALIZED (
    SELECT r.* FROM unnest('{joined,left,awaited,evict}'::text[]) AS k (cause)
    CROSS JOIN LATERAL (SELECT e.* FROM pgleases.events AS e -- not cause = k.cause, because then PostgreSQL may search all events by their time
                        WHERE (e.cause, e.at) >= (k.cause, '-infinity') AND (e.cause, e.at) <= (k.cause, 'infinity') AND e.cause <> ALL ('{given,handed over}'::text[])
                          AND EXISTS (SELECT FROM evicted) ORDER BY e.cause DESC, e.at DESC LIMIT $1::int) AS r
), known AS ( -- since when all events are read
    SELECT max(f.since) AS since FROM (SELECT min(m.at) AS since FROM members AS m GROUP BY m.cause HAVING count(*) = $1::int) AS f
), given AS ( -- by the plan that follows an eviction, which shows that the client was a member, even if it joined before all events
    SELECT DISTINCT ON (g.lease, g.from_id, v.id) g.* FROM evicted AS v
    CROSS JOIN LATERAL (SELECT e.* FROM pgleases.events AS e WHERE e.at >= v.at AND e.at < v.at + interval '1 minute' ORDER BY e.at LIMIT 1000) AS g
    WHERE g.cause = 'given' AND g.from_id = v.from_id
)
SELECT json_build_object('id', e.tx || '/' || e.id, 'at', e.at, 'lease', e.lease, 'cause', e.cause, 'reason', e.reason, 'from', e.from_id, 'to', e.to_id)
FROM (SELECT v.* FROM evicted AS v, known AS k WHERE (v.at < k.since) IS NOT TRUE UNION ALL SELECT * FROM given
      UNION ALL (SELECT a.* FROM pgleases.events AS a WHERE a.cause = 'accepted' AND a.at > clock_timestamp() - interval '1 hour' ORDER BY a.at DESC LIMIT 5)
      UNION ALL SELECT * FROM members AS m
      WHERE m.at >= (SELECT min(v.at) FROM evicted AS v) OR m.from_id IN (SELECT v.from_id FROM evicted AS v) OR m.to_id IN (SELECT v.from_id FROM evicted AS v)) AS e
ORDER BY e.at DESC, e.tx DESC, e.id DESC
