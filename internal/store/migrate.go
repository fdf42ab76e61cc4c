package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgleases/pgleases/internal/connect"
)

// Version is the schema version that this code was written for. version.sql writes it too.
const Version = 1

// A Part of a schema is the tables that have a common version: those of the engine, or those of
// another package of this module.
type Part struct {
	Name    string                     // for people; empty: the schema's own
	Table   string                     // the table with its version
	Version int                        // the version that this code was written for
	DDL     func(schema string) string // everything that a migration runs
	Lacks   string                     // queries for other objects that may be missing
}

// Engine is the engine's own part.
var Engine = Part{
	Table: "schema_version", Version: Version,
	DDL: func(schema string) string { return StatementsFor(schema).Schema },
	Lacks: `;
		SELECT 'the row of server' WHERE NOT EXISTS (SELECT FROM %[1]s.server);
		SELECT 'the trigger changed' WHERE NOT EXISTS (
			SELECT FROM pg_catalog.pg_trigger AS t JOIN pg_catalog.pg_class AS c ON c.oid = t.tgrelid
			WHERE t.tgname = 'changed' AND t.tgenabled IN ('O', 'A') AND c.relname = 'leases'
				AND c.relnamespace = (SELECT n.oid FROM pg_catalog.pg_namespace AS n WHERE n.nspname = %[2]s))`,
}

// PartOf is the part of package schedule or consumer, with its files.
func PartOf(name string, files fs.ReadFileFS) Part {
	return Part{
		Name: "package " + name, Table: name + "_version", Version: 1,
		DDL: func(schema string) string { return DDL(files, schema) },
	}
}

// A SchemaError says why this code cannot run on the schema.
type SchemaError struct {
	Text   string
	TooNew bool   // newer code is needed; otherwise a migration is needed
	Grant  string // the statement after which the role could create the schema; empty: that is not what it lacks
}

func (e *SchemaError) Error() string { return e.Text }

// Fits returns nil if this code can run on the schema, otherwise a *SchemaError or the database's
// error.
func (c *Conn) Fits(ctx context.Context) error { return Engine.Fits(ctx, c.Pgx, c.schema) }

// Migrate creates or updates the engine's tables in the connection's schema, see Part.Migrate.
func (c *Conn) Migrate(ctx context.Context) error { return Engine.Migrate(ctx, c.Pgx, c.schema) }

// migrationKey is the key of the advisory lock that serializes migrations.
const migrationKey = "7358216409153"

// Fits reads the part's version in the schema and the oldest code that it supports. It returns nil
// if this code can run there.
func (p Part) Fits(ctx context.Context, conn *pgx.Conn, schema string) error {
	_, err := p.version(ctx, conn, schema)
	return err
}

// version is Fits, and also returns the version: 0 if there is no version.
func (p Part) version(ctx context.Context, conn *pgx.Conn, schema string) (int, error) {
	var v struct{ Version, MinCode int }
	read := "SELECT version, min_code FROM " + p.versionTable(schema)
	err := conn.QueryRow(ctx, read, pgx.QueryExecModeExec).Scan(&v.Version, &v.MinCode) // in any encoding
	switch code := Code(err); {
	case code == "3F000" || code == "42P01" || errors.Is(err, pgx.ErrNoRows):
		return 0, &SchemaError{Text: fmt.Sprintf("%s is missing in this database", p.in(schema))}
	case err != nil:
		return 0, fmt.Errorf("read version of %s: %w", p.in(schema), err)
	case v.Version < p.Version:
		return v.Version, &SchemaError{Text: fmt.Sprintf(
			"%s has version %d, this code needs %d", p.in(schema), v.Version, p.Version)}
	case v.MinCode > p.Version:
		return v.Version, &SchemaError{TooNew: true, Text: fmt.Sprintf(
			"%s has version %d, which serves code for version %d and later, this is for %d",
			p.in(schema), v.Version, v.MinCode, p.Version)}
	}
	return v.Version, nil
}

// Report runs migrate, replaces what differs from this code in the schema, and returns what was
// done. A schema of newer code stays as it is.
func (p Part) Report(
	ctx context.Context, conn *pgx.Conn, schema string, migrate func() error,
) (done string, err error) {
	before, _ := p.version(ctx, conn, schema) // migrate returns its error
	if err := migrate(); err != nil {
		return "", err
	}
	now, err := p.version(ctx, conn, schema)
	done = "nothing to do"
	switch {
	case err != nil:
		return "", err
	case before == 0:
		done = "created"
	case before < now:
		done = fmt.Sprintf("it was version %d", before)
	case now == p.Version:
		replaced, err := p.differs(ctx, conn, schema)
		if err == nil && len(replaced) > 0 {
			done, err = "replaced: "+strings.Join(replaced, ", "), apply(ctx, conn, p.migration(schema, ""))
		}
		if err != nil {
			return "", fmt.Errorf("replace what differs in %s: %w", p.in(schema), err)
		}
	}
	return fmt.Sprintf("%s: version %d, %s", p.in(schema), now, done), nil
}

// differs returns the objects in the schema that differ from this code, or are missing.
func (p Part) differs(ctx context.Context, conn *pgx.Conn, schema string) (names []string, err error) {
	lacks := p.Lacks
	if lacks != "" {
		lacks = fmt.Sprintf(lacks, pgx.Identifier{schema}.Sanitize(), Literal(schema))
	}
	inSchema := "(SELECT n.oid FROM pg_catalog.pg_namespace AS n WHERE n.nspname = " + Literal(schema) + ")"
	results, err := conn.PgConn().Exec(ctx, fmt.Sprintf(`
		SELECT p.proname, p.prosrc FROM pg_catalog.pg_proc AS p WHERE p.pronamespace = %[1]s;
		SELECT c.relname FROM pg_catalog.pg_class AS c WHERE c.relnamespace = %[1]s;
		SELECT p.proname FROM pg_catalog.pg_proc AS p
		WHERE p.pronamespace = %[1]s AND pg_catalog.has_function_privilege('public', p.oid, 'EXECUTE')`, inSchema)+lacks).ReadAll()
	if err != nil {
		return nil, err
	}
	have := make(map[string][]string)
	for _, row := range results[0].Rows {
		have[string(row[0])] = append(have[string(row[0])], string(row[1]))
	}
	missing, changed := Differing(p.DDL(schema), schema, have)
	absent, public := Damaged(p.DDL(schema), schema, firsts(results[1]), firsts(results[2]))
	names = slices.Concat(missing, changed, absent)
	for _, name := range public {
		names = append(names, "the right of PUBLIC to execute "+name)
	}
	for _, result := range results[3:] {
		for _, row := range result.Rows {
			names = append(names, string(row[0]))
		}
	}
	return names, nil
}

// firsts returns the first column of a result.
func firsts(result *pgconn.Result) (values []string) {
	for _, row := range result.Rows {
		values = append(values, string(row[0]))
	}
	return values
}

// Damaged returns the views and indexes that a DDL text creates in a schema and that are not among
// its relations, and the functions that the text keeps from PUBLIC and that PUBLIC may execute.
func Damaged(ddl, schema string, relations, executable []string) (absent, public []string) {
	quoted := regexp.QuoteMeta(pgx.Identifier{schema}.Sanitize())
	created := regexp.MustCompile(
		`(?m)^CREATE (?:OR REPLACE VIEW ` + quoted + `\.|(?:UNIQUE )?INDEX IF NOT EXISTS )(\w+)`)
	for _, match := range created.FindAllStringSubmatch(ddl, -1) {
		if !slices.Contains(relations, match[1]) {
			absent = append(absent, match[1])
		}
	}
	revoked := regexp.MustCompile(`(?m)^REVOKE EXECUTE ON FUNCTION ([^;]+) FROM PUBLIC;`)
	name := regexp.MustCompile(quoted + `\.(\w+)`)
	for _, match := range revoked.FindAllStringSubmatch(ddl, -1) {
		for _, function := range name.FindAllStringSubmatch(match[1], -1) {
			if slices.Contains(executable, function[1]) {
				public = append(public, function[1])
			}
		}
	}
	return absent, public
}

// Differing compares functions by name and body: those that a schema has with those that a DDL text
// creates there.
func Differing(ddl, schema string, have map[string][]string) (missing, changed []string) {
	quoted := pgx.Identifier{schema}.Sanitize()
	// If the files of package sql are run directly, the schema's name is not quoted.
	unquoted := func(body string) string { return strings.ReplaceAll(body, quoted+".", schema+".") }
	// All bodies are quoted in the same way.
	pattern := regexp.MustCompile(`(?s)CREATE OR REPLACE FUNCTION ` + regexp.QuoteMeta(quoted) +
		`\.(\w+)\(.*?\bAS \$pgleases_body_*\$(.*?)\$pgleases_body_*\$;`)
	for _, match := range pattern.FindAllStringSubmatch(ddl, -1) {
		name, body := match[1], unquoted(match[2])
		switch {
		case len(have[name]) == 0:
			missing = append(missing, name)
		case !slices.ContainsFunc(have[name], func(b string) bool { return unquoted(b) == body }):
			changed = append(changed, name)
		}
	}
	return missing, changed
}

// Migrate creates or updates the part if it does not fit. It sends one message, so it is one
// transaction. Racing migrations wait for each other's lock, and only the first is executed,
// because its clients are at work when the second gets the lock. Live clients wait for a migration
// that waits for a table. So the migration waits at most 200 ms for each table, and tries again
// until ctx ends. It also tries again after a deadlock with live clients.
func (p Part) Migrate(ctx context.Context, conn *pgx.Conn, schema string) error {
	err := p.Fits(ctx, conn, schema)
	var misfit *SchemaError
	if !errors.As(err, &misfit) || misfit.TooNew {
		return err
	}
	err = apply(ctx, conn, p.migration(schema, fmt.Sprintf(`DO %[4]s BEGIN
    IF EXISTS (SELECT FROM %[1]s WHERE version OPERATOR(pg_catalog.>=) %[2]d) THEN
        RAISE 'another client has migrated the schema' USING ERRCODE = '%[3]s';
    END IF;
EXCEPTION WHEN undefined_table OR invalid_schema_name THEN -- as it is to be made
END %[4]s;`, p.versionTable(schema), p.Version, codeMigrated, BodyTag("$pgleases_body$", schema))))
	switch code := Code(err); {
	case err == nil || code == codeMigrated:
		return p.Fits(ctx, conn, schema)
	case code == "3F000" || Denied(err):
		return denied(ctx, conn, misfit, err)
	default:
		return fmt.Errorf("create schema %q: %w", schema, err)
	}
}

// denied names the role that may not make a schema fit. If the server refused to create the schema,
// the migration went on, and failed because there is none, so its error would only repeat that.
func denied(ctx context.Context, conn *pgx.Conn, misfit *SchemaError, refusal error) error {
	const names = "SELECT current_user::text, pg_catalog.format(" +
		"'GRANT CREATE ON DATABASE %I TO %I', pg_catalog.current_database(), current_user)"
	var role, grant string
	err := conn.QueryRow(ctx, names, pgx.QueryExecModeExec).Scan(&role, &grant)
	if err != nil {
		return fmt.Errorf("ask which role may not create the schema: %w", err)
	}
	who := fmt.Sprintf("%s, and role %q may not create", misfit.Text, role)
	if Code(refusal) == "3F000" {
		return &SchemaError{Text: who + " it", Grant: grant}
	}
	return &SchemaError{Text: fmt.Sprintf("%s or change it: %v", who, refusal)}
}

// apply sends a migration, again if it waited too long for a table, until ctx ends.
func apply(ctx context.Context, conn *pgx.Conn, migration string) error {
	for {
		_, err := conn.PgConn().Exec(ctx, migration).ReadAll()
		code := Code(err)
		if code != codeLockTimeout && code != codeDeadlock || ctx.Err() != nil {
			return err
		}
		Pause(ctx, time.Second+rand.N(time.Second))
	}
}

// migration returns the message that creates or updates the part, after a check. It is long, so it
// is built only when it is sent.
func (p Part) migration(schema, check string) string {
	ddl := p.DDL(schema)
	own := ownersCheck(ddl, schema)
	begin := connect.ReadCommitted + "; SELECT pg_catalog.pg_advisory_xact_lock(" + migrationKey + "); " +
		"SET LOCAL client_min_messages = warning; SET LOCAL lock_timeout = '200ms'; " +
		"SET LOCAL search_path = pg_catalog, pg_temp;\n"
	return begin + check + "\n" + own + ddl + own
}

// ownersCheck returns a statement that fails if an object with the name of one in the DDL belongs
// neither to the caller nor to a member of the schema's owner. A superuser's migration would use
// it: the table's triggers run with the superuser's rights, and a function keeps its owner, who may
// replace what others call. It runs before the DDL, and after it, because objects may appear
// meanwhile.
func ownersCheck(ddl, schema string) string {
	created := regexp.MustCompile(
		`CREATE (?:OR REPLACE |UNLOGGED )?(?:TABLE|SEQUENCE|VIEW|FUNCTION)(?: IF NOT EXISTS)? ` +
			regexp.QuoteMeta(pgx.Identifier{schema}.Sanitize()) + `\.(\w+)`)
	var names []string
	for _, match := range created.FindAllStringSubmatch(ddl, -1) {
		names = append(names, match[1])
	}
	return fmt.Sprintf(`DO %[1]s
DECLARE
    alien text := (
        SELECT format('%%I in schema %%I belongs to role %%I: let that role migrate, or drop it',
                      o.name, n.nspname, pg_get_userbyid(o.owner))
        FROM pg_namespace AS n
        CROSS JOIN LATERAL (
            SELECT c.relname AS name, c.relowner AS owner FROM pg_class AS c WHERE c.relnamespace = n.oid
            UNION SELECT p.proname, p.proowner FROM pg_proc AS p WHERE p.pronamespace = n.oid
        ) AS o
        WHERE n.nspname = %[2]s AND o.name = ANY ('{%[3]s}') 
          AND NOT pg_has_role(o.owner, n.nspowner, 'MEMBER') AND pg_get_userbyid(o.owner) <> current_user
        LIMIT 1);
BEGIN
    IF alien IS NOT NULL THEN
        RAISE insufficient_privilege USING MESSAGE = alien;
    END IF;
END %[1]s;
`, BodyTag("$pgleases_body$", schema), Literal(schema), strings.Join(names, ","))
}

func (p Part) versionTable(schema string) string { return pgx.Identifier{schema, p.Table}.Sanitize() }

// in names the part in a schema.
func (p Part) in(schema string) string {
	if p.Name == "" {
		return fmt.Sprintf("schema %q", schema)
	}
	return fmt.Sprintf("%s in schema %q", p.Name, schema)
}
