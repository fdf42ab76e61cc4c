-- changed.sql: what has changed in leases.
--
-- $1 text    a snapshot: what it does not see counts
-- $2 text[]  leases
--
-- Of these, those that such a transaction has changed; then the causes of the events of those transactions that are about these leases, or about
-- clients as a whole, and of whom or what each is. No more than the last 100.
SELECT ARRAY(SELECT l.name FROM pgleases.leases AS l WHERE l.name = ANY ($2::text[]) AND NOT pg_visible_in_snapshot(l.changed, $1::text::pg_snapshot) ORDER BY l.name),
       coalesce(array_agg(e.cause), '{}'), coalesce(array_agg(coalesce(e.from_id, e.to_id, e.lease, '')), '{}')
FROM (SELECT e.cause, e.from_id, e.to_id, e.lease
      FROM pgleases.events AS e
      WHERE e.tx >= pg_snapshot_xmin($1::text::pg_snapshot) AND NOT pg_visible_in_snapshot(e.tx, $1::text::pg_snapshot)
        AND (e.lease = ANY ($2::text[]) OR e.lease IS NULL)
      ORDER BY e.tx DESC, e.id DESC
      LIMIT 100) AS e
