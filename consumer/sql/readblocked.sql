-- readblocked.sql: locks and reads one blocked row, with its failed attempts, its crashes, whether it is still as it was when
-- it failed, and whether another row blocks its key that has come back before it.
--
-- $1 int     partition
-- $2 bigint  ID
-- $3 text    consumer
SELECT q.{partition}::int, q.{id}::bigint, {key}, q.xmin, b.attempts, b.crashes, 
       CASE WHEN b.version OPERATOR(pg_catalog.=) q.xmin::pg_catalog.text THEN true ELSE coalesce(b.content OPERATOR(pg_catalog.=) pgleases.consumer_content(q, b.content), false) END AS same,
       EXISTS (SELECT FROM pgleases.consumer_blocked AS o WHERE o.consumer OPERATOR(pg_catalog.=) b.consumer AND o.partition OPERATOR(pg_catalog.=) b.partition
                                                            AND o.key OPERATOR(pg_catalog.=) b.key AND o.id OPERATOR(pg_catalog.<) b.id){columns}
FROM {table} AS q
JOIN pgleases.consumer_blocked AS b ON b.consumer OPERATOR(pg_catalog.=) $3::pg_catalog.text AND b.partition OPERATOR(pg_catalog.=) $1::int AND b.id OPERATOR(pg_catalog.=) $2::bigint
  AND b.key OPERATOR(pg_catalog.=) {key} -- with another key it is handled in the order of that
WHERE q.{partition} OPERATOR(pg_catalog.>=) $1::int AND q.{partition} OPERATOR(pg_catalog.<=) $1::int AND q.{id} OPERATOR(pg_catalog.=) $2::bigint
{lock}
