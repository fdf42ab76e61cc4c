-- why.sql: why keys are blocked: how many rows block one, and the first of them; empty if there are none.
--
-- $1 text  consumer
SELECT coalesce((
    SELECT pg_catalog.format('%s rows, the first: ID %s, key %L, %s attempts: %s', pg_catalog.count(*) OVER (), b.id, b.key, b.attempts, b.error)
    FROM pgleases.consumer_blocked AS b
    WHERE b.consumer OPERATOR(pg_catalog.=) $1::pg_catalog.text
    ORDER BY b.id
    LIMIT 1
), '')
