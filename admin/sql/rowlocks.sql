-- rowlocks.sql: sessions that have had the row of a client locked for more than a second. The search_path is to be pg_catalog alone.
--
-- One row for each client and session, as strangers.sql has it.
SELECT h.id, h.pid, coalesce(a.usename, ''), coalesce(a.application_name, ''), coalesce(extract(epoch FROM clock_timestamp() - a.xact_start), -1)::double precision
FROM (SELECT c.id, l.pid FROM pgleases.clients AS c JOIN pg_locks AS l ON l.transactionid = c.xmax AND l.locktype = 'transactionid' AND l.granted
      UNION -- several that share it, of whom xmax does not tell
      SELECT c.id, b.pid FROM pg_locks AS w CROSS JOIN unnest(pg_blocking_pids(w.pid)) AS b (pid) JOIN pgleases.clients AS c ON c.ctid = format('(%s,%s)', w.page, w.tuple)::tid
      WHERE w.locktype = 'tuple' AND w.granted AND w.relation = 'pgleases.clients'::regclass AND w.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())) AS h
JOIN pg_stat_activity AS a ON a.pid = h.pid WHERE coalesce(a.xact_start < clock_timestamp() - interval '1 second', true)
ORDER BY 5 DESC, 1
