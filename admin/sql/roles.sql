-- roles.sql: the roles that live clients use, at most 10. The search_path must be pg_catalog only.
SELECT DISTINCT c.role FROM pgleases.clients AS c WHERE c.expires_at > clock_timestamp() ORDER BY c.role LIMIT 10
