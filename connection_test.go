package pgleases_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
)

func TestOwnConnectionUsesThePoolsConfig(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	pool := testkit.Pool(t, direct(t), func(c *pgxpool.Config) {
		c.BeforeConnect = func(_ context.Context, config *pgx.ConnConfig) error { // as for a token
			calls.Add(1)
			config.RuntimeParams["application_name"] = "by token"
			return nil
		}
	})
	config := pool.Config()
	used := pool.Stat().AcquireCount()
	c := newClient(t, pool)
	l := joined(t, c, "work", 4)
	untilOwns(t, l, 4)
	if n := pool.Stat().AcquireCount() - used; n != 0 {
		t.Errorf("the pool was used %d times, not 0", n)
	}
	if calls.Load() != 1 {
		t.Errorf("BeforeConnect was called %d times for the client, not once", calls.Load())
	}
	named := func(name string) int {
		t.Helper()
		return testkit.Value[int](t, pool, `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name = $1`, name)
	}
	if n := named("by token"); n != 1 {
		t.Errorf("the client has %d connections, not 1", n)
	}
	own := config.ConnConfig.Copy()
	own.RuntimeParams["application_name"] = "mine"
	direct := newClient(t, testkit.Pool(t, config.ConnString()), pgleases.WithConnConfig(own))
	own.RuntimeParams["application_name"] = "too late" // it was copied
	untilOwns(t, joined(t, direct, "other", 4), 4)
	if n := named("mine"); n != 1 {
		t.Errorf("%d connections are from WithConnConfig, not 1", n)
	}
	testkit.Execute(t, pool, `
		SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name IN ('mine', 'by token')
		AND datname = current_database() AND pid <> pg_backend_pid()`)
	until(t, "they connected again", func() bool {
		reconnected := direct.Stats().Reconnects == 1 && c.Stats().Reconnects == 1
		return reconnected && named("mine") == 1 && named("by token") >= 1
	})
}

func TestOpenNeedsNoPool(t *testing.T) {
	t.Parallel()
	url := direct(t)
	team := newCrew(t)
	var c *pgleases.Client
	team.do(func() {
		var err error
		if c, err = pgleases.Open(t.Context(), url+"&pool_max_conns=3", pgleases.WithClientID("a")); err != nil {
			t.Fatal(err)
		}
	})
	defer shut(t, c)
	l := joined(t, c, "work", 4)
	untilOwns(t, l, 4)
	pool := testkit.Pool(t, url)
	guarded(t, pool, l, ownership(t, l, 0))
	if n := connections(t, pool); n != 1 {
		t.Errorf("the client has %d connections, not 1", n)
	}
	shut(t, c)
	team.gone()
	until(t, "the connection is gone", func() bool { return connections(t, pool) == 0 })
}

func TestALostConnectionCostsNothing(t *testing.T) {
	t.Parallel()
	pool, ca, cb, a := twoClientsOn(t, direct(t), 8, pgleases.WithHandoffDelay(0))
	b := joined(t, cb, "work", 8, pgleases.WithHandoffDelay(0))
	until(t, "each owns half", func() bool { return len(a.Values()) == 4 && len(b.Values()) == 4 }, a, b)
	var before []pgleases.Partition
	for _, n := range a.Values() {
		before = append(before, ownership(t, a, n))
	}
	changed := a.Changed()
	for round := range int64(4) {
		testkit.Execute(t, pool, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE datname = current_database() AND application_name = 'pgleases'`)
		until(t, "both are back", func() bool {
			return ca.Stats().Reconnects == round+1 && cb.Stats().Reconnects == round+1 &&
				ca.Stats().Listening && cb.Stats().Listening
		})
		beats(t, ca, 1)
	}
	select {
	case <-changed:
		t.Error("Changed was closed: something changed")
	default:
	}
	for _, p := range before {
		if now, ok := a.Partition(p.Number); !ok || now != p || p.Context().Err() != nil {
			t.Errorf("without its connection, %v became %v, owned %v, %v", p, now, ok, context.Cause(p.Context()))
		}
		guarded(t, pool, a, p)
	}
	if n := connections(t, pool); n != 2 {
		t.Errorf("two clients have %d connections, not 2", n)
	}
	shut(t, cb) // notifications arrive again
	untilOwns(t, a, 8)
}

func TestHungPoolFunctionDelaysNeitherOpenNorClose(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	url := direct(t)
	db := testkit.Pool(t, url)
	ended := make(chan struct{})
	defer close(ended)
	var hangs atomic.Bool
	entered := make(chan struct{}, 1000)
	pool := testkit.Pool(t, url, func(c *pgxpool.Config) {
		c.BeforeConnect = func(context.Context, *pgx.ConnConfig) error {
			if hangs.Load() {
				entered <- struct{}{}
				<-ended // whatever becomes of its context
			}
			return nil
		}
	})
	c := newClient(t, pool)
	hangs.Store(true)
	testkit.Execute(t, db, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
		WHERE datname = current_database() AND application_name = 'pgleases'`)
	testkit.Receive(t, "it connects anew", entered)
	over, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("over"))
	closed := make(chan error, 1)
	go func() { closed <- c.Close(over) }()
	testkit.Receive(t, "Close returns", closed)

	soon, cancelSoon := context.WithCancel(t.Context())
	opened := make(chan error, 1)
	go func() {
		_, err := pgleases.NewClient(soon, pool)
		opened <- err
	}()
	testkit.Receive(t, "a second one connects", entered)
	cancelSoon()
	if err := testkit.Receive(t, "NewClient returns", opened); !errors.Is(err, context.Canceled) {
		t.Errorf("NewClient: %v, want the end of its context", err)
	}
	if n := len(entered); n > 0 {
		t.Errorf("%d more attempts began while one went on", n)
	}
}

// Functions of the application in an attempt to connect may panic, end their goroutine, or return an
// error whose methods panic. The attempt has failed then, and the client makes the next one.
func TestPoolFunctionsMayNotReturn(t *testing.T) {
	t.Parallel()
	url := direct(t)
	db := testkit.Pool(t, url)
	faults := map[string]func() error{
		"panics":                     func() error { panic("a fault of the application") },
		"ends its goroutine":         func() error { runtime.Goexit(); return nil },
		"returns an error of no use": func() error { return (*net.DNSError)(nil) },
	}
	places := map[string]func(c *pgx.ConnConfig, f func() error){
		"DialFunc": func(c *pgx.ConnConfig, f func() error) {
			dial := c.DialFunc
			c.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
				if err := f(); err != nil {
					return nil, err
				}
				return dial(ctx, network, address)
			}
		},
		"AfterConnect": func(c *pgx.ConnConfig, f func() error) {
			c.AfterConnect = func(context.Context, *pgconn.PgConn) error { return f() }
		},
	}
	for what, fault := range faults {
		for where, put := range places {
			t.Run(where+" "+what, func(t *testing.T) {
				t.Parallel()
				var armed atomic.Bool
				calls := make(chan struct{}, 1000)
				config := testkit.Must(pgx.ParseConfig(url))(t)
				config.RuntimeParams["application_name"] = "pgleases " + rand.Text()
				put(config, func() error {
					if !armed.Load() {
						return nil
					}
					calls <- struct{}{}
					return fault()
				})
				c := newClient(t, db, pgleases.WithConnConfig(config))
				armed.Store(true)
				if _, err := pgleases.NewClient(t.Context(), db, pgleases.WithConnConfig(config)); err == nil {
					t.Error("NewClient returned no error")
				}
				for len(calls) > 0 {
					<-calls
				}
				testkit.Execute(t, db, `
					SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1`,
					config.RuntimeParams["application_name"])
				testkit.Receive(t, "the client connects", calls)
				testkit.Receive(t, "it connects once more", calls)
				armed.Store(false)
				testkit.Until(t, "it is connected", func() bool { return c.Stats().Reconnects > 0 })
			})
		}
	}
}

// noDeadlines is a connection as of an SSH tunnel.
type noDeadlines struct{ net.Conn }

func (noDeadlines) SetDeadline(time.Time) error { return errors.New("deadline not supported") }

// A deadline ends a wait.
func TestConnectionWithoutDeadlinesIsRefused(t *testing.T) {
	t.Parallel()
	own := testkit.Must(pgx.ParseConfig(direct(t)))(t)
	dial := own.DialFunc
	own.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		return noDeadlines{conn}, err
	}
	_, err := pgleases.NewClient(t.Context(), testkit.Pool(t, own.ConnString()), pgleases.WithConnConfig(own))
	if err == nil || !strings.Contains(err.Error(), "DialFunc") {
		t.Fatalf("NewClient: %v", err)
	}
}

// byDefault sets the default of transactions in a database, before anything has connected to it
// through a pooler.
func byDefault(t *testing.T, url, setting, value string) {
	t.Helper()
	past, _ := pgtest.DirectURL(url)
	config := testkit.Must(pgx.ParseConfig(past))(t)
	alter := fmt.Sprintf("ALTER DATABASE %s SET %s = '%s'", config.Database, setting, value)
	testkit.Execute(t, ownersPool(t, past), alter)
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
	testkit.OnlyInCI(t)
	t.Parallel()
	url := pgtest.FreshDatabase(t)
	past, _ := pgtest.DirectURL(url)
	owner := ownersPool(t, past)
	testkit.Execute(t, owner, `
		CREATE FUNCTION public.late() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.3); RETURN NEW; END';
		CREATE TRIGGER late BEFORE INSERT ON pgleases.members FOR EACH ROW EXECUTE FUNCTION public.late()`)
	settings := map[string]string{
		"default_transaction_isolation":  "serializable",
		"default_transaction_deferrable": "on",
		"statement_timeout":              "200ms",
		"idle_session_timeout":           "200ms",
	}
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
		cs[i] = newClient(t, testkit.Pool(t, url),
			book.option(), pgleases.WithHeartbeat(time.Second), pgleases.WithoutMigration())
		joining.Go(func() { leases[i], errs[i] = cs[i].Lease(ctx, "work", 9, pgleases.WithHandoffDelay(0)) })
	}
	joining.Wait()
	testkit.OK(t, errors.Join(errs...))
	untilShared(t, "the shares are even", []int{3, 3, 3}, leases...)
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
	testkit.OnlyInCI(t)
	t.Parallel()
	url := direct(t)
	owner := ownersPool(t, url)
	if testkit.Value[int](t, owner, "SELECT current_setting('server_version_num')::int") < 150000 {
		t.Skip("fast failover needs PostgreSQL 15")
	}
	var book logbook
	c := newClient(t, testkit.Pool(t, url), pgleases.WithFastFailover(), book.option())
	testkit.Becomes(t, owner, "its connection holds a lock", 1, `
		SELECT count(*) FROM pg_locks JOIN pgleases.presences AS p USING (pid) WHERE locktype = 'advisory'`)
	conn := testkit.Must(owner.Acquire(t.Context()))(t)
	defer conn.Release()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := conn.Exec(ctx, "SELECT pg_advisory_lock(presence) FROM pgleases.presences")
		ended <- err
	}()
	stranger := fmt.Sprintf("server_pid=%d", conn.Conn().PgConn().PID())
	testkit.Until(t, "it is logged", func() bool {
		return len(book.lines("fast failover may take the TTL", stranger)) > 0
	})
	beats(t, c, 5) // it checks ten times a second
	cancel()
	testkit.Receive(t, "the stranger ends", ended)
	const over = "fast failover no longer delayed by another session"
	testkit.Until(t, "its end is logged", func() bool { return len(book.lines(over, "for=")) == 1 })
	if lines := book.lines("fast failover may take the TTL"); len(lines) != 1 {
		t.Errorf("logged %d times: %q", len(lines), lines)
	}
}
