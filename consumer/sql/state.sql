-- state.sql: whether the consumer is paused, and any row blocked; the oldest open transaction, and the one after the last
-- that has ended.
--
-- $1 text   consumer
-- $2 int[]  partitions
SELECT EXISTS (SELECT FROM pgleases.consumers AS c WHERE c.name OPERATOR(pg_catalog.=) $1::pg_catalog.text AND c.paused_at IS NOT NULL),
       EXISTS (SELECT FROM pgleases.consumer_blocked AS b WHERE b.consumer OPERATOR(pg_catalog.=) $1::pg_catalog.text AND b.partition OPERATOR(pg_catalog.=) ANY ($2::int[])),
       pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())::pg_catalog.text::bigint, pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::pg_catalog.text::bigint
