-- ids.sql: the client IDs that live processes take from each other, see identities.takeovers.
--
-- One row for each ID: the ID; how often; and the processes, the last of them first.
SELECT i.id, i.takeovers,
       concat_ws('; ', (SELECT string_agg(concat('host ', c.host, ', pid ', c.pid), '; ' ORDER BY c.incarnation DESC) FROM pgleases.clients AS c WHERE c.id = i.id),
                 nullif(i.taken_from, ''))
FROM pgleases.identities AS i
WHERE i.takeovers >= 3 AND i.taken_at > clock_timestamp() - interval '5 minutes'
ORDER BY i.id
