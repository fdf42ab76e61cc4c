-- sample.sql: writes samples of this minute, unless another client has done that, or does it now. The caller sets a
-- statement_timeout, because its other statements wait for this one.
--
-- $1 int     lock timeout, milliseconds
--
-- One row: whether this call has written; whether some samples of this minute remain for the next call.
SELECT wrote, remains FROM pgleases.sample($1::int)
