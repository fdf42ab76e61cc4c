package pgtest

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/internal/pgtest/pooler"
	"github.com/pgleases/pgleases/sql"
)

// timeout bounds the creation, and the removal, of a database on a running server.
const timeout = 2 * time.Minute

// TB is the part of testing.TB that pgtest uses. Programs import this package too, so it does not
// import testing.
type TB interface {
	Helper()
	Cleanup(func())
	Errorf(format string, args ...any)
	Fatal(args ...any)
}

// Database returns the URL of a new database, which is dropped with all its sessions when the test
// ends. It is empty. With PGLEASES_TEST_ROLE it has the library's tables, and the URL is the
// role's. It is safe for parallel tests. Without a server the test fails at once.
func Database(tb TB) string {
	tb.Helper()
	if os.Getenv(roleVariable) != "" {
		return MigratedDatabase(tb)
	}
	return EmptyDatabase(tb)
}

// MigratedDatabase returns the URL of a database with the library's tables, after more DDL was run
// in it: for a test of clients. With PGLEASES_TEST_ROLE the URL is the role's. Other tests may have
// used the database before; then it was restored: see [Keep].
func MigratedDatabase(tb TB, more ...string) string {
	tb.Helper()
	return lend(tb, strings.Join(more, "\n"), true)
}

// FreshDatabase is MigratedDatabase for a test that changes tables, functions, rights or settings,
// or checks how sessions end: no other test uses the database before or after, and its sessions end
// with their clients.
func FreshDatabase(tb TB, more ...string) string {
	tb.Helper()
	return lend(tb, strings.Join(more, "\n"), false)
}

// makeMigrated creates a database with the library's tables, and runs more DDL. With
// PGLEASES_TEST_ROLE, the URL is that role's.
func makeMigrated(ctx context.Context, more string) (url string, drop func() error, err error) {
	role := os.Getenv(roleVariable)
	if role == "" {
		return makeOwned(ctx, more)
	}
	url, drop, err = newFrom(ctx, "template0")
	if err != nil {
		return "", nil, err
	}
	url, err = forApp(ctx, url, role, more)
	if err != nil {
		err = errors.Join(err, drop())
	}
	return url, drop, err
}

// makeOwned is makeMigrated with the URL of the owner.
func makeOwned(ctx context.Context, more string) (url string, drop func() error, err error) {
	s, err := shared()
	if err != nil {
		return "", nil, err
	}
	if s.copies != "" {
		template, err := migratedTemplate(more)
		if err != nil {
			return "", nil, err
		}
		return newFrom(ctx, template)
	}
	url, drop, err = newFrom(ctx, "template0") // no session can connect to it, which would make the copy fail
	if err != nil {
		return url, drop, err
	}
	err = makeTables(ctx, url, more)
	if err != nil {
		err = errors.Join(err, drop())
	}
	return url, drop, err
}

var templates sync.Map // by the DDL run after that of the library, functions that return a name

// migratedTemplate returns the name of a database with the tables, which no session connects to. It
// is removed with the server.
func migratedTemplate(more string) (string, error) {
	f, _ := templates.LoadOrStore(more, sync.OnceValues(func() (string, error) { return newTemplate(more) }))
	return f.(func() (string, error))()
}

func newTemplate(more string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	databaseURL, _, err := newFrom(ctx, "template0")
	if err != nil {
		return "", err
	}
	u, err := url.Parse(databaseURL)
	if err == nil {
		err = makeTables(ctx, databaseURL, more)
	}
	if err != nil {
		return "", err
	}
	return strings.TrimPrefix(u.Path, "/"), nil
}

// makeTables creates the library's tables as their owner, and runs more DDL.
func makeTables(ctx context.Context, databaseURL, more string) error {
	direct, _ := DirectURL(databaseURL)
	return execute(ctx, direct, "CREATE SCHEMA pgleases", "SET client_min_messages = warning", file("schema.sql"), more)
}

// EmptyDatabase is Database for a test that creates the library's tables itself: the database is
// empty, and the URL its owner's, even with PGLEASES_TEST_ROLE.
func EmptyDatabase(tb TB) string {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	url, drop, err := newFrom(ctx, "template0")
	if err != nil {
		tb.Fatal(fmt.Errorf("pgtest: %w", err))
	}
	tb.Cleanup(func() {
		if err := drop(); err != nil {
			tb.Errorf("pgtest: %v", err)
		}
	})
	return url
}

// NewDatabase is EmptyDatabase for programs, which drop it themselves. ctx does not bound the start
// of a server.
func NewDatabase(ctx context.Context) (url string, drop func() error, err error) {
	return newFrom(ctx, "template0")
}

func newFrom(ctx context.Context, template string) (url string, drop func() error, err error) {
	s, err := shared()
	if err != nil {
		return "", nil, err
	}
	name := "pgleases_test_" + strings.ToLower(rand.Text())
	url, err = withDatabase(s.url, name)
	if err != nil {
		return "", nil, err
	}
	options := s.copies
	if template == "template0" {
		options += encoding()
	}
	if err := s.execute(ctx, "CREATE DATABASE "+name+" TEMPLATE "+template+options); err != nil {
		return "", nil, fmt.Errorf("create a database on %s: %w", s.description, err)
	}
	if template == "template0" {
		err = makeHostile(ctx, url)
	}
	return url, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		// A drop waits until all sessions have closed the database's files. It was seen to wait for 10 s,
		// for a session that had just begun and was not asked; a second drop asks again.
		remove := "DROP DATABASE IF EXISTS " + name + " WITH (FORCE)"
		err := cmp.Or(
			s.execute(ctx, strings.ReplaceAll(endSessions, "$name", name)),
			s.execute(ctx, "SET statement_timeout = '1s'", remove, "RESET statement_timeout", remove),
		)
		if err != nil {
			return fmt.Errorf("drop database %s: %w", name, err)
		}
		return nil
	}, err
}

// endSessions ends the sessions of this user in a database. DROP DATABASE ends all, but then looks
// each 100 ms only whether they have ended.
const endSessions = `DO $$ BEGIN
	FOR tries IN 1..200 LOOP
		PERFORM pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '$name' AND usename = current_user;
		EXIT WHEN NOT FOUND;
		PERFORM pg_stat_clear_snapshot(), pg_sleep(0.002);
	END LOOP;
END $$`

var toServer struct {
	sync.Mutex
	conn *pgx.Conn
}

// execute sends statements on a connection that all tests of this process share, because connecting
// for each costs as much as creating the database. It returns the error of the last.
func (s server) execute(ctx context.Context, statements ...string) (err error) {
	toServer.Lock()
	defer toServer.Unlock()
	if toServer.conn == nil || toServer.conn.Ping(ctx) != nil {
		direct, _ := DirectURL(s.url)
		conn, err := pgx.Connect(ctx, direct)
		if err != nil {
			return err
		}
		toServer.conn = conn
	}
	for _, statement := range statements {
		_, err = toServer.conn.PgConn().Exec(ctx, statement).ReadAll()
	}
	return err
}

// DirectURL returns the URL of the same database past the pooler, and true; without
// PGLEASES_TEST_DIRECT_URL there is no pooler, and it returns databaseURL itself, and false.
func DirectURL(databaseURL string) (string, bool) {
	direct := os.Getenv("PGLEASES_TEST_DIRECT_URL")
	to, err := url.Parse(direct)
	from, err2 := url.Parse(databaseURL)
	if direct == "" || os.Getenv("DATABASE_URL") == "" || errors.Join(err, err2) != nil {
		return databaseURL, false
	}
	to.Path = from.Path
	if from.User.Username() == app {
		to.User = from.User
	}
	return to.String(), true
}

// ParseConfig is pgxpool.ParseConfig for a test's pool. Through a pooler its connections send no
// cancel request, because that ends some versions of PgBouncer, and with it all tests.
func ParseConfig(databaseURL string) (*pgxpool.Config, error) {
	config, err := pgxpool.ParseConfig(databaseURL)
	if err == nil && os.Getenv(settingsVariable) != "" {
		config.ConnConfig.RuntimeParams["client_encoding"] = "UTF8" // as in pgx
		config.AfterConnect = resetPool
	}
	direct, pooled := DirectURL(databaseURL)
	if err == nil && pooled && direct != databaseURL {
		config.BeforeConnect = pooler.WithoutCancels
	}
	return config, err
}

// NewPool is pgxpool.New for an example's pool: see ParseConfig.
func NewPool(ctx context.Context, databaseURL string) (*pgxpool.Pool, error) {
	config, err := ParseConfig(databaseURL)
	if err != nil {
		return nil, err
	}
	return pgxpool.NewWithConfig(ctx, config)
}

const (
	roleVariable = "PGLEASES_TEST_ROLE"

	app         = "pgleases_app"   // the name in sql/grants/application.sql
	tablesOwner = "pgleases_owner" // the name in docs/roles.md
)

// forApp creates the library's tables in an empty database, and returns the URL of a role with the
// rights of sql/grants/application.sql, which gets no rights from PUBLIC. The role has a schema of
// its own for its own tables, and may create others, as applications do. The two roles stay on the
// server. More DDL is run as the database's owner.
func forApp(ctx context.Context, databaseURL, role, more string) (string, error) {
	if role != app {
		return "", fmt.Errorf("%s=%s: it must be %s", roleVariable, role, app)
	}
	u, err := url.Parse(databaseURL)
	if err != nil {
		return "", err
	}
	direct, _ := DirectURL(databaseURL)
	name := strings.TrimPrefix(u.Path, "/")
	err = execute(ctx, direct, append([]string{
		makeRole(tablesOwner + " NOLOGIN"),
		makeRole(app + " LOGIN PASSWORD '" + app + "'"),
		"REVOKE CREATE ON SCHEMA public FROM PUBLIC",
		"CREATE SCHEMA " + app + " AUTHORIZATION " + app,
		"GRANT CREATE ON DATABASE " + name + " TO " + app,
		"CREATE SCHEMA pgleases AUTHORIZATION " + tablesOwner,
		"SET ROLE " + tablesOwner,
		"SET client_min_messages = warning",
		file("schema.sql"),
		"REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA pgleases FROM PUBLIC",
		file("grants/application.sql"),
		"RESET ROLE",
		more,
	}, hostileTo(app, name)...)...)
	if err != nil {
		return "", fmt.Errorf("make the tables for %s: %w", app, err)
	}
	u.User = url.UserPassword(app, app)
	return u.String(), nil
}

// file returns a file of package sql, with the schema under its default name.
func file(name string) string {
	text, err := sql.Files.ReadFile(name)
	if err != nil {
		panic(err) // this build cannot work
	}
	return string(text)
}

// makeRole returns a statement that also succeeds if another test creates the same role at that
// time.
func makeRole(definition string) string {
	return "DO $$ BEGIN CREATE ROLE " + definition + "; EXCEPTION WHEN duplicate_object OR unique_violation THEN END $$"
}

// OwnerURL returns the URL of the same database for a user with all rights in it, for what a test
// does besides running clients. Without PGLEASES_TEST_ROLE that is databaseURL itself.
func OwnerURL(databaseURL string) string {
	u, err := url.Parse(databaseURL)
	if err != nil || u.User.Username() != app {
		return databaseURL
	}
	s, err := shared()
	if err != nil {
		return databaseURL
	}
	owners, err := url.Parse(s.url)
	if err != nil {
		return databaseURL
	}
	u.User = owners.User
	return u.String()
}

// withDatabase returns a URL with another database name.
func withDatabase(serverURL, name string) (string, error) {
	u, err := url.Parse(serverURL)
	if err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" || u.Query().Has("dbname") {
		return "", errors.New("DATABASE_URL must be a URL such as postgres://user:password@host:5432/database")
	}
	u.Path = "/" + name
	return u.String(), nil
}

// execute sends each statement as one message of the simple protocol, on one connection.
func execute(ctx context.Context, databaseURL string, statements ...string) error {
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	for _, statement := range statements {
		if _, err := conn.PgConn().Exec(ctx, statement).ReadAll(); err != nil {
			return err
		}
	}
	return nil
}
