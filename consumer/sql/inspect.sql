-- inspect.sql: what is known about a table, for the checks of New.
--
-- $1 text  table
-- $2 text  column of the ID
-- $3 text  column of the key, or empty
-- $4 text  column of the partition
-- $5 text  consumer
-- $6 text  column of the time, or empty
WITH RECURSIVE below AS ( -- the table, its partitions and its children
    SELECT pg_catalog.to_regclass($1::pg_catalog.text)::oid AS relid, 0 AS depth
    UNION SELECT h.inhrelid, 1 FROM pg_catalog.pg_inherits AS h JOIN below AS b ON b.relid OPERATOR(pg_catalog.=) h.inhparent
)
SELECT pg_catalog.format('%I.%I', n.nspname, c.relname) AS name, c.relkind::pg_catalog.text AS kind, pg_catalog.row_security_active(c.oid) AS hidden,
       pg_catalog.has_table_privilege(c.oid, 'SELECT') AND pg_catalog.has_table_privilege(c.oid, 'DELETE') AND
           (pg_catalog.has_table_privilege(c.oid, 'UPDATE') OR pg_catalog.has_any_column_privilege(c.oid, 'UPDATE')) AS permitted,
       c.relpersistence OPERATOR(pg_catalog.=) 't'::pg_catalog."char" AS temporary,
       coalesce((SELECT pg_catalog.format('%I on %s', t.tgname, t.tgrelid::pg_catalog.regclass) FROM pg_catalog.pg_trigger AS t JOIN below AS b ON b.relid OPERATOR(pg_catalog.=) t.tgrelid
        WHERE (t.tgtype::int OPERATOR(pg_catalog.&) 11) OPERATOR(pg_catalog.=) 11 -- row 1, before 2, delete 8
          AND NOT t.tgisinternal ORDER BY b.depth LIMIT 1), '') AS before_delete,
       coalesce((SELECT r.rulename::pg_catalog.text FROM pg_catalog.pg_rewrite AS r
        WHERE r.ev_class OPERATOR(pg_catalog.=) c.oid AND r.ev_type OPERATOR(pg_catalog.=) '4'::pg_catalog."char" LIMIT 1), '') AS delete_rule,
       EXISTS (SELECT FROM pg_catalog.pg_subscription_rel AS s WHERE s.srrelid OPERATOR(pg_catalog.=) c.oid) AS subscribed,
       coalesce(ann.names OPERATOR(pg_catalog.@>) ARRAY[$5::pg_catalog.text], false) AS announced, coalesce(ann.names[1], '') AS announces,
       EXISTS (SELECT FROM pg_catalog.pg_index AS i WHERE i.indrelid OPERATOR(pg_catalog.=) c.oid AND i.indisvalid AND i.indpred IS NULL
               AND i.indkey[0] OPERATOR(pg_catalog.=) p.attnum AND i.indkey[1] OPERATOR(pg_catalog.=) id.attnum
               AND (SELECT r.relam FROM pg_catalog.pg_class AS r WHERE r.oid OPERATOR(pg_catalog.=) i.indexrelid) OPERATOR(pg_catalog.=) 403::oid -- btree
               AND (i.indoption[0] OPERATOR(pg_catalog.|) i.indoption[1]) OPERATOR(pg_catalog.=) 0::smallint) AS indexed,
       -- A unique index does not reach from a table to its children.
       EXISTS (SELECT FROM pg_catalog.pg_index AS i WHERE i.indrelid OPERATOR(pg_catalog.=) c.oid AND i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL
               AND id.attnum OPERATOR(pg_catalog.=) ANY (i.indkey[0:i.indnkeyatts OPERATOR(pg_catalog.-) 1])
               AND i.indkey[0:i.indnkeyatts OPERATOR(pg_catalog.-) 1] OPERATOR(pg_catalog.<@) ARRAY[id.attnum, p.attnum])
           AND (c.relkind OPERATOR(pg_catalog.=) 'p'::pg_catalog."char" OR (SELECT pg_catalog.count(*) FROM below) OPERATOR(pg_catalog.=) 1) AS id_unique,
       coalesce(pg_catalog.pg_get_expr(dd.adbin, dd.adrelid), '') AS id_default, coalesce(id.attidentity, '') OPERATOR(pg_catalog.<>) '' AS identity,
       coalesce(id.attnotnull, false) AS id_required, coalesce(pg_catalog.format_type(id.atttypid, NULL), '') AS id_type,
       coalesce(k.attnotnull, false) AS key_required, coalesce(pg_catalog.format_type(k.atttypid, NULL), '') AS key_type,
       coalesce(p.attnotnull, false) AS partition_required, coalesce(pg_catalog.format_type(p.atttypid, NULL), '') AS partition_type,
       coalesce(pg_catalog.pg_get_expr(d.adbin, d.adrelid), '') AS generated,
       -- A generated column depends on the columns that it is generated from; before PostgreSQL 15 not by pg_attrdef.
       ARRAY(SELECT a.attname::pg_catalog.text FROM pg_catalog.pg_depend AS f
             JOIN pg_catalog.pg_attribute AS a ON a.attrelid OPERATOR(pg_catalog.=) f.refobjid AND a.attnum OPERATOR(pg_catalog.=) f.refobjsubid
             WHERE f.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_class'::pg_catalog.regclass::oid AND f.refobjid OPERATOR(pg_catalog.=) c.oid
               AND f.refobjsubid OPERATOR(pg_catalog.<>) ALL (ARRAY[0, p.attnum])
               AND (f.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_attrdef'::pg_catalog.regclass::oid AND f.objid OPERATOR(pg_catalog.=) d.oid
                    OR f.classid OPERATOR(pg_catalog.=) f.refclassid AND f.objid OPERATOR(pg_catalog.=) c.oid AND f.objsubid OPERATOR(pg_catalog.=) p.attnum)
             ORDER BY a.attnum) AS generated_from,
       -- From PostgreSQL 16 on, a partition or a child may generate the column by another expression.
       coalesce((
        SELECT pg_catalog.format('%I.%I', bn.nspname, bc.relname) FROM below AS b
        JOIN pg_catalog.pg_class AS bc ON bc.oid OPERATOR(pg_catalog.=) b.relid
        JOIN pg_catalog.pg_namespace AS bn ON bn.oid OPERATOR(pg_catalog.=) bc.relnamespace
        JOIN pg_catalog.pg_attribute AS a ON a.attrelid OPERATOR(pg_catalog.=) bc.oid AND a.attname OPERATOR(pg_catalog.=) p.attname
        LEFT JOIN pg_catalog.pg_attrdef AS bd ON bd.adrelid OPERATOR(pg_catalog.=) bc.oid AND bd.adnum OPERATOR(pg_catalog.=) a.attnum AND a.attgenerated OPERATOR(pg_catalog.<>) ''
        WHERE coalesce(pg_catalog.pg_get_expr(bd.adbin, bd.adrelid), '') OPERATOR(pg_catalog.<>) coalesce(pg_catalog.pg_get_expr(d.adbin, d.adrelid), '')
        LIMIT 1), '') AS differs,
       coalesce((SELECT pg_catalog.format_type(a.atttypid, NULL) FROM pg_catalog.pg_attribute AS a
        WHERE a.attrelid OPERATOR(pg_catalog.=) c.oid AND a.attname OPERATOR(pg_catalog.=) $6::pg_catalog.text AND a.attnum OPERATOR(pg_catalog.>) 0), '') AS time_type,
       coalesce(s.seqcache, 1) AS cache, coalesce(s.seqcycle, false) AS cycle, coalesce(s.seqincrement, 0) AS increment, coalesce(s.seqrelid::pg_catalog.regclass::pg_catalog.text, '') AS sequence,
       ARRAY(SELECT a.attname::pg_catalog.text FROM pg_catalog.pg_attribute AS a WHERE a.attrelid OPERATOR(pg_catalog.=) c.oid AND a.attnum OPERATOR(pg_catalog.>) 0 AND NOT a.attisdropped ORDER BY a.attnum) AS columns
FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_namespace AS n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
LEFT JOIN pg_catalog.pg_attribute AS id ON id.attrelid OPERATOR(pg_catalog.=) c.oid AND id.attname OPERATOR(pg_catalog.=) $2::pg_catalog.text AND id.attnum OPERATOR(pg_catalog.>) 0
LEFT JOIN pg_catalog.pg_attribute AS k ON k.attrelid OPERATOR(pg_catalog.=) c.oid AND k.attname OPERATOR(pg_catalog.=) $3::pg_catalog.text AND k.attnum OPERATOR(pg_catalog.>) 0
LEFT JOIN pg_catalog.pg_attribute AS p ON p.attrelid OPERATOR(pg_catalog.=) c.oid AND p.attname OPERATOR(pg_catalog.=) $4::pg_catalog.text AND p.attnum OPERATOR(pg_catalog.>) 0
LEFT JOIN pg_catalog.pg_attrdef AS d ON d.adrelid OPERATOR(pg_catalog.=) c.oid AND d.adnum OPERATOR(pg_catalog.=) p.attnum AND p.attgenerated OPERATOR(pg_catalog.<>) ''
LEFT JOIN pg_catalog.pg_attrdef AS dd ON dd.adrelid OPERATOR(pg_catalog.=) c.oid AND dd.adnum OPERATOR(pg_catalog.=) id.attnum
LEFT JOIN LATERAL ( -- of an identity column, or that of the default, which need not be owned by the column
    SELECT s.* FROM pg_catalog.pg_sequence AS s
    WHERE CASE WHEN id.attidentity OPERATOR(pg_catalog.<>) ''
               THEN s.seqrelid OPERATOR(pg_catalog.=) pg_catalog.to_regclass(pg_catalog.pg_get_serial_sequence(pg_catalog.format('%I.%I', n.nspname, c.relname), id.attname::pg_catalog.text))::oid
               ELSE EXISTS (SELECT FROM pg_catalog.pg_depend AS f WHERE f.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_attrdef'::pg_catalog.regclass::oid AND f.objid OPERATOR(pg_catalog.=) dd.oid
                            AND f.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_class'::pg_catalog.regclass::oid AND f.refobjid OPERATOR(pg_catalog.=) s.seqrelid) END
    LIMIT 1
) AS s ON true
LEFT JOIN LATERAL ( -- the consumers that triggers of the table announce; a NUL ends the argument of a trigger
    SELECT pg_catalog.array_agg(pg_catalog.convert_from(pg_catalog.substr(t.tgargs, 1, pg_catalog.length(t.tgargs) OPERATOR(pg_catalog.-) 1), pg_catalog.getdatabaseencoding())) AS names
    FROM pg_catalog.pg_trigger AS t
    WHERE t.tgrelid OPERATOR(pg_catalog.=) c.oid AND t.tgenabled OPERATOR(pg_catalog.=) ANY ('{O,A}'::pg_catalog."char"[]) AND t.tgnargs OPERATOR(pg_catalog.=) 1::smallint
      AND t.tgfoid OPERATOR(pg_catalog.=) pg_catalog.to_regprocedure('pgleases.consumer_inserted()')::oid
) AS ann ON true
WHERE c.oid OPERATOR(pg_catalog.=) pg_catalog.to_regclass($1::pg_catalog.text)
