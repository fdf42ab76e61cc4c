package interleavings

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/pgleases/pgleases/sql"
)

// gates are the texts of the schema before which a gate is put. Each follows a statement that locks
// or writes rows, and stands in the schema once.
var gates = []string{
	// heartbeat, after the renewal.
	"    IF same_run AND unchanged THEN\n",
	// apply, after the lock of the leases, after the requests to owners, and after the gifts.
	"    overtaken := ARRAY(SELECT n FROM unnest(p_names)",
	"    -- Give the free partitions to their targets, under a higher epoch.",
	"    -- Note when the next plan is due, and make plans void",
	// release, after the locks of the leases and of the session, after the handover, and after the end
	// of the membership.
	"    -- Release only on a server that is accepted: another one may lack handoffs. Without",
	"    -- Name those that were left out, so that the caller",
	"        WITH changed AS (\n",
	// evict, after the lock of the server's row.
	"    -- Evict, in one statement, so that all of it has one snapshot.",
	// override, after the lock of the leases, after that of the clients, and after the order.
	"    UPDATE pgleases.server AS s SET next_check_at = least(s.next_check_at, p_until)",
	"    -- Keep the last client of a lease at work, unless the operator insists.",
	"    PERFORM pgleases.override_written(names, p_verb,",
	// evict_client, after the change of the identity, after the lock of the leases, and after the
	// revocation.
	"    names := pgleases.leases_of(NULL::text, evict_client.client);",
	"    -- From here on no heartbeat renews the session, and no guard passes for it.",
	"    GET DIAGNOSTICS revoked = ROW_COUNT;",
	// lock_acquire and lock_queue, after the mutex, and after the turn of those before.
	"    INSERT INTO pgleases.locks AS n (name, ticket,",
	"    SELECT l.token, l.ticket INTO token, place FROM pgleases.locks AS l\n",
	// lock_release, after the mutex, and after the deletion.
	"    DELETE FROM pgleases.locks AS l\n    WHERE l.ctid OPERATOR",
	"    IF others THEN\n",
}

// patience replaces limits of time in the schema: a session waits at gates for longer.
var patience = []string{
	"'idle_in_transaction_session_timeout', '500', true), set_config('statement_timeout', '10000', true)",
	"'idle_in_transaction_session_timeout', '0', true), set_config('statement_timeout', '0', true)",
	"pgleases.settings(true, 5000)", "pgleases.settings(true, 600000)",
}

// gatedSchema returns the schema with the gates.
func gatedSchema() (string, error) {
	schema, err := sql.Files.ReadFile("schema.sql")
	if err != nil {
		return "", err
	}
	text := strings.NewReplacer(patience...).Replace(string(schema))
	for _, before := range gates {
		n := strings.Count(text, before)
		if n != 1 {
			return "", fmt.Errorf("the schema has this text %d times, not once: %q", n, before)
		}
		text = strings.Replace(text, before, "    PERFORM interleavings.gate();\n"+before, 1)
	}
	return text, nil
}

// gateSQL is what a gate does. A session without a number passes. Any other says in a notice that it
// is there, which the server sends at once, and waits for a lock that the driver holds. It does so
// on two locks in turn, so that the driver can take one back while the session waits for the other.
const gateSQL = `
CREATE SCHEMA interleavings;
CREATE FUNCTION interleavings.gate() RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog SET client_min_messages = notice AS $$
DECLARE
    session CONSTANT int := nullif(current_setting('interleavings.session', true), '')::int;
    turn CONSTANT int := 1 - coalesce(nullif(current_setting('interleavings.turn', true), '')::int, 0);
BEGIN
    IF session IS NOT NULL THEN
        PERFORM set_config('interleavings.turn', turn::text, false);
        RAISE NOTICE 'gate %', turn;
        PERFORM pg_advisory_lock(session, turn);
        PERFORM pg_advisory_unlock(session, turn);
    END IF;
END
$$;
`

// firstGate is the key of the first session's gates. No other advisory lock of the tests has it.
const firstGate = 900001

// A gatekeeper is the driver's connection. It holds the locks of all gates, except of the one that
// each session passed last.
type gatekeeper struct{ conn *pgx.Conn }

// close closes the gates of a new session.
func (g gatekeeper) close(ctx context.Context, s *session) error {
	s.passed = unpassed
	_, err := g.conn.Exec(ctx, `SELECT pg_advisory_lock($1, 0), pg_advisory_lock($1, 1)`, s.key)
	return err
}

// open lets a session pass that waits at a gate, and closes the gate that it passed before.
func (g gatekeeper) open(ctx context.Context, s *session) error {
	statement := `SELECT pg_advisory_unlock($1, $2)`
	if s.passed != unpassed {
		statement = `SELECT pg_advisory_lock($1, 1 - $2::int), pg_advisory_unlock($1, $2)`
	}
	s.passed = s.turn
	_, err := g.conn.Exec(ctx, statement, s.key, s.turn)
	return err
}

// waiting returns which of two sessions wait for a lock that the other one has, by their process
// IDs.
func (g gatekeeper) waiting(ctx context.Context, one, other *session) ([]int32, error) {
	rows, err := g.conn.Query(ctx, `SELECT l.pid FROM pg_locks AS l
		WHERE NOT l.granted AND l.pid = ANY ($1) AND pg_blocking_pids(l.pid) && $1`, []int32{one.pid, other.pid})
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[int32])
}
