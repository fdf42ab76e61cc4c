-- events.sql: the events of a period. The number of an event is assigned while its statement has the rows of its
-- partitions locked. So for one partition the order of the numbers is the order of the changes, which the order of the
-- transactions is not.
--
-- $1 timestamptz  the begin of the period
SELECT e.id, e.at, coalesce(e.lease, ''), e.cause, coalesce(e.from_id, ''), e.to_id,
       ARRAY(SELECT lower(r) FROM unnest(e.partitions) AS r), ARRAY(SELECT upper(r) FROM unnest(e.partitions) AS r), e.generation
FROM pgleases.events AS e
WHERE e.id > (SELECT coalesce(max(b.id), 0) FROM pgleases.events AS b WHERE b.at < $1::timestamptz)
ORDER BY e.id
