-- operator.sql: the rights of a role that operates consumers, besides SELECT on their queue tables, which only the numbers
-- of waiting rows need, and INSERT to return dead letters. Replace pgleases_operator with your role. For the rest see application.sql.
GRANT USAGE ON SCHEMA pgleases TO pgleases_operator;
GRANT SELECT ON pgleases.consumer_version, pgleases.consumers, pgleases.consumer_owners, pgleases.consumer_blocked, pgleases.consumer_dead_letters,
    pgleases.consumers_status TO pgleases_operator;
GRANT EXECUTE ON FUNCTION pgleases.consumer_pause, pgleases.consumer_resume, pgleases.consumer_retry, pgleases.consumer_retry_all, pgleases.consumer_skip,
    pgleases.consumer_return, pgleases.consumer_return_all, pgleases.consumer_take_letter, pgleases.consumer_delete, pgleases.consumer_backlog TO pgleases_operator;
