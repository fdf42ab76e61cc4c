-- takeback.sql: takes back what operators have asked and nobody has carried out yet: that a schedule is resumed, which get.sql has locked.
--
-- $1 bigint  schedule
SELECT pgleases.schedule_take_back($1::bigint)::pg_catalog.text
