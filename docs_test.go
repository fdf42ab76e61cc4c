package pgleases_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"log"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/tests"
)

// The pages in docs show lines of these examples word for word; TestPagesShowCompiledCode sees to that.

func Example_tokens() {
	x := begin()
	defer x.end()
	ctx, databaseURL := x.ctx, x.url
	fetched := 0
	token := func(context.Context) (string, error) {
		fetched++
		return x.pool.Config().ConnConfig.Password, nil
	}

	config, err := pgxpool.ParseConfig(databaseURL)
	if err != nil {
		log.Fatal(err)
	}
	config.BeforeConnect = func(ctx context.Context, c *pgx.ConnConfig) (err error) {
		c.Password, err = token(ctx) // of your cloud's library
		return err
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		log.Fatal(err)
	}
	client, err := pgleases.NewClient(ctx, pool)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(client.Close(ctx), fetched > 0)
	pool.Close()
	// Output: <nil> true
}

func Example_changingN() {
	x := begin()
	defer x.end()
	ctx, pool := x.ctx, x.pool
	client, before := x.client(), x.client()
	old, err := before.Lease(ctx, "orders", 128)
	x.Check(err)
	join := func() (*pgleases.Lease, error) {
		for {
			var old int
			err := pool.QueryRow(ctx, "SELECT count(*) FROM pgleases.members_status WHERE lease = 'orders'").Scan(&old)
			if err != nil {
				return nil, err
			}
			if old == 0 {
				return client.Lease(ctx, "orders-256", 256)
			}
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}
	}
	left := make(chan error, 1)
	go func() { left <- old.Leave(ctx) }()
	lease, err := join()
	x.Check(err)
	x.Check(<-left)
	fmt.Println(lease.Name(), lease.Partitions())
	// Output: orders-256 256
}

func ownersConfig() {
	var ctx context.Context
	var databaseURL string

	config, err := pgxpool.ParseConfig(databaseURL)
	if err != nil {
		log.Fatal(err)
	}
	config.ConnConfig.RuntimeParams["role"] = "pgleases_owner" // not through PgBouncer
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		log.Fatal(err)
	}
	if err := pgleases.Migrate(ctx, pool); err != nil {
		log.Fatal(err)
	}
}

var _ = ownersConfig // the test below does the same

// The roles of roles.md, made as it says: what each may, and may not.
func TestEachRoleOfThePageMayDoItsPartAndNoMore(t *testing.T) {
	t.Parallel()
	url, _ := pgtest.DirectURL(pgtest.EmptyDatabase(t))
	admin := tests.Pool(t, url)
	suffix := "_" + strings.ToLower(rand.Text())
	role := func(name string) string { return "pgleases_" + name + suffix }
	renamed := regexp.MustCompile(`pgleases_(owner|app|reader)\b`)
	sql := func(text string) string { return renamed.ReplaceAllString(text, "pgleases_${1}"+suffix) }
	blocks := codeBlocks(t, "docs/roles.md", "sql")
	if len(blocks) != 2 {
		t.Fatalf("%d blocks of SQL on the page", len(blocks))
	}
	as := func(name string) *pgxpool.Pool {
		return tests.Pool(t, url, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["role"] = role(name) })
	}
	t.Cleanup(func() { // before the database goes
		for _, name := range []string{"reader", "app", "owner"} {
			tests.Execute(t, admin, fmt.Sprintf("DROP OWNED BY %[1]s CASCADE; DROP ROLE %[1]s", role(name)), pgx.QueryExecModeSimpleProtocol)
		}
	})
	tests.Execute(t, admin, sql(blocks[0]), pgx.QueryExecModeSimpleProtocol)
	owner := as("owner")
	tests.OK(t, pgleases.Migrate(t.Context(), owner))
	tests.Execute(t, owner, sql(blocks[1]), pgx.QueryExecModeSimpleProtocol) // nobody gets anything from PUBLIC
	for _, name := range []string{"application", "reader"} {
		tests.Execute(t, owner, sql(readFile(t, "sql/grants/"+name+".sql")), pgx.QueryExecModeSimpleProtocol)
	}

	app := as("app")
	open := func(id string) *pgleases.Lease {
		c := newClient(t, app, pgleases.WithClientID(id), pgleases.WithoutMigration(), pgleases.WithHeartbeat(50*time.Millisecond))
		return joined(t, c, "work", 4, pgleases.WithHandoffDelay(0))
	}
	a, b := open("a"), open("b")
	untilOwns(t, a, 2)
	untilOwns(t, b, 2)
	p := ownership(t, a, numbers(a)[0])
	guarded(t, app, a, p)
	if err := b.SetWeight(t.Context(), 0); err != nil {
		t.Error(err)
	}
	untilOwns(t, a, 4)
	if err := b.Leave(t.Context()); err != nil {
		t.Error(err)
	}
	if n := tests.Value[int](t, app, "SELECT (SELECT count(*) FROM pgleases.status) * (SELECT count(*) FROM pgleases.members_status) + (SELECT count(*) FROM pgleases.locks_status)"); n != 4 {
		t.Errorf("the app reads %d rows, not 4", n)
	}
	refuses := func(pool *pgxpool.Pool, who string, statements ...string) {
		t.Helper()
		for _, statement := range statements {
			if _, err := pool.Exec(t.Context(), statement, pgx.QueryExecModeSimpleProtocol); state(err) != "42501" {
				t.Errorf("%s, %s: %v", who, statement, err)
			}
		}
	}
	refuses(app, "app", "DROP TABLE pgleases.clients", "ALTER TABLE pgleases.leases ADD x int", "TRUNCATE pgleases.members",
		"DELETE FROM pgleases.partitions", "DELETE FROM pgleases.leases", "SELECT pgleases.drop_lease('work', 'why')",
		"CREATE TABLE pgleases.x (y int)", "UPDATE pgleases.schema_version SET version = 2")

	reader := as("reader")
	relations := func(kind string) []string {
		return tests.Value[[]string](t, admin, `SELECT array_agg('pgleases.' || c.relname ORDER BY c.relname) FROM pg_class AS c
			WHERE c.relnamespace = 'pgleases'::regnamespace AND c.relkind = $1`, kind)
	}
	tables, views := relations("r"), relations("v")
	if len(tables) < 7 || len(views) < 2 {
		t.Errorf("only %q and %q are in the schema", tables, views)
	}
	for _, relation := range append(tables, views...) {
		tests.Execute(t, reader, "SELECT * FROM "+relation)
	}
	for _, table := range tables {
		refuses(reader, "reader", "INSERT INTO "+table+" DEFAULT VALUES", "DELETE FROM "+table, "SELECT FROM "+table+" FOR KEY SHARE",
			"TRUNCATE "+table, "DO 'BEGIN LOCK "+table+" IN ROW EXCLUSIVE MODE; END'")
	}
	// As it is by default: all but the verbs of operators.
	tests.Execute(t, owner, "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA pgleases TO PUBLIC")
	revokes := regexp.MustCompile(`(?s)REVOKE EXECUTE ON FUNCTION [^;]*;`).FindAllString(readFile(t, "sql/functions.sql"), -1)
	tests.Execute(t, owner, strings.Join(revokes, "\n"), pgx.QueryExecModeSimpleProtocol)
	refuses(reader, "reader", fmt.Sprintf("SELECT pgleases.guard('work', %d, %d)", p.Number, p.Epoch), "SELECT pgleases.heartbeat(1, 1, 0, 0, 0, 0, '0', '{}')",
		"SELECT pgleases.drop_lease('work', 'why')", "CREATE TABLE pgleases.x (y int)", "DROP VIEW pgleases.status")
	_, queries := headed(t, "docs/operations.md")
	for heading, query := range queries {
		switch heading {
		case "Forcing a client out", "Dropping a lease", "A restored copy of the database":
			refuses(reader, "reader", query)
		default:
			tests.Execute(t, reader, query)
		}
	}
}
