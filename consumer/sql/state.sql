-- state.sql: whether the consumer is paused, and any row blocked; the oldest open transaction, and the one after the last
-- that has ended. One that has a higher number may be open, so this statement takes a number itself if it is to be after all
-- that have begun.
--
-- $1 text     consumer
-- $2 int[]    partitions
-- $3 boolean  the last number is after all that have begun
SELECT EXISTS (SELECT FROM pgleases.consumers AS c WHERE c.name OPERATOR(pg_catalog.=) $1::pg_catalog.text AND c.paused_at IS NOT NULL),
       EXISTS (SELECT FROM pgleases.consumer_blocked AS b WHERE b.consumer OPERATOR(pg_catalog.=) $1::pg_catalog.text AND b.partition OPERATOR(pg_catalog.=) ANY ($2::int[])),
       pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())::pg_catalog.text::bigint,
       CASE WHEN $3 THEN pg_catalog.pg_current_xact_id() ELSE pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot()) END::pg_catalog.text::bigint
