-- curves.sql: samples of a period, in steps of time. The search_path must be pg_catalog only.
--
-- $1 timestamptz  start of the period
-- $2 timestamptz  its end, which is not in it
-- $3 int          seconds of a step
-- $4 text[]       kinds of samples
-- $5 text         name of the lease, the consumer or the group; empty: all together
-- $6 int          maximum number of samples of each kind that are read: the newest
--
-- One row: JSON, an array of the type Curve; and the time of the latest sample before the end of the period, or null. A
-- step has the highest value of its samples. Without any, it is left out. JSON has neither NaN, which is above all
-- numbers, nor infinities, so they are left out.
WITH read AS MATERIALIZED (
    SELECT k.kind, s.at, s.value
    FROM unnest($4::text[]) AS k (kind)
    CROSS JOIN LATERAL (SELECT d.at, d.value FROM pgleases.samples AS d
                        WHERE d.kind = k.kind AND d.name = $5::text AND d.at >= $1::timestamptz AND d.at < $2::timestamptz
                        ORDER BY d.at DESC LIMIT $6::int) AS s
), points AS (
    SELECT r.kind, floor(extract(epoch FROM r.at) / $3::int)::bigint * $3::int AS at, max(r.value) AS value FROM read AS r WHERE r.value > '-infinity' AND r.value < 'infinity' GROUP BY 1, 2
)
SELECT coalesce(json_agg(json_build_object('kind', k.kind, 'points', (
           SELECT coalesce(json_agg(json_build_object('at', p.at, 'value', p.value) ORDER BY p.at), '[]') FROM points AS p WHERE p.kind = k.kind)) ORDER BY k.place), '[]'),
       (SELECT max(l.at) FROM unnest($4::text[]) AS k (kind) CROSS JOIN LATERAL (
            SELECT d.at FROM pgleases.samples AS d WHERE d.kind = k.kind AND d.name = $5::text AND d.at > '-infinity' AND d.at < $2::timestamptz ORDER BY d.at DESC LIMIT 1) AS l)
FROM unnest($4::text[]) WITH ORDINALITY AS k (kind, place)
