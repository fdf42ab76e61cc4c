package pgserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
)

// TB is what pgtest needs of a testing.TB.
type TB interface {
	Name() string
	Helper()
	Cleanup(func())
	Failed() bool
	Logf(format string, args ...any)
	Errorf(format string, args ...any)
	Fatal(args ...any)
}

// shared is the server of a test binary.
var shared struct {
	mu     sync.Mutex // guards the rest, and is held during the start, for which all tests have to wait
	server *Server
	err    error
}

func sharedServer() (*Server, error) {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.server == nil && shared.err == nil {
		shared.server, shared.err = Start(context.Background())
		if shared.err == nil {
			fmt.Fprintln(os.Stderr, "pgtest:", shared.server.Describe())
		}
	}
	return shared.server, shared.err
}

// Database returns the URL of a fresh, empty database, which is dropped, with all sessions in it, when the test ends.
// With EnvRole it has the library's tables, and the URL is App's, unless the test is one of asOwner. It is on a server
// that all tests of the binary share: the one that the environment points to, else one that the first call starts. Safe
// in parallel tests. The test fails at once when there is no server.
func Database(tb TB) string {
	tb.Helper()
	s, err := sharedServer()
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	url, drop, err := s.CreateDatabase(ctx, "pgleases_test")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := drop(); err != nil {
			tb.Errorf("%v", err)
		}
	})
	if isApps(tb.Name()) {
		if err := prepare(ctx, url); err != nil {
			tb.Fatal(fmt.Errorf("pgtest: make the tables for %s: %w", App, err))
		}
		if url, err = withUser(url, App); err != nil {
			tb.Fatal(err)
		}
	}
	return url
}

// ProgramDatabase is Database for a program that makes a schema for tables of its own: App may make schemas in it.
func ProgramDatabase(tb TB) string {
	tb.Helper()
	url := Database(tb)
	if owners := OwnerURL(url); owners != url {
		ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
		defer cancel()
		err := executeOn(ctx, owners, "DO $$ BEGIN EXECUTE format('GRANT CREATE ON DATABASE %I TO "+App+"', current_database()); END $$")
		if err != nil {
			tb.Fatal(err)
		}
	}
	return url
}

// Private returns a server of the test's own, which it may restart, kill and pause; it is stopped when the test ends,
// and the end of its log shown if that failed. The test fails at once when none can be started.
func Private(tb TB, opts ...Option) *Server {
	tb.Helper()
	s, err := Start(context.Background(), append(opts[:len(opts):len(opts)], WithPrivate())...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if tb.Failed() {
			tb.Logf("%s, the end of its log:\n%s", s.Describe(), s.Log())
		}
		if err := s.Stop(); err != nil {
			tb.Errorf("pgtest: stop PostgreSQL: %v", err)
		}
	})
	return s
}

// Main runs the tests of a package, stops the shared server if they used it, and returns the status to exit with:
//
//	func TestMain(m *testing.M) { os.Exit(pgserver.Main(m)) }
//
// Without it the server ends with the binary all the same (see the package's doc), but its folder, some 40 MB, stays
// until the next start.
func Main(m interface{ Run() int }) int {
	code := m.Run()

	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.server != nil {
		if err := shared.server.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "pgtest: stop PostgreSQL:", err)
			code = max(code, 1)
		}
		shared.server, shared.err = nil, errors.New("pgtest: Main has returned")
	}
	return code
}
