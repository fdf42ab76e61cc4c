-- failedjobs.sql: the failed and unknown jobs of a group, of a kind, or with a key, the newest first, among the latest such
-- entries of all groups. The search_path must be pg_catalog only, and the zone UTC.
--
-- $1 text    group
-- $2 text    kind; empty: all
-- $3 text    key; empty: all
-- $4 bigint  only entries with lower IDs
-- $5 int     maximum number of entries that are searched
-- $6 int     maximum number of entries that are returned
--
-- One row: an array of entries as package schedule reads them, without arguments, as in jobs.sql.
SELECT coalesce(json_agg(pgleases.schedule_entry_json(h) - 'args' ORDER BY h.id DESC), '[]')
FROM (SELECT h.* FROM (SELECT f.id FROM pgleases.history AS f WHERE f.outcome = ANY ('{failed,unknown}'::text[]) ORDER BY f.ended_at DESC LIMIT $5::int) AS latest
      JOIN pgleases.history AS h ON h.id = latest.id
      WHERE h.group_name = $1::text AND h.job IS NOT NULL AND $2::text IN ('', h.kind) AND $3::text IN ('', h.key) AND h.id < $4::bigint
      ORDER BY h.id DESC LIMIT $6::int) AS h
