-- letters.sql: a row that is a dead letter, and in its queue table. Another row may have its ID, for example after
-- TRUNCATE with RESTART IDENTITY.
--
-- $1 text  consumer
SELECT d.id, d.partition, d.died_at
FROM pgleases.consumer_dead_letters AS d
WHERE d.consumer = $1::text
  AND EXISTS (SELECT FROM {table} AS q WHERE q.{partition} = d.partition AND q.{id} = d.id AND to_jsonb(q) = d.content)
ORDER BY d.id
LIMIT 1
