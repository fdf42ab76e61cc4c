-- enqueue.sql: puts jobs.
--
-- $1 text   group
-- $2 int    partitions of its lease, where nobody has run it yet
-- $3 jsonb  an array of {key, kind, name, trigger, begins, unique_key, args, priority, at, in_us, quiet}: due at an instant, or in so many microseconds, by the server's clock; where
--           there is more than one, unique keys are for skip only; quiet, of the first: nobody else needs to be told of them
-- $4 text   where there is a living job of the unique key: reject; ignore; replace; or skip, of many
--
-- The ids, also that of one that was there and is ignored; null: none was put, and reject or skip was given.
SELECT pgleases.schedule_enqueue($1::pg_catalog.text, $2::int, $3::pg_catalog.jsonb, $4::pg_catalog.text)
