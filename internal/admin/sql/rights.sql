-- rights.sql: which rights roles lack. It reads only the catalogs. The search_path must be pg_catalog only.
--
-- $1 text    schema
-- $2 text[]  names of roles
-- $3 text[]  rights, each as its object's kind: TABLE, which may be a view, SEQUENCE, FUNCTION or SCHEMA
-- $4 text[]  the object's name
-- $5 text[]  the privilege
-- $6 text[]  the columns, with commas between; empty: all
--
-- One row for each role: its name, whether it exists, and the positions, from 1, of the rights that it lacks. A table or
-- sequence that does not exist is not lacking: the check of the schema or of functions finds it.
WITH needs AS MATERIALIZED (
    SELECT n.*, s.oid AS space, c.oid AS relation, f.oid AS function
    FROM unnest($3::text[], $4::text[], $5::text[], $6::text[]) WITH ORDINALITY AS n (kind, name, privilege, columns, position)
    JOIN pg_namespace AS s ON s.nspname = $1::text
    LEFT JOIN pg_class AS c ON c.relnamespace = s.oid AND c.relname = n.name AND CASE n.kind WHEN 'TABLE' THEN c.relkind IN ('r', 'v') WHEN 'SEQUENCE' THEN c.relkind = 'S' END
    LEFT JOIN pg_proc AS f ON f.pronamespace = s.oid AND f.proname = n.name AND n.kind = 'FUNCTION'
)
SELECT r.name, a.oid IS NOT NULL, coalesce(array_agg(DISTINCT n.position::int) FILTER (WHERE NOT h.held), '{}')
FROM unnest($2::text[]) AS r (name)
LEFT JOIN pg_roles AS a ON a.rolname = r.name
CROSS JOIN needs AS n
CROSS JOIN LATERAL (
    SELECT CASE WHEN n.kind = 'SCHEMA' THEN has_schema_privilege(a.oid, n.space, n.privilege)
                WHEN n.kind = 'FUNCTION' AND n.function IS NULL THEN a.oid IS NULL
                WHEN n.kind = 'FUNCTION' THEN has_function_privilege(a.oid, n.function, n.privilege)
                WHEN n.relation IS NULL THEN true
                WHEN n.kind = 'SEQUENCE' THEN has_sequence_privilege(a.oid, n.relation, n.privilege)
                WHEN n.columns = '' THEN has_table_privilege(a.oid, n.relation, n.privilege)
                ELSE (SELECT bool_and(has_column_privilege(a.oid, n.relation, l.attnum, n.privilege)) FROM pg_attribute AS l
                      WHERE l.attrelid = n.relation AND l.attname = ANY (string_to_array(n.columns, ', '))) END
) AS h (held)
GROUP BY r.name, a.oid
