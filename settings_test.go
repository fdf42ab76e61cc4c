package pgleases_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
)

// byDefault sets the default of transactions in a database, before anything has connected to it
// through a pooler.
func byDefault(t *testing.T, url, setting, value string) {
	t.Helper()
	past, _ := pgtest.DirectURL(url)
	config := testkit.Must(pgx.ParseConfig(past))(t)
	testkit.Execute(t, ownersPool(t, past), fmt.Sprintf("ALTER DATABASE %s SET %s = '%s'", config.Database, setting, value))
}

func TestClientsWorkUnderAnyTransactionDefault(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"repeatable read", "serializable"} {
		t.Run(level, func(t *testing.T) {
			t.Parallel()
			url := pgtest.Database(t)
			byDefault(t, url, "default_transaction_isolation", level)
			byDefault(t, url, "default_transaction_deferrable", "on")
			pool := testkit.Pool(t, url)
			var book logbook
			const clients = 5
			opened := make([]*pgleases.Client, clients)
			leases := make([]*pgleases.Lease, clients)
			done := make(chan error, clients)
			for i := range clients {
				go func() {
					var err error
					opened[i], err = pgleases.NewClient(context.Background(), pool, pgleases.WithClientID(fmt.Sprint("client ", i)), book.option(),
						pgleases.WithTTL(calmTTL), pgleases.WithHeartbeat(time.Second)) // they wait for each other's locks for a quarter of it
					if err == nil {
						leases[i], err = opened[i].Lease(context.Background(), "work", 3*clients, pgleases.WithHandoffDelay(0))
					}
					done <- err
				}()
			}
			for range clients {
				if err := testkit.Receive(t, "all have joined", done); err != nil {
					t.Error(err)
				}
			}
			defer func() {
				for _, c := range opened {
					if c != nil {
						shut(t, c)
					}
				}
			}()
			if t.Failed() {
				return
			}
			even := func() bool {
				counts := owned(leases...)
				return slices.Min(counts) == 3 && slices.Max(counts) == 3
			}
			until(t, "the shares are even", even, leases...)
			for _, l := range leases {
				for _, n := range l.Values() {
					guarded(t, pool, l, ownership(t, l, n))
				}
			}
			beats(t, opened[0], 2) // and each other one beats meanwhile
			if lines := book.lines("40001"); len(lines) > 0 {
				t.Errorf("statements of clients failed for their isolation:\n%s", strings.Join(lines, "\n"))
			}
		})
	}
}

// Without triggers no client learns that a lease has changed.
func TestReplicationRoleReplicaIsRefused(t *testing.T) {
	t.Parallel()
	url := direct(t)
	byDefault(t, url, "session_replication_role", "replica")
	_, err := pgleases.NewClient(t.Context(), testkit.Pool(t, url))
	refused(t, "NewClient", err, "session_replication_role is replica", "RESET session_replication_role")
}

// A plan of many partitions takes long, and a client's connection is idle between heartbeats.
func TestTimeoutsOfARoleEndNothing(t *testing.T) {
	t.Parallel()
	url := pgtest.FreshDatabase(t)
	testkit.Execute(t, ownersPool(t, url), `CREATE FUNCTION public.late() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.5); RETURN NEW; END';
		CREATE TRIGGER late BEFORE INSERT ON pgleases.members FOR EACH ROW EXECUTE FUNCTION public.late()`)
	byDefault(t, url, "statement_timeout", "200ms")
	byDefault(t, url, "idle_session_timeout", "200ms")
	if testkit.Value[int](t, ownersPool(t, url), "SELECT current_setting('server_version_num')::int") >= 170000 {
		byDefault(t, url, "transaction_timeout", "200ms")
	}
	c := newClient(t, testkit.Pool(t, url), pgleases.WithHeartbeat(time.Second), pgleases.WithoutMigration())
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience/4)
	defer cancel()
	l := testkit.Must(c.Lease(ctx, "work", 4))(t)
	untilOwns(t, l, 4)
	beats(t, c, 2)
	if s := c.Stats(); s.Reconnects > 0 {
		t.Errorf("%d times connected again", s.Reconnects)
	}
}

// Any role may wait for the lock of a client. Then the takeover takes the TTL, and a warning is
// logged.
func TestAStrangerAtAClientsLockIsLogged(t *testing.T) {
	t.Parallel()
	url := direct(t)
	owner := ownersPool(t, url)
	if testkit.Value[int](t, owner, "SELECT current_setting('server_version_num')::int") < 150000 {
		t.Skip("fast failover needs PostgreSQL 15")
	}
	var book logbook
	c := newClient(t, testkit.Pool(t, url), pgleases.WithFastFailover(), book.option())
	testkit.Becomes(t, owner, "its connection holds a lock", 1, "SELECT count(*) FROM pg_locks JOIN pgleases.presences AS p USING (pid) WHERE locktype = 'advisory'")
	conn := testkit.Must(owner.Acquire(t.Context()))(t)
	defer conn.Release()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := conn.Exec(ctx, "SELECT pg_advisory_lock(presence) FROM pgleases.presences")
		ended <- err
	}()
	stranger := fmt.Sprintf("server_pid=%d", conn.Conn().PgConn().PID())
	testkit.Until(t, "it is logged", func() bool { return len(book.lines("fast failover may take the TTL", stranger)) > 0 })
	beats(t, c, 5) // it checks ten times a second
	cancel()
	testkit.Receive(t, "the stranger ends", ended)
	if lines := book.lines("fast failover may take the TTL"); len(lines) != 1 {
		t.Errorf("logged %d times: %q", len(lines), lines)
	}
}
