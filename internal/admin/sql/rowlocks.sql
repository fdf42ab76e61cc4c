-- rowlocks.sql: sessions that have locked, for more than 1 s, a row that clients must write or lock: of a client, a
-- lease, a member, the server, or a partition without a live owner, which an open guard keeps. The search_path must be
-- pg_catalog only.
--
-- One row for each locked row and session, with the columns of strangers.sql.
WITH rows AS (
    SELECT 'client ' || to_json(c.id) AS of, c.tableoid, c.ctid, c.xmax FROM pgleases.clients AS c
    UNION ALL SELECT 'lease ' || to_json(l.name), l.tableoid, l.ctid, l.xmax FROM pgleases.leases AS l
    UNION ALL SELECT 'a member of lease ' || to_json(m.lease), m.tableoid, m.ctid, m.xmax FROM pgleases.members AS m
    UNION ALL SELECT format('partition %s/%s', to_json(p.lease), p.partition), p.tableoid, p.ctid, p.xmax FROM pgleases.partitions AS p
        WHERE p.owner IS NOT NULL AND NOT EXISTS (SELECT FROM pgleases.clients AS c WHERE c.session = p.owner)
    UNION ALL SELECT 'server', s.tableoid, s.ctid, s.xmax FROM pgleases.server AS s
)
SELECT h.of, coalesce(h.pid, 0), coalesce(a.usename, p.owner, ''), coalesce(a.application_name, p.gid, ''), coalesce(extract(epoch FROM clock_timestamp() - coalesce(a.xact_start, p.prepared)), -1)::double precision
FROM (SELECT r.of, l.pid, l.transactionid AS xid FROM rows AS r JOIN pg_locks AS l ON l.transactionid = r.xmax AND l.locktype = 'transactionid' AND l.granted
      UNION ALL -- sessions that share the lock: xmax does not name them
      SELECT r.of, b.pid, NULL FROM pg_locks AS w CROSS JOIN unnest(pg_blocking_pids(w.pid)) AS b (pid) JOIN rows AS r ON r.tableoid = w.relation AND r.ctid = format('(%s,%s)', w.page, w.tuple)::tid
      WHERE w.locktype = 'tuple' AND w.granted AND w.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())) AS h
LEFT JOIN pg_stat_activity AS a ON a.pid = h.pid
LEFT JOIN pg_prepared_xacts AS p ON h.pid IS NULL AND p.transaction = h.xid -- it has no process
WHERE (a.pid IS NOT NULL OR p.gid IS NOT NULL) AND coalesce(coalesce(a.xact_start, p.prepared) < clock_timestamp() - interval '1 second', true)
ORDER BY 5 DESC, 1
