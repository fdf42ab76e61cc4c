//go:build unix

package pgserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/sql"
)

// shared is the server of a test binary.
var shared struct {
	mu     sync.Mutex // guards the rest, and is held during the start, which all tests wait for
	server *Server
	err    error
}

// sharedURL returns the URL in DATABASE_URL, or else of a server that the first call starts.
func sharedURL() (string, error) {
	if foreign := os.Getenv(EnvDatabaseURL); foreign != "" {
		return foreign, nil
	}
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.server == nil && shared.err == nil {
		if shared.server, shared.err = Start(context.Background()); shared.err == nil {
			fmt.Fprintln(os.Stderr, "pgserver:", shared.server.Describe())
		}
	}
	if shared.err != nil {
		return "", shared.err
	}
	return shared.server.URL(), nil
}

// EmptyDatabase returns the URL of a new, empty database, as a role that may do everything in it.
// The database is on the server that all tests of the binary share. It is dropped, with its
// sessions, when the test ends. EmptyDatabase is safe in parallel tests. It fails the test if there
// is no server.
func EmptyDatabase(tb testing.TB) string {
	tb.Helper()
	server, err := sharedURL()
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	url, drop, err := CreateDatabase(ctx, server)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := drop(); err != nil {
			tb.Error(err)
		}
	})
	return url
}

// Database is EmptyDatabase for a test of clients. If PGLEASES_TEST_ROLE is set, the database has
// the library's tables, another role owns them, and the URL is for the role PGLEASES_TEST_ROLE.
func Database(tb testing.TB) string {
	tb.Helper()
	url := EmptyDatabase(tb)
	role := os.Getenv(EnvRole)
	if role == "" {
		return url
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	direct, _ := DirectURL(url)
	if err := prepare(ctx, direct, role); err != nil {
		tb.Fatalf("pgserver: create the tables for %s: %v", role, err)
	}
	url, err := withUser(url, role)
	if err != nil {
		tb.Fatal(err)
	}
	return url
}

// Private returns a server that only this test uses. The server is stopped when the test ends, and
// if the test failed, the end of its log is logged. Private fails the test if the server cannot be
// started.
func Private(tb testing.TB, opts ...Option) *Server {
	tb.Helper()
	s, err := Start(context.Background(), opts...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if tb.Failed() {
			tb.Logf("%s, the end of its log:\n%s", s.Describe(), s.Log())
		}
		if err := s.Stop(); err != nil {
			tb.Errorf("pgserver: stop PostgreSQL: %v", err)
		}
	})
	return s
}

// Shared returns the URL of the server that all tests of the binary share, without a pooler.
func Shared() (string, error) {
	url, err := sharedURL()
	if direct := os.Getenv(EnvDirectURL); direct != "" && err == nil {
		url = direct
	}
	return url, err
}

// Main runs the tests of a package, stops the shared server if the tests used it, and returns the
// exit status:
//
//	func TestMain(m *testing.M) { os.Exit(pgserver.Main(m)) }
func Main(m interface{ Run() int }) int {
	code := m.Run()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.server != nil {
		if err := shared.server.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "pgserver: stop PostgreSQL:", err)
			code = max(code, 1)
		}
		shared.server, shared.err = nil, errors.New("pgserver: Main has returned")
	}
	return code
}

// The roles, with their names in docs/roles.md.
const (
	App         = "pgleases_app"   // of clients, with only the rights of sql/grants/application.sql
	tablesOwner = "pgleases_owner" // of the owner of the tables
)

// MakeApp creates two roles on a server: App, which can connect to every database and has only
// granted rights there, and the owner of the tables.
func MakeApp(ctx context.Context, server string) error {
	if err := execute(ctx, server, "CREATE ROLE "+tablesOwner+" NOLOGIN; CREATE ROLE "+App+" LOGIN"); err != nil {
		return fmt.Errorf("pgserver: create the role %s: %w", App, err)
	}
	return nil
}

// prepare creates the library's tables in an empty database, with the role's rights, which include
// no rights of PUBLIC. The role owns a schema of its name for the application's own tables. That
// schema is first on the default search_path.
func prepare(ctx context.Context, databaseURL, role string) error {
	schema, err := pgleases.Schema()
	if err != nil {
		return err
	}
	grants, err := sql.Files.ReadFile("grants/application.sql")
	if err != nil {
		return err
	}
	return execute(ctx, databaseURL, "REVOKE CREATE ON SCHEMA public FROM PUBLIC; CREATE SCHEMA "+role+" AUTHORIZATION "+role,
		"CREATE SCHEMA pgleases AUTHORIZATION "+tablesOwner+"; SET ROLE "+tablesOwner,
		"SET client_min_messages = warning; "+schema,
		"REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA pgleases FROM PUBLIC",
		string(grants))
}
