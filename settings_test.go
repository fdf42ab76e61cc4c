package pgleases_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
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

// Without triggers no client learns that a lease has changed.
func TestReplicationRoleReplicaIsRefused(t *testing.T) {
	t.Parallel()
	url := direct(t)
	byDefault(t, url, "session_replication_role", "replica")
	_, err := pgleases.NewClient(t.Context(), testkit.Pool(t, url))
	refused(t, "NewClient", err, "session_replication_role is replica", "RESET session_replication_role")
}

// A plan of many partitions takes long, and a client's connection is idle between heartbeats. Behind
// a pooler, each message sets what it needs.
func TestSettingsOfARoleChangeNothing(t *testing.T) {
	t.Parallel()
	url := pgtest.FreshDatabase(t)
	past, _ := pgtest.DirectURL(url)
	owner := ownersPool(t, past)
	testkit.Execute(t, owner, `CREATE FUNCTION public.late() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.3); RETURN NEW; END';
		CREATE TRIGGER late BEFORE INSERT ON pgleases.members FOR EACH ROW EXECUTE FUNCTION public.late()`)
	settings := map[string]string{"default_transaction_isolation": "serializable", "default_transaction_deferrable": "on", "statement_timeout": "200ms", "idle_session_timeout": "200ms"}
	if testkit.Value[int](t, owner, "SELECT current_setting('server_version_num')::int") >= 170000 {
		settings["transaction_timeout"] = "200ms"
	}
	for setting, value := range settings {
		byDefault(t, url, setting, value)
	}
	var book logbook
	var joining sync.WaitGroup
	cs, leases, errs := make([]*pgleases.Client, 3), make([]*pgleases.Lease, 3), make([]error, 3)
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience/4)
	defer cancel()
	for i := range cs {
		cs[i] = newClient(t, testkit.Pool(t, url), book.option(), pgleases.WithHeartbeat(time.Second), pgleases.WithoutMigration())
		joining.Go(func() { leases[i], errs[i] = cs[i].Lease(ctx, "work", 9, pgleases.WithHandoffDelay(0)) })
	}
	joining.Wait()
	testkit.OK(t, errors.Join(errs...))
	until(t, "the shares are even", func() bool { return slices.Equal(owned(leases...), []int{3, 3, 3}) }, leases...)
	beats(t, cs[0], 2) // and each other one beats meanwhile
	for i, l := range leases {
		guarded(t, owner, l, ownership(t, l, l.Values()[0]))
		if s := cs[i].Stats(); s.Reconnects > 0 {
			t.Errorf("%d times connected again", s.Reconnects)
		}
	}
	if lines := book.lines("40001"); len(lines) > 0 {
		t.Errorf("statements of clients failed for their isolation:\n%s", strings.Join(lines, "\n"))
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
