package migrations

import (
	"context"
	"database/sql"
	"errors"
	"io/fs"
	"os"
	"testing"
	"testing/fstest"
	"time"

	"github.com/golang-migrate/migrate/v4"
	migratepgx "github.com/golang-migrate/migrate/v4/database/pgx/v5"
	"github.com/golang-migrate/migrate/v4/source/iofs"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	ternmigrate "github.com/jackc/tern/v2/migrate"
	"github.com/pressly/goose/v3"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
)

// A tool applies the migrations in a folder.
type tool struct {
	name  string
	file  string // of the migration
	write func(folder string) error
	apply func(ctx context.Context, url string, folder fs.FS) error
}

var tools = []tool{
	{"goose", "00007_pgleases.sql", writeGoose, applyGoose},
	{"tern", "001_pgleases.sql", writeTern, applyTern},
	{"golang-migrate", "0007_pgleases.up.sql", writeMigrate, applyMigrate},
}

func writeGoose(folder string) error {
	text, err := pgleases.Schema()
	if err != nil {
		return err
	}
	text = "-- +goose Up\n-- +goose StatementBegin\n" + text + "\n-- +goose StatementEnd\n"
	return os.WriteFile(folder+"/00007_pgleases.sql", []byte(text), 0o644)
}

func writeTern(folder string) error {
	text, err := pgleases.Schema()
	if err != nil {
		return err
	}
	return os.WriteFile(folder+"/001_pgleases.sql", []byte(text), 0o644)
}

func writeMigrate(folder string) error {
	text, err := pgleases.Schema()
	if err != nil {
		return err
	}
	return os.WriteFile(folder+"/0007_pgleases.up.sql", []byte(text), 0o644)
}

func applyGoose(ctx context.Context, url string, folder fs.FS) error {
	db, err := sql.Open("pgx", url)
	if err != nil {
		return err
	}
	defer db.Close()
	provider, err := goose.NewProvider(goose.DialectPostgres, db, folder)
	if err != nil {
		return err
	}
	_, err = provider.Up(ctx)
	return err
}

func applyTern(ctx context.Context, url string, folder fs.FS) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	migrator, err := ternmigrate.NewMigrator(ctx, conn, "public.schema_version")
	if err != nil {
		return err
	}
	if err := migrator.LoadMigrations(folder); err != nil {
		return err
	}
	return migrator.Migrate(ctx)
}

func applyMigrate(ctx context.Context, url string, folder fs.FS) error {
	return applyMigrateWith(ctx, url, folder, &migratepgx.Config{})
}

func applyMigrateWith(_ context.Context, url string, folder fs.FS, config *migratepgx.Config) error {
	parsed, err := pgx.ParseConfig(url)
	if err != nil {
		return err
	}
	driver, err := migratepgx.WithInstance(stdlib.OpenDB(*parsed), config)
	if err != nil {
		return err
	}
	source, err := iofs.New(folder, ".")
	if err != nil {
		return errors.Join(err, driver.Close())
	}
	m, err := migrate.NewWithInstance("iofs", source, "pgx5", driver)
	if err != nil {
		return errors.Join(err, driver.Close())
	}
	err = m.Up()
	return errors.Join(append([]error{err}, closed(m)...)...)
}

func closed(m *migrate.Migrate) []error {
	source, database := m.Close()
	return []error{source, database}
}

// database returns the URL of a new database without a pooler.
func database(t *testing.T) string {
	t.Helper()
	url, _ := pgtest.DirectURL(pgtest.EmptyDatabase(t))
	return url
}

func TestEachToolAppliesTheSchemaAndAClientRunsOnIt(t *testing.T) {
	t.Parallel()
	for _, tool := range tools {
		t.Run(tool.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			url, folder := database(t), t.TempDir()
			testkit.OK(t, tool.write(folder))
			if _, err := pgleases.Open(ctx, url, pgleases.WithoutMigration()); !errors.Is(err, pgleases.ErrSchema) {
				t.Fatalf("before the migration a client opened with %v", err)
			}
			testkit.OK(t, tool.apply(ctx, url, os.DirFS(folder)))
			client := testkit.Must(pgleases.Open(ctx, url, pgleases.WithoutMigration()))(t)
			lease := testkit.Must(client.Lease(ctx, "orders", 4))(t)
			if err := lease.Wait(ctx); err != nil {
				t.Error(err)
			}
			if err := client.Close(ctx); err != nil {
				t.Error(err)
			}
			conn := testkit.Must(pgx.Connect(ctx, url))(t)
			defer conn.Close(ctx)
			// The hint of this function contains percent signs; its text must be the same as in the
			// schema.
			_, err := conn.Exec(ctx, "SELECT pgleases.guard('orders', 1, 0)")
			var refused *pgconn.PgError
			const says = `partition 1 of lease "orders" is not owned under epoch 0`
			if !errors.As(err, &refused) || refused.Code != "PL001" || refused.Message != says {
				t.Errorf("guard says %v", err)
			}
		})
	}
}

// What the page warns of does fail. If it no longer fails, the warning can be removed.
func TestWarnedMistakesFail(t *testing.T) {
	t.Parallel()
	text := testkit.Must(pgleases.Schema())(t)
	braced := testkit.Must(pgleases.Schema(pgleases.WithSchema("{{schema")))(t)
	one := func(name, text string) fs.FS { return fstest.MapFS{name: {Data: []byte(text)}} }
	for what, apply := range map[string]func(context.Context, string) error{
		"goose without StatementBegin": func(ctx context.Context, url string) error {
			return applyGoose(ctx, url, one("00007_pgleases.sql", "-- +goose Up\n"+text))
		},
		"golang-migrate with x-multi-statement": func(ctx context.Context, url string) error {
			return applyMigrateWith(ctx, url, one("0007_pgleases.up.sql", text), &migratepgx.Config{
				MultiStatementEnabled: true, MultiStatementMaxSize: migratepgx.DefaultMultiStatementMaxSize})
		},
		"tern with braces in the schema's name": func(ctx context.Context, url string) error {
			return applyTern(ctx, url, one("001_pgleases.sql", braced))
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			if err := apply(t.Context(), database(t)); err == nil {
				t.Error("it works")
			} else {
				t.Logf("%.200v", err)
			}
		})
	}
}
