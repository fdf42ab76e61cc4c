//go:build unix

package pgserver_test

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgleases/pgleases/proof/pgserver"
)

func TestDatabasesAreIsolatedAndDropped(t *testing.T) {
	t.Parallel()
	var urls []string
	t.Run("use", func(t *testing.T) {
		urls = []string{pgserver.Database(t), pgserver.Database(t)}
		for _, url := range urls {
			exec1(t, connect(t, url), "CREATE TABLE mine ()") // and stay connected
		}
	})
	if urls[0] == urls[1] {
		t.Error("both got the same database")
	}
	conn := connect(t, pgserver.Database(t))
	for _, url := range urls {
		config, err := pgx.ParseConfig(url)
		if err != nil {
			t.Fatal(err)
		}
		if n := query(t, conn, "SELECT count(*)::text FROM pg_database WHERE datname = '"+config.Database+"'"); n != "0" {
			t.Errorf("%s outlived its test", config.Database)
		}
	}
}

func TestDatabaseInParallel(t *testing.T) {
	for range 8 {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			exec1(t, connect(t, pgserver.Database(t)), "CREATE TABLE mine ()")
		})
	}
}

// It is what the tests that run with -app rely on.
func TestAppOwnsNothingButItsOwnSchema(t *testing.T) {
	t.Parallel()
	if os.Getenv(pgserver.EnvRole) == "" {
		t.Skip("only command pgtest, with -app, makes the role")
	}
	url := pgserver.Database(t)
	past, _ := pgserver.DirectURL(url)
	for _, url := range []string{url, past} {
		app := connect(t, url)
		if got := query(t, app, "SELECT current_user::text"); got != pgserver.App {
			t.Errorf("connected as %s", got)
		}
		for _, statement := range []string{
			"CREATE SCHEMA x", "CREATE TABLE public.x ()", "CREATE TABLE pgleases.x ()", "DROP TABLE pgleases.clients", "CREATE ROLE x",
			"CREATE DATABASE x", "DELETE FROM pgleases.partitions", "SELECT pgleases.drop_lease('x')", "SET ROLE postgres",
		} {
			_, err := app.Exec(testContext(t), statement)
			var refused *pgconn.PgError
			if !errors.As(err, &refused) || refused.Code != "42501" {
				t.Errorf("%s: %v", statement, err)
			}
		}
		exec1(t, app, "CREATE TABLE mine (); DROP TABLE mine")
		if got := query(t, connect(t, pgserver.OwnerURL(url)), "SELECT rolsuper::text FROM pg_roles WHERE rolname = current_user"); got != "true" {
			t.Error("the owner's URL is not the superuser's")
		}
	}
	if url := pgserver.Private(t).URL(); pgserver.OwnerURL(url) != url {
		t.Error("the superuser's URL of a server of the test's own is another's")
	}
}

func TestCreateDatabaseWithAnyPrefix(t *testing.T) {
	s := pgserver.Private(t)
	for _, prefix := range []string{"", "orders", `it's "quoted" / 100%?`, strings.Repeat("long", 40)} {
		url, drop, err := s.CreateDatabase(testContext(t), prefix)
		if err != nil {
			t.Fatal(err)
		}
		name := query(t, connect(t, url), "SELECT current_database()::text")
		if !strings.HasPrefix(name, prefix[:min(len(prefix), 36)]) {
			t.Errorf("prefix %q gave %q", prefix, name)
		}
		for range 2 {
			if err := drop(); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestDropOnAServerThatIsDownFailsAtOnce(t *testing.T) {
	s := pgserver.Private(t)
	_, drop, err := s.CreateDatabase(testContext(t), "x")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Down(testContext(t), pgserver.Immediate); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	if drop() == nil {
		t.Error("no error")
	}
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("took %v", took)
	}
}
