package pgtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
)

// kept are the databases that no test uses, by the DDL that was run in them, and the relay before a
// server of ours: see Keep.
var kept struct {
	sync.Mutex
	free  map[string][]*database // nil: databases are not kept
	relay *relay

	examples []*Example // that End
}

// Keep lets databases go from test to test until end is called, because emptying a database costs a
// fraction of creating one. Sessions of a server of ours are reused too. Behind a pooler, settings
// that a test makes for a session also exist in the next test, as they do in every other
// transaction.
func Keep() (end func() error) {
	kept.Lock()
	defer kept.Unlock()
	kept.free = make(map[string][]*database)
	return func() (err error) {
		for _, x := range kept.examples {
			x.End()
		}
		kept.Lock()
		defer kept.Unlock()
		for _, databases := range kept.free {
			for _, d := range databases {
				err = errors.Join(err, d.end())
			}
		}
		kept.free = nil
		if kept.relay != nil {
			kept.relay.close()
			kept.relay = nil
		}
		return err
	}
}

// lend gives a test a database until the test ends: a kept one, which will be kept again, or a new
// one.
func lend(tb TB, ddl string, keep bool) string {
	tb.Helper()
	kept.Lock()
	keep = keep && kept.free != nil
	var d *database
	free := kept.free[ddl]
	if keep && len(free) > 0 {
		d, kept.free[ddl] = free[len(free)-1], free[:len(free)-1]
	}
	kept.Unlock()
	if d == nil {
		var err error
		d, err = newDatabase(ddl, keep)
		if err != nil {
			tb.Fatal(fmt.Errorf("pgtest: %w", err))
		}
	}
	tb.Cleanup(func() {
		if keep && d.empty() == nil {
			kept.Lock()
			defer kept.Unlock()
			kept.free[ddl] = append(kept.free[ddl], d)
		} else if err := d.end(); err != nil {
			tb.Errorf("pgtest: %v", err)
		}
	})
	return d.url
}

// A database is one that a test uses, or that is kept.
type database struct {
	url  string // for tests
	drop func() error

	// for a database that is to be kept
	name    string
	owner   *pgx.Conn
	relay   *relay // nil: there is no relay before it
	catalog string // a value that changes with each table, function, right and setting
	rows    string // statements that insert the initial rows
}

func newDatabase(ddl string, keep bool) (_ *database, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	d := new(database)
	d.url, d.drop, err = makeMigrated(ctx, ddl)
	if err != nil || !keep {
		return d, err
	}
	direct, _ := DirectURL(d.url)
	d.owner, err = pgx.Connect(ctx, OwnerURL(direct))
	if err == nil {
		d.name = d.owner.Config().Database
		err = d.look(ctx)
	}
	if err == nil && os.Getenv("DATABASE_URL") == "" {
		err = d.through()
	}
	if err != nil {
		err = errors.Join(err, d.end())
	}
	return d, err
}

// through makes tests reach the database through the relay.
func (d *database) through() error {
	u, err := url.Parse(d.url)
	if err != nil {
		return err
	}
	kept.Lock()
	defer kept.Unlock()
	if kept.relay == nil {
		kept.relay, err = newRelay(u.Host)
		if err != nil {
			return err
		}
	}
	d.relay = kept.relay
	u.Host = d.relay.listener.Addr().String()
	d.url = u.String()
	return nil
}

// end drops the database.
func (d *database) end() error {
	if d.owner != nil {
		_ = d.owner.Close(context.Background()) // an error: it is closed already
	}
	return d.drop()
}

// catalogQuery returns a value that changes if anything except rows was changed.
var catalogQuery = func() string {
	var b strings.Builder
	b.WriteString(`SELECT concat_ws(' ', (SELECT (count(*), sum(hashtext((to_jsonb(c)
		- '{relfilenode,relpages,reltuples,relallvisible,relallfrozen,relfrozenxid,relminmxid}'::text[])::text)))
		FROM pg_class AS c WHERE c.oid >= 16384)`)
	for _, table := range []string{
		"attribute WHERE attrelid >= 16384", "attrdef", "constraint", "index", "trigger", "rewrite", "policy",
		"proc WHERE oid >= 16384", "namespace", "type WHERE oid >= 16384", "enum", "extension", "language",
		"publication", "default_acl", "event_trigger", "largeobject_metadata", "statistic", "statistic_ext",
		"operator", "cast", "collation", "description",
		"database WHERE datname = current_database()",
		"db_role_setting WHERE setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database())",
	} {
		b.WriteString(", (SELECT (count(*), sum(xmin::text::bigint)) FROM pg_" + table + ")")
	}
	b.WriteString(")")
	return b.String()
}()

const (
	// rowsQuery returns queries. Each returns a statement that inserts the rows of a table, or sets a
	// sequence.
	rowsQuery = `
		SELECT format('SELECT format(''INSERT INTO %1$s SELECT * FROM jsonb_populate_recordset(NULL::%1$s, %%L);'',
			nullif(jsonb_agg(t), ''[]'')) FROM %1$s AS t HAVING count(*) > 0', c.oid::regclass)
		FROM pg_class AS c WHERE c.relkind = 'r' AND c.oid >= 16384
		UNION ALL SELECT format('SELECT %L', format('SELECT setval(%L, %s, %L);',
			c.oid::regclass, coalesce(s.last_value, s.start_value), s.last_value IS NOT NULL))
		FROM pg_sequences AS s
		JOIN pg_class AS c ON c.relname = s.sequencename AND c.relnamespace = s.schemaname::regnamespace`
	// endStatements end sessions, except those that are to stay, and return how many are left.
	endStatements = `SELECT pg_terminate_backend(pid) ` + others + `; SELECT count(*) ` + others
	others        = `FROM pg_stat_activity WHERE datname = current_database()
		AND pid <> pg_backend_pid() AND backend_type = 'client backend' AND NOT %[1]s`
	// emptyStatements delete all rows.
	emptyStatements = `
		SET session_replication_role = replica;
		SET lock_timeout = '5s';
		SET client_min_messages = warning;
		DO $$
		DECLARE
			t regclass;
		BEGIN
			FOR t IN SELECT c.oid FROM pg_class AS c WHERE c.relkind = 'r' AND c.oid >= 16384 LOOP
				EXECUTE format(CASE WHEN pg_relation_size(t) > 65536 THEN 'TRUNCATE %s CASCADE' ELSE 'DELETE FROM %s' END, t);
			END LOOP;
		END
		$$;`
)

// look notes the contents of the database.
func (d *database) look(ctx context.Context) (err error) {
	d.catalog, err = d.do(ctx, catalogQuery)
	if err != nil {
		return err
	}
	rows, _ := d.owner.Query(ctx, rowsQuery, pgx.QueryExecModeExec)
	queries, err := pgx.CollectRows(rows, pgx.RowTo[string])
	for _, query := range queries {
		put, err := d.do(ctx, query)
		if err != nil {
			return err
		}
		d.rows += put
	}
	return err
}

// empty restores the database; an error: it cannot be restored, or it was changed.
func (d *database) empty() error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	stays := "state = 'idle'" // for a pooler's sessions
	if d.relay != nil {
		stays = "pid = ANY ('{" + strings.Join(d.relay.rest(d.name), ",") + "}')"
	}
	for left := ""; left != "0"; {
		var err error
		left, err = d.do(ctx, fmt.Sprintf(endStatements, stays))
		if err != nil {
			return err
		}
	}
	if d.relay == nil || d.relay.defined(d.name) {
		catalog, err := d.do(ctx, catalogQuery)
		if err != nil || catalog != d.catalog {
			return cmp.Or(err, errors.New("it was changed"))
		}
	}
	_, err := d.do(ctx, emptyStatements+d.rows)
	return err
}

// do returns the one value of the last statement; "": it has no value.
func (d *database) do(ctx context.Context, statements string) (string, error) {
	results, err := d.owner.PgConn().Exec(ctx, statements).ReadAll()
	if err != nil || len(results) == 0 || len(results[len(results)-1].Rows) == 0 {
		return "", err
	}
	return string(results[len(results)-1].Rows[0][0]), nil
}
