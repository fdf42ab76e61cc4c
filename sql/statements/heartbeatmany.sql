-- heartbeatmany.sql: renews a session with many leases. The parameters and the result are those of heartbeat.sql, except
-- for the last parameter.
--
-- $8 int  the number of leases of the last answer that returned leases
--
-- If a row of members is deleted by hand, the client learns of it within a minute.
SELECT pgleases.heartbeat_many($1::bigint, $2::int, $3::double precision, $4::bigint, $5::double precision, $6::bigint, $7::pg_catalog.xid8, $8::int)
