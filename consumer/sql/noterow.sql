-- noterow.sql: notes a blocked row that is handled next.
--
-- $1 text    consumer
-- $2 int     partition
-- $3 bigint  ID
-- $4 bigint  epoch
UPDATE pgleases.consumer_owners AS c SET note_first = $3::bigint, note_last = $3::bigint
WHERE c.consumer OPERATOR(pg_catalog.=) $1::pg_catalog.text AND c.partition OPERATOR(pg_catalog.=) $2::int AND c.begun OPERATOR(pg_catalog.=) $4::bigint
