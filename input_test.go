package pgleases_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"go.uber.org/goleak"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/engine"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/testkit"
)

// Inputs of users that cannot work: each is an error that names the input. None causes a panic, or
// leaves anything behind in the process or in the database.

// errCause is the cause of contexts that have ended already.
var errCause = errors.New("the reason of the test")

// noGoroutineLeft fails the test if it leaves one behind. Not for parallel tests.
func noGoroutineLeft(t *testing.T) {
	t.Helper()
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() {
		if err := testkit.Leftover(before); err != nil {
			t.Error(err)
		}
	})
}

// registered checks what is in the tables: clients, leases, members and partitions.
func registered(t *testing.T, pool *pgxpool.Pool, want string) {
	t.Helper()
	if got := testkit.Value[string](t, pool, `SELECT format('%s clients, %s leases, %s members, %s partitions',
		(SELECT count(*) FROM pgleases.clients), (SELECT count(*) FROM pgleases.leases),
		(SELECT count(*) FROM pgleases.members), (SELECT count(*) FROM pgleases.partitions))`); got != want {
		t.Errorf("the tables hold %s, not %s", got, want)
	}
}

// closedPort returns an address without a listener.
func closedPort(t *testing.T) string {
	t.Helper()
	listener := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer listener.Close()
	return listener.Addr().String()
}

func closedURL(t *testing.T) string {
	t.Helper()
	return "postgres://nobody@" + closedPort(t) + "/nowhere?sslmode=disable"
}

var (
	tooLong = strings.Repeat("x", 300)
	notUTF8 = "abc\xff"
)

// There is no server, so that an error that names the option was found before anything was sent.
func TestBadClientOptionsAreRefusedBeforeAnythingIsSent(t *testing.T) {
	noGoroutineLeft(t)
	url := closedURL(t)
	pool := testkit.Must(pgxpool.New(t.Context(), url))(t)
	defer pool.Close()
	metadata := func(pairs ...string) []pgleases.Option {
		of := make(map[string]string)
		for pair := range slices.Chunk(pairs, 2) {
			of[pair[0]] = pair[1]
		}
		return []pgleases.Option{pgleases.WithMetadata(of)}
	}
	for _, c := range []struct {
		what    string
		options []pgleases.Option
		texts   []string
	}{
		{"empty option", []pgleases.Option{{}}, []string{"option", "empty"}},
		{"empty client ID", []pgleases.Option{pgleases.WithClientID("")}, []string{"client ID", `""`}},
		{"client ID of 300 bytes", []pgleases.Option{pgleases.WithClientID(tooLong)},
			[]string{"client ID", `"xxx`, "300"}},
		{"client ID with NUL", []pgleases.Option{pgleases.WithClientID("a\x00b")},
			[]string{"client ID", `"a\x00b"`, "NUL"}},
		{"client ID not UTF-8", []pgleases.Option{pgleases.WithClientID(notUTF8)},
			[]string{"client ID", `"abc\xff"`, "UTF-8"}},
		{"TTL of 0", []pgleases.Option{pgleases.WithTTL(0)}, []string{"TTL 0s", "1s"}},
		{"TTL below 0", []pgleases.Option{pgleases.WithTTL(-time.Second)}, []string{"TTL -1s", "1s"}},
		{"TTL of 10 ms", []pgleases.Option{pgleases.WithTTL(10 * time.Millisecond)}, []string{"TTL 10ms", "1s"}},
		{"TTL of 11 minutes", []pgleases.Option{pgleases.WithTTL(11 * time.Minute)}, []string{"TTL 11m0s", "10m0s"}},
		{"heartbeat of 0", []pgleases.Option{pgleases.WithHeartbeat(0)}, []string{"heartbeat 0s"}},
		{"heartbeat below 0", []pgleases.Option{pgleases.WithHeartbeat(-time.Second)}, []string{"heartbeat -1s"}},
		{"heartbeat of 1 ns", []pgleases.Option{pgleases.WithHeartbeat(1)}, []string{"heartbeat 1ns"}},
		{"heartbeat above half the TTL",
			[]pgleases.Option{pgleases.WithTTL(4 * time.Second), pgleases.WithHeartbeat(2*time.Second + 1)},
			[]string{"heartbeat 2.000000001s", "half the TTL", "2s"}},
		{"the same, the other way round",
			[]pgleases.Option{pgleases.WithHeartbeat(5 * time.Second), pgleases.WithTTL(6 * time.Second)},
			[]string{"heartbeat 5s", "half the TTL", "3s"}},
		{"metadata of 1,025 bytes", metadata("a", strings.Repeat("x", 1000), "b", strings.Repeat("x", 23)),
			[]string{"metadata", "1025 bytes", "at most 1024"}},
		{"metadata with NUL", metadata("a", "\x00"), []string{"metadata", `"a"`, "NUL"}},
		{"metadata not UTF-8", metadata(notUTF8, ""), []string{"metadata", `"abc\xff"`, "UTF-8"}},
		{"empty schema", []pgleases.Option{pgleases.WithSchema("")}, []string{"schema", `""`}},
		{"schema of 64 bytes", []pgleases.Option{pgleases.WithSchema(strings.Repeat("s", 64))},
			[]string{"schema", `"sss`, "64", "63"}},
		{"schema with NUL", []pgleases.Option{pgleases.WithSchema("a\x00b")}, []string{"schema", `"a\x00b"`, "NUL"}},
		{"schema not UTF-8", []pgleases.Option{pgleases.WithSchema(notUTF8)},
			[]string{"schema", `"abc\xff"`, "UTF-8"}},
		{"a bad schema after a good one", []pgleases.Option{pgleases.WithSchema("good"), pgleases.WithSchema("")},
			[]string{"schema", `""`}},
	} {
		client, err := pgleases.NewClient(t.Context(), pool, c.options...)
		refused(t, "NewClient: "+c.what, err, c.texts...)
		opened, err2 := pgleases.Open(t.Context(), url, c.options...)
		refused(t, "Open: "+c.what, err2, c.texts...)
		if client != nil || opened != nil {
			t.Errorf("%s: something came with the error: %v, %v", c.what, client, opened)
		}
		if !slices.Contains(c.texts, "schema") {
			continue // Migrate and Schema take no such option, be it good or bad: see the next test
		}
		refused(t, "Migrate: "+c.what, pgleases.Migrate(t.Context(), pool, c.options...), c.texts...)
		ddl, err := pgleases.Schema(c.options...)
		refused(t, "Schema: "+c.what, err, c.texts...)
		if ddl != "" {
			t.Errorf("%s: something came with the error: %q", c.what, ddl)
		}
	}
}

func TestMigrateAndSchemaRejectUnrelatedOptions(t *testing.T) {
	noGoroutineLeft(t)
	pool := testkit.Must(pgxpool.New(t.Context(), closedURL(t)))(t)
	defer pool.Close()
	for name, option := range map[string]pgleases.Option{
		"WithClientID":     pgleases.WithClientID("a"),
		"WithTTL":          pgleases.WithTTL(6 * time.Second),
		"WithHeartbeat":    pgleases.WithHeartbeat(2 * time.Second),
		"WithMetadata":     pgleases.WithMetadata(nil),
		"WithLogger":       pgleases.WithLogger(nil),
		"WithoutMigration": pgleases.WithoutMigration(),
		"WithPolling":      pgleases.WithPolling(),
		"WithoutSamples":   pgleases.WithoutSamples(),
		"WithConnConfig":   pgleases.WithConnConfig(pool.Config().ConnConfig),
	} {
		options := []pgleases.Option{pgleases.WithSchema("s"), option}
		err := pgleases.Migrate(t.Context(), pool, options...)
		refused(t, "Migrate", err, name+" means nothing to Migrate", "only WithSchema does")
		ddl, err := pgleases.Schema(options...)
		refused(t, "Schema", err, name+" means nothing to Schema", "only WithSchema does")
		if ddl != "" {
			t.Errorf("%s: Schema returned the error and %.20q", name, ddl)
		}
	}
	// Also where the value is bad.
	_, err := pgleases.Schema(pgleases.WithTTL(0))
	refused(t, "Schema", err, "WithTTL means nothing to Schema")
}

func TestBadLeaseInputIsRefusedAndLeavesNothing(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t, pgtest.Database(t))
	client := newClient(t, pool)
	for _, c := range []struct {
		what       string
		name       string
		partitions int
		options    []pgleases.LeaseOption
		texts      []string
	}{
		{"N of 0", "orders", 0, nil, []string{`"orders"`, "0 partitions", "1 to 65536"}},
		{"N of -1", "orders", -1, nil, []string{`"orders"`, "-1 partitions", "1 to 65536"}},
		{"N of 65,537", "orders", 65537, nil, []string{`"orders"`, "65537 partitions", "1 to 65536"}},
		{"N above 32 bits", "orders", 1<<32 + 4, nil, []string{`"orders"`, "4294967300 partitions"}},
		{"empty name", "", 4, nil, []string{"lease name", `""`}},
		{"name of 300 bytes", tooLong, 4, nil, []string{"lease name", `"xxx`, "300"}},
		{"name with NUL", "a\x00b", 4, nil, []string{"lease name", `"a\x00b"`, "NUL"}},
		{"name not UTF-8", notUTF8, 4, nil, []string{"lease name", `"abc\xff"`, "UTF-8"}},
		{"empty option", "orders", 4, []pgleases.LeaseOption{{}}, []string{`"orders"`, "option", "empty"}},
		{"weight of -1", "orders", 4, []pgleases.LeaseOption{pgleases.WithWeight(-1)},
			[]string{`"orders"`, "weight -1", "0 to 1000"}},
		{"weight of 1,001", "orders", 4, []pgleases.LeaseOption{pgleases.WithWeight(1001)},
			[]string{`"orders"`, "weight 1001", "0 to 1000"}},
		{"negative handoff delay", "orders", 4, []pgleases.LeaseOption{pgleases.WithHandoffDelay(-time.Second)},
			[]string{`"orders"`, "handoff delay -1s"}},
		{"negative rebalance delay", "orders", 4, []pgleases.LeaseOption{pgleases.WithRebalanceDelay(-time.Second)},
			[]string{`"orders"`, "rebalance delay -1s", "0 to 1h"}},
		{"rebalance delay of a day", "orders", 4, []pgleases.LeaseOption{pgleases.WithRebalanceDelay(24 * time.Hour)},
			[]string{`"orders"`, "rebalance delay 24h", "0 to 1h"}},
		{"negative restart grace", "orders", 4, []pgleases.LeaseOption{pgleases.WithRestartGrace(-time.Second)},
			[]string{`"orders"`, "restart grace -1s", "0 to 1h"}},
		{"restart grace of two hours", "orders", 4, []pgleases.LeaseOption{pgleases.WithRestartGrace(2 * time.Hour)},
			[]string{`"orders"`, "restart grace 2h", "0 to 1h"}},
		{"restart grace without an ID", "orders", 4, []pgleases.LeaseOption{pgleases.WithRestartGrace(time.Minute)},
			[]string{`"orders"`, "restart grace 1m0s without an ID of its own", "WithClientID"}},
		{"ceiling of 0", "orders", 4, []pgleases.LeaseOption{pgleases.WithMaxPartitions(0)},
			[]string{`"orders"`, "ceiling of 0 partitions", "1 to 4"}},
		{"ceiling above the number", "orders", 4, []pgleases.LeaseOption{pgleases.WithMaxPartitions(5)},
			[]string{`"orders"`, "ceiling of 5 partitions", "1 to 4"}},
		{"negative drain timeout", "orders", 4, []pgleases.LeaseOption{pgleases.WithDrainTimeout(-time.Second)},
			[]string{`"orders"`, "drain timeout -1s"}},
	} {
		lease, err := client.Lease(t.Context(), c.name, c.partitions, c.options...)
		refused(t, c.what, err, c.texts...)
		if lease != nil {
			t.Errorf("%s: a lease came with the error", c.what)
		}
	}
	registered(t, pool, "1 clients, 0 leases, 0 members, 0 partitions")
}

func TestTheLongestNamesWork(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t, pgtest.EmptyDatabase(t))
	name, schema := strings.Repeat("ß", 127)+"!", strings.Repeat("s", 63)
	client := newClient(t, pool, pgleases.WithClientID(name), pgleases.WithSchema(schema))
	lease := joined(t, client, name, 4, pgleases.WithWeight(1000))
	untilOwns(t, lease, 4)
	query := "SELECT count(*) FROM " + schema + ".status WHERE owner = $1 AND lease = $1"
	if got := testkit.Value[int](t, pool, query, name); got != 4 {
		t.Errorf("the view shows %d partitions, not 4", got)
	}
}

func TestALeaseIsRefusedThatIsTooLargeForTheTTL(t *testing.T) {
	t.Parallel()
	client := newClient(t, testkit.Pool(t, pgtest.Database(t)), pgleases.WithTTL(time.Second))
	_, err := client.Lease(t.Context(), "orders", 16_385)
	refused(t, "N of 16,385", err, `"orders"`, "16385 partitions", "TTL of at least 1.001s", "not 1s", "WithTTL")
}

func TestBadWeightIsRefusedAndLeavesTheOld(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t, pgtest.Database(t))
	lease := joined(t, newClient(t, pool), "orders", 4, pgleases.WithWeight(7))
	refused(t, "-1", lease.SetWeight(t.Context(), -1), `"orders"`, "weight -1", "0 to 1000")
	refused(t, "1001", lease.SetWeight(t.Context(), 1001), `"orders"`, "weight 1001", "0 to 1000")
	if got := testkit.Value[int](t, pool, "SELECT weight FROM pgleases.members"); got != 7 {
		t.Errorf("the weight is %d, not 7", got)
	}
}

func TestPartitionsOutOfRangeAreNotOwned(t *testing.T) {
	t.Parallel()
	lease := joined(t, newClient(t, testkit.Pool(t, pgtest.Database(t))), "orders", 4)
	untilOwns(t, lease, 4)
	hold := lease.Hold(t.Context())
	defer hold.Release()
	for _, n := range []int{-1, 4, 1 << 40, -1 << 40} {
		if lease.Owns(n) {
			t.Errorf("it owns %d", n)
		}
		for _, partition := range []func(int) (pgleases.Partition, bool){lease.Partition, hold.Partition} {
			if p, owned := partition(n); owned || p != (pgleases.Partition{}) {
				t.Errorf("it owns %d: %v", n, p)
			}
		}
	}
}

func TestMisfittingSchemaErrorNamesTheRemedy(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := testkit.Pool(t, pgtest.EmptyDatabase(t))
	without := func() error {
		_, err := pgleases.NewClient(ctx, pool, pgleases.WithoutMigration())
		return err
	}
	with := func() error {
		_, err := pgleases.NewClient(ctx, pool)
		return err
	}
	err := without()
	refused(t, "missing", err, `"pgleases"`, "missing", "pgleases.Migrate", "pgleases.Schema")
	wraps(t, "missing", err, pgleases.ErrSchema)
	if testkit.Value[int](t, pool, "SELECT count(*) FROM pg_namespace WHERE nspname = 'pgleases'") != 0 {
		t.Error("it was made all the same")
	}

	testkit.OK(t, pgleases.Migrate(ctx, pool))
	testkit.Execute(t, pool, "UPDATE pgleases.schema_version SET version = 0, min_code = 0")
	err = without()
	refused(t, "too old", err, `"pgleases"`, "version 0", "pgleases.Migrate", "pgleases.Schema")
	wraps(t, "too old", err, pgleases.ErrSchema)

	testkit.Execute(t, pool, "UPDATE pgleases.schema_version SET version = 99, min_code = 99")
	for what, open := range map[string]func() error{
		"too new, WithoutMigration": without,
		"too new":                   with,
		"too new, Migrate":          func() error { return pgleases.Migrate(ctx, pool) },
	} {
		err := open()
		refused(t, what, err, `"pgleases"`, "version 99", "newer version of this library")
		wraps(t, what, err, pgleases.ErrSchema)
	}
	registered(t, pool, "0 clients, 0 leases, 0 members, 0 partitions")

	// An application that was rolled back meets a schema that is newer than its code.
	testkit.Execute(t, pool, "UPDATE pgleases.schema_version SET version = 99, min_code = 1")
	for _, options := range [][]pgleases.Option{nil, {pgleases.WithoutMigration()}} {
		client := newClient(t, pool, options...)
		lease := joined(t, client, "orders", 4)
		untilOwns(t, lease, 4)
		shut(t, client)
	}
	testkit.OK(t, pgleases.Migrate(ctx, pool))
	if got := testkit.Value[int](t, pool, "SELECT version FROM pgleases.schema_version"); got != 99 {
		t.Errorf("the version is %d now, not 99", got)
	}
}

// Logs in as a role that has only the rights of PUBLIC.
func TestMissingRightsErrorNamesTheSchema(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	url := pgtest.EmptyDatabase(t)
	pool := testkit.Pool(t, url)
	role, password := "pgleases_test_"+strings.ToLower(rand.Text()), rand.Text()
	testkit.Execute(t, pool, fmt.Sprintf("CREATE ROLE %s LOGIN PASSWORD '%s'", role, password))
	t.Cleanup(func() { // before the database goes
		drop := fmt.Sprintf("DROP OWNED BY %[1]s; DROP ROLE %[1]s", role)
		_, err := pool.Exec(context.Background(), drop, pgx.QueryExecModeSimpleProtocol)
		if err != nil {
			t.Error(err)
		}
	})
	direct, _ := pgtest.DirectURL(url) // a pooler may log in as another user
	config := testkit.Must(pgx.ParseConfig(direct))(t)
	config.User, config.Password = role, password
	open := func(options ...pgleases.Option) error {
		client, err := pgleases.NewClient(ctx, pool, append(options, pgleases.WithConnConfig(config))...)
		if err == nil {
			shut(t, client)
		}
		return err
	}
	err := open()
	refused(t, "no schema, and no right to make one", err, fmt.Sprintf(`pgleases: open client: schema does not fit: `+
		`schema "pgleases" is missing in this database, and role %q may not create it; `+
		`run pgleases migrate as a role that may, or GRANT CREATE ON DATABASE %s TO %[1]s`, role, config.Database))
	wraps(t, "no schema, and no right to make one", err, pgleases.ErrSchema)
	err = open(pgleases.WithoutMigration())
	refused(t, "no schema", err, `"pgleases"`, "missing", "pgleases.Migrate")

	testkit.OK(t, pgleases.Migrate(ctx, pool))
	err = open()
	refused(t, "no right to the schema", err, "the role lacks rights: ", "ERROR: permission denied",
		`; give it what pgleases grants ROLE --for=application prints for schema "pgleases"`)
	testkit.Execute(t, pool, "GRANT USAGE ON SCHEMA pgleases TO "+role)
	err = open()
	refused(t, "no right to read the version", err, `schema "pgleases"`, "permission denied")
	testkit.Execute(t, pool, "GRANT SELECT ON pgleases.schema_version TO "+role)
	testkit.Execute(t, pool, "UPDATE pgleases.schema_version SET version = 0")
	err = open()
	refused(t, "too old, and no right to migrate it", err, "version 0", "needs 1", "pgleases.Migrate", "SQLSTATE 42501",
		fmt.Sprintf("role %q may not create or change it", role))
	wraps(t, "too old, and no right to migrate it", err, pgleases.ErrSchema)
	testkit.Execute(t, pool, "UPDATE pgleases.schema_version SET version = 1")
	err = open()
	refused(t, "no right to register", err, `schema "pgleases"`, "permission denied", "register")
	registered(t, pool, "0 clients, 0 leases, 0 members, 0 partitions")
}

func TestNoPoolAndNoServerAreErrors(t *testing.T) {
	noGoroutineLeft(t)
	_, err := pgleases.NewClient(t.Context(), nil)
	refused(t, "nil pool", err, "pool is nil")
	refused(t, "nil pool", pgleases.Migrate(t.Context(), nil), "pool is nil")

	for connString, wrong := range map[string]string{
		"postgres://%zz":        "percent-encoded",
		"port=x":                "invalid port",
		"postgres://host:port/": "invalid port",
		"mysql://localhost":     "invalid keyword/value",
	} {
		_, err := pgleases.Open(t.Context(), connString)
		refused(t, connString, err, "open client: cannot read the connection string", wrong)
	}

	address := closedPort(t)
	_, err = pgleases.Open(t.Context(), "postgres://somebody:secret@"+address+"/orders?sslmode=disable")
	refused(t, "no listener", err, "connect", address)
	if strings.Contains(err.Error(), "secret") {
		t.Errorf("the error contains the password: %v", err)
	}
}

// The error about a malformed connection string, or about a password with an @, does not contain
// what may be the password.
func TestErrorsHideThePassword(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	secret := func(what string, err error) {
		t.Helper()
		if err == nil || strings.Contains(err.Error(), "cret") {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, url := range []string{
		"postgres://u:se/cret@127.0.0.1:1/d",
		"postgres://u:se#cret@127.0.0.1:1/d",
		"postgres://u:se%cret@127.0.0.1:1/d",
		"postgres://u:se@cret@127.0.0.1:1/d",
		"postgres://u:se@cret@127.0.0.1:1,127.0.0.1:2/d",
		"postgres://u:cret@127.0.0.1:no/d",
		"postgres://u:cret@127.0.0.1:1/d",
		"host=127.0.0.1 port=no password=cret",
		"host=127.0.0.1 password = cret port=no",
		"host=127.0.0.1 port=1 password='se cret'",
	} {
		_, err := pgleases.Open(ctx, url)
		secret("Open "+url, err)
		config, err := pgxpool.ParseConfig(url)
		if err != nil {
			continue // without a connection string there is no pool
		}
		pool := testkit.Must(pgxpool.NewWithConfig(ctx, config))(t)
		defer pool.Close()
		_, err = pgleases.NewClient(ctx, pool)
		secret("NewClient "+url, err)
		secret("Migrate "+url, pgleases.Migrate(ctx, pool))
	}
}

// A server that accepts connections and never answers: only ctx ends the attempt.
func TestOpeningEndsWithItsContext(t *testing.T) {
	noGoroutineLeft(t)
	listener := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer listener.Close()
	url := "postgres://somebody@" + listener.Addr().String() + "/orders?sslmode=disable"
	pool := testkit.Must(pgxpool.New(t.Context(), url))(t)
	defer pool.Close()
	for what, open := range map[string]func(context.Context) error{
		"Open":      func(ctx context.Context) error { _, err := pgleases.Open(ctx, url); return err },
		"NewClient": func(ctx context.Context) error { _, err := pgleases.NewClient(ctx, pool); return err },
		"Migrate":   func(ctx context.Context) error { return pgleases.Migrate(ctx, pool) },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		done := make(chan error, 1)
		go func() { done <- open(ctx) }()
		wraps(t, what, testkit.Receive(t, what+" returns", done), context.DeadlineExceeded)
		cancel()
	}
}

// A client waits for a server that answers after 20 s if its connect_timeout allows that.
func TestOpeningObeysALongConnectTimeout(t *testing.T) {
	t.Parallel()
	for timeout, says := range map[string]string{"30": "starting up", "0": "timeout"} {
		synctest.Test(t, func(t *testing.T) {
			var answers sync.WaitGroup
			defer answers.Wait()
			config := testkit.Must(pgxpool.ParseConfig("host=127.0.0.1 sslmode=disable connect_timeout=" + timeout))(t)
			config.ConnConfig.DialFunc = func(context.Context, string, string) (net.Conn, error) {
				client, server := net.Pipe()
				answers.Go(func() { answersLate(server, 20*time.Second) })
				return client, nil
			}
			pool := testkit.Must(pgxpool.NewWithConfig(t.Context(), config))(t)
			defer pool.Close()
			_, err := pgleases.NewClient(t.Context(), pool)
			refused(t, "connect_timeout="+timeout, err, says)
		})
	}
}

// answersLate is a server that refuses a connection after a while.
func answersLate(conn net.Conn, after time.Duration) {
	defer conn.Close()
	backend := pgproto3.NewBackend(conn, conn)
	if _, err := backend.ReceiveStartupMessage(); err != nil {
		return
	}
	time.Sleep(after)
	backend.Send(&pgproto3.ErrorResponse{
		Severity: "FATAL", Code: "57P03", Message: "the database system is starting up",
	})
	_ = backend.Flush() // an error: the client has given up
}

func TestAContextThatHasEndedAlready(t *testing.T) {
	t.Parallel()
	ended := canceled(errCause)
	url := pgtest.Database(t)
	pool := testkit.Pool(t, url)
	testkit.OK(t, pgleases.Migrate(t.Context(), pool))
	_, err := pgleases.NewClient(ended, pool)
	wraps(t, "NewClient", err, context.Canceled, errCause)
	_, err = pgleases.Open(ended, url)
	wraps(t, "Open", err, context.Canceled, errCause)
	wraps(t, "Migrate", pgleases.Migrate(ended, pool), context.Canceled, errCause)
	registered(t, pool, "0 clients, 0 leases, 0 members, 0 partitions")

	client := newClient(t, pool)
	_, err = client.Lease(ended, "orders", 4)
	wraps(t, "Lease", err, errCause)
	refused(t, "Lease", err, `"orders"`)
	idle := joined(t, client, "idle", 4, pgleases.WithWeight(0))
	wraps(t, "Wait", idle.Wait(ended), errCause)
	wraps(t, "SetWeight", idle.SetWeight(ended, 9), errCause)
	if got := testkit.Value[int](t, pool, "SELECT weight FROM pgleases.members WHERE lease = 'idle'"); got != 0 {
		t.Errorf("the weight is %d, not 0", got)
	}
	wraps(t, "Run", idle.Run(ended, neverCalled(t)), errCause)

	busy := joined(t, client, "busy", 4)
	untilOwns(t, busy, 4)
	if err := busy.Wait(ended); err != nil {
		t.Errorf("Wait for what is there: %v", err)
	}
	p, _ := busy.Partition(0)
	tx := testkit.Must(pool.Begin(t.Context()))(t)
	err = busy.Guard(ended, tx, p)
	wraps(t, "Guard", err, context.Canceled)
	refused(t, "Guard", err, `"busy"`)
	_ = tx.Rollback(t.Context())
	hold := busy.Hold(ended)
	if hold.Context().Err() == nil || context.Cause(hold.Context()) != errCause {
		t.Errorf("the hold's context: %v", context.Cause(hold.Context()))
	}
	hold.Release()

	// What is free is released anyway.
	if err := busy.Leave(ended); err != nil {
		t.Errorf("Leave: %v", err)
	}
	if err := client.Close(ended); err != nil {
		t.Errorf("Close: %v", err)
	}
	registered(t, pool, "0 clients, 2 leases, 0 members, 8 partitions")
	if got := testkit.Value[int](t, pool, "SELECT count(*) FROM pgleases.status WHERE owner IS NOT NULL"); got != 0 {
		t.Errorf("%d partitions are owned, not 0", got)
	}
}

func TestGuardRefusesWhatIsNoOwnershipOfTheLease(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := testkit.Pool(t, pgtest.Database(t))
	client := newClient(t, pool)
	lease, other := joined(t, client, "orders", 4), joined(t, client, "others", 4)
	until(t, "it owns all", func() bool { return len(lease.Values()) == 4 && len(other.Values()) == 4 }, lease, other)
	p, _ := lease.Partition(3)
	foreign, _ := other.Partition(3)
	db := stdlib.OpenDBFromPool(pool)
	defer db.Close()
	for what, partition := range map[string]pgleases.Partition{
		"a Partition of another lease": foreign,
		"the zero Partition":           {},
		"a partition out of range":     {Number: 4, Epoch: p.Epoch},
		"a negative partition":         {Number: -1, Epoch: p.Epoch},
		"a negative epoch":             {Number: 3, Epoch: -p.Epoch},
		"a number above 32 bits":       {Number: 1<<32 + 3, Epoch: p.Epoch},
		"a number below 32 bits":       {Number: -1<<32 + 3, Epoch: p.Epoch},
		"the next epoch":               {Number: 3, Epoch: p.Epoch + 1},
	} {
		for call, err := range map[string]error{
			"Guard":    guard(t, pool, lease, partition),
			"GuardSQL": guardSQL(t, db, lease, partition),
		} {
			wraps(t, call+": "+what, err, pgleases.ErrNotOwner)
			refused(t, call+": "+what, err, `"orders"`,
				fmt.Sprintf("partition %d ", partition.Number), fmt.Sprintf("epoch %d", partition.Epoch))
		}
	}
	// One that was stored and read back is as good as the one that was got.
	testkit.OK(t, guard(t, pool, lease, pgleases.Partition{Number: p.Number, Epoch: p.Epoch}))

	refused(t, "nil tx", lease.Guard(ctx, nil, p), `"orders"`, "nil")
	refused(t, "nil sql.Tx", lease.GuardSQL(ctx, nil, p), `"orders"`, "nil")
	tx := testkit.Must(pool.Begin(ctx))(t)
	testkit.OK(t, tx.Rollback(ctx))
	err := lease.Guard(ctx, tx, p)
	wraps(t, "a transaction that has ended", err, pgx.ErrTxClosed)
	refused(t, "a transaction that has ended", err, `"orders"`)

	// A transaction that reads only cannot lock, and says so.
	readOnly := pgx.TxOptions{AccessMode: pgx.ReadOnly}
	err = pgx.BeginTxFunc(ctx, pool, readOnly, func(tx pgx.Tx) error { return lease.Guard(ctx, tx, p) })
	refused(t, "a read-only transaction", err, `"orders"`, "read-only")
	if store.Code(err) != "25006" || errors.Is(err, pgleases.ErrNotOwner) {
		t.Errorf("a read-only transaction: %v, not SQLSTATE 25006 alone", err)
	}
	// In a transaction that has failed, Guard fails with the transaction's error.
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		_, _ = tx.Exec(ctx, "SELECT 1/0")
		return lease.Guard(ctx, tx, p)
	})
	if store.Code(err) != "25P02" {
		t.Errorf("a failed transaction: %v", err)
	}
}

func TestAPartitionThatIsOfNoLeaseIsHarmless(t *testing.T) {
	t.Parallel()
	got := fmt.Sprint(pgleases.Partition{}, pgleases.Partition{Number: 7, Epoch: 1 << 32})
	if got != "0@0 7@4294967296" {
		t.Errorf("partitions are printed as %q", got)
	}
	wraps(t, "the zero Partition's context", context.Cause(pgleases.Partition{}.Context()), pgleases.ErrNotOwner)
}

// The texts of the TTL's limits follow the code.
func TestTextsNameTheLimits(t *testing.T) {
	limits := strings.ReplaceAll(fmt.Sprintf("%v to %v", engine.MinTTL, engine.MaxTTL), "m0s", "m")
	for file, text := range map[string]string{
		"options.go":          "valid values are " + limits,
		"cmd/pgleases/run.go": "keeps its partitions: " + limits + `"`,
	} {
		content := strings.ReplaceAll(readFile(t, file), "\n// ", " ")
		if !strings.Contains(content, text) {
			t.Errorf("%s does not say %q", file, text)
		}
	}
}
