-- present.sql: the owners of a lease's partitions. The search_path must be pg_catalog only.
--
-- $1 text  lease
-- $2 int   partition; null: all
--
-- One row, JSON, if the lease exists: its number of partitions, and for each owner the ranges of its partitions. gone:
-- the session of the owner was evicted, and no plan has given the partitions to another client. silent: when the owner sent
-- its last heartbeat, if its session has expired. A lease has at most 65,536 partitions, and a client may write any
-- number. A CHECK of the table would be parsed for each update of a lease.
SELECT json_build_object('partitions', least(l.partitions, 65536), 'holdings', coalesce((
    SELECT json_agg(json_build_object('owner', h.owner, 'gone', h.gone, 'silent', h.silent,
               'partitions', (SELECT json_agg(json_build_array(lower(r), upper(r) - 1)) FROM unnest(h.numbers) AS r)))
    FROM (SELECT CASE WHEN p.owner IS NOT NULL THEN coalesce(c.id, p.owner_id, '') ELSE '' END AS owner, p.owner IS NOT NULL AND c.session IS NULL AS gone,
                 CASE WHEN c.expires_at > 'epoch' AND c.expires_at < clock_timestamp() THEN greatest(c.expires_at - c.ttl, '0001-01-02 UTC') END AS silent,
                 range_agg(int4range(p.partition, p.partition + 1)) AS numbers
          FROM pgleases.partitions AS p LEFT JOIN pgleases.clients AS c ON c.session = p.owner
          WHERE p.lease = l.name AND ($2::int IS NULL OR p.partition = $2::int)
          GROUP BY 1, 2, 3) AS h), '[]'))
FROM pgleases.leases AS l
WHERE l.name = $1::text AND l.partitions > 0
