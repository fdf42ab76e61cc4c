-- reaches.sql: whether a connection of the application reaches the tables that contain a client's session.
--
-- $1 bigint  session
--
-- One row: the name of this database, and whether the session is in it.
SELECT pg_catalog.current_database()::pg_catalog.text, EXISTS (SELECT FROM pgleases.clients AS c WHERE c.session OPERATOR(pg_catalog.=) $1::bigint)
