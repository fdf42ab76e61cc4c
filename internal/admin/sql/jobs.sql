-- jobs.sql: the jobs of a group that have not ended, of a kind, or with a key, by ID. The search_path must be pg_catalog
-- only, the zone UTC, and plans custom, so that one of the two reads is left out.
--
-- The jobs with a key are in one partition, which an index finds. The jobs of a kind are searched by ID, a limited
-- number of all jobs at a time: the next page goes on where this one ended.
--
-- $1 text    group
-- $2 text    state, as in jobs_status; empty: all
-- $3 text    kind; empty: all
-- $4 text    key; empty: all
-- $5 int     partition of the key; null: there is no key
-- $6 bigint  only IDs after this one
-- $7 int     maximum number of jobs that are searched, if there is no key
-- $8 int     maximum number of those whose state is found out
-- $9 int     maximum number of jobs that are returned
--
-- One row: an array of jobs as package schedule reads them, without arguments, which may be nested more deeply than a
-- program reads, and the ID up to which all were searched; null: all were.
WITH read AS MATERIALIZED (
    (SELECT j.id, j.kind, j.due, j.blocked_reason FROM pgleases.jobs AS j
     WHERE $5::int IS NOT NULL AND j.group_name = $1::text AND j.partition = $5::int AND j.key = $4::text AND j.id > $6::bigint)
    UNION ALL
    (SELECT j.id, j.kind, j.due, j.blocked_reason FROM pgleases.jobs AS j
     WHERE $5::int IS NULL AND j.group_name = $1::text AND j.id > $6::bigint ORDER BY j.id LIMIT $7::int)
), matched AS MATERIALIZED (
    SELECT r.id FROM read AS r
    WHERE $3::text IN ('', r.kind)
      AND CASE WHEN $2::text IN ('due', 'running') THEN r.due <= pgleases.schedule_clock() WHEN $2::text = 'blocked' THEN r.blocked_reason IS NOT NULL ELSE true END
    ORDER BY r.id LIMIT CASE WHEN $2::text = '' THEN $9::int ELSE $8::int END
), shown AS MATERIALIZED (
    SELECT m.id, pgleases.schedule_status_json(to_jsonb(v) - 'args' || jsonb_build_object('due', CASE WHEN v.due < 'infinity' THEN least(v.due, '9999-12-30 UTC') ELSE v.due END), v.lateness) AS job
    FROM matched AS m CROSS JOIN LATERAL (SELECT s.* FROM pgleases.jobs_status AS s WHERE s.id = m.id OFFSET 0) AS v
    WHERE $2::text IN ('', v.state)
    ORDER BY m.id LIMIT $9::int
)
SELECT (SELECT coalesce(json_agg(s.job ORDER BY s.id), '[]') FROM shown AS s),
       least((SELECT max(m.id) FROM matched AS m HAVING count(*) = $8::int),
             (SELECT max(r.id) FROM read AS r WHERE $5::int IS NULL HAVING count(*) = $7::int))
