-- eventsagain.sql: where to go on after an outage, or on another server: behind the last event seen that this server has, too. One that
-- took the place of another may lack the last ones, and may have given their numbers to others. Where it has none of those seen, as in a
-- table that was empty: where the look before was, or this server's first transaction under way, if that is lower. The search_path is to be
-- pg_catalog alone.
--
-- $1 text           transaction of the look before
-- $2 bigint         number of the event in it
-- $3 text[]         of events seen: transactions
-- $4 bigint[]       numbers
-- $5 timestamptz[]  times, as eventsafter.sql tells them
--
-- Transaction and number, by which to go on.
SELECT coalesce(known.tx, least($1::text::xid8, now.xmin))::text, CASE WHEN known.tx IS NOT NULL THEN known.id WHEN $1::text::xid8 <= now.xmin THEN $2::bigint ELSE 0 END
FROM (SELECT pg_snapshot_xmin(pg_current_snapshot()) AS xmin) AS now
LEFT JOIN LATERAL (
    SELECT e.tx, e.id
    FROM unnest($3::text[], $4::bigint[], $5::timestamptz[]) AS seen (tx, id, at)
    JOIN pgleases.events AS e ON e.tx = seen.tx::xid8 AND e.id = seen.id AND least(greatest(e.at, '0001-01-02 UTC'), '9999-12-30 UTC') = seen.at
    WHERE e.tx < now.xmin
    ORDER BY e.tx DESC, e.id DESC
    LIMIT 1
) AS known ON true
