package surface

import (
	"flag"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/fence"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/schedule"
)

var write = flag.Bool("write", false, "write the files in testdata")

// expectFile compares a text with a file in testdata, which a change of what is stable has to touch.
func expectFile(t *testing.T, name, text string) {
	t.Helper()
	testkit.SameAsFile(t, filepath.Join("testdata", name), text, *write,
		"it is stable, and has changed. If that is meant, correct the sentence of CHANGELOG.md that became wrong, "+
			"if there is one, and run\n\tgo test ./internal/surface -args -write")
}

var ofUnexported = regexp.MustCompile(`^func \((\w+ )?\*?[a-z]\w*\)`) // a method that users cannot see

// The packages that users import.
func TestGoAPIIsStable(t *testing.T) {
	var text strings.Builder
	for _, dir := range []string{
		".", "lock", "fence", "consumer", "schedule", "schedule/scheduletest", "dashboard", "health", "leader",
		"pgleasestest", "pgleasesprom", "pgleasesotel",
	} {
		all := declarations(t, dir)
		text.WriteString("package " + dir + "\n\n" + strings.Join(all, "\n") + "\n\n")
	}
	expectFile(t, "api.txt", text.String())
}

// What the command prints as JSON: the tags of fields are its names, and constants are its values.
// A type that only the command has is exported for this.
func TestJSONOfTheCommandIsStable(t *testing.T) {
	var text strings.Builder
	for _, dir := range []string{"internal/admin", "cmd/pgleases"} {
		all := slices.DeleteFunc(declarations(t, dir), func(d string) bool {
			printed := strings.Contains(d, "`json:\"") || strings.HasPrefix(d, "const") ||
				strings.HasPrefix(d, "type ") && !strings.Contains(d, "struct")
			return !printed
		})
		text.WriteString("package " + dir + "\n\n" + strings.Join(all, "\n") + "\n\n")
	}
	expectFile(t, "json.txt", text.String())
}

// declarations returns what a package exports, without the bodies of its functions, sorted.
func declarations(t *testing.T, dir string) (all []string) {
	t.Helper()
	for _, source := range testkit.Must(filepath.Glob(filepath.Join("..", "..", dir, "*.go")))(t) {
		if strings.HasSuffix(source, "_test.go") {
			continue
		}
		files := token.NewFileSet()
		f := testkit.Must(parser.ParseFile(files, source, nil, 0))(t)
		ast.FileExports(f)
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.GenDecl:
				if d.Tok == token.IMPORT {
					continue
				}
			case *ast.FuncDecl:
				d.Body = nil
			}
			var one strings.Builder
			testkit.OK(t, format.Node(&one, files, d))
			if !ofUnexported.MatchString(one.String()) {
				all = append(all, one.String())
			}
		}
	}
	slices.Sort(all)
	return all
}

// What psql, other languages and monitoring read and call: tables and views with their columns, and functions.
const surface = `
SELECT string_agg(line, E'\n' ORDER BY line COLLATE "C") || E'\n' FROM (
	SELECT format('%s %s.%s %s', CASE c.relkind WHEN 'v' THEN 'view' ELSE 'table' END, c.relname, a.attname,
	              format_type(a.atttypid, a.atttypmod)) AS line
	FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
	WHERE c.relnamespace = 'pgleases'::regnamespace AND c.relkind IN ('r', 'v')
	UNION ALL
	SELECT format('function %s(%s) %s', p.proname, pg_get_function_arguments(p.oid), pg_get_function_result(p.oid))
	FROM pg_proc AS p WHERE p.pronamespace = 'pgleases'::regnamespace) AS lines`

func TestSQLIsStable(t *testing.T) {
	pool := testkit.Pool(t, pgtest.EmptyDatabase(t)) // the owner's
	testkit.OK(t, pgleases.Migrate(t.Context(), pool))
	testkit.OK(t, schedule.Migrate(t.Context(), pool))
	testkit.Execute(t, pool, fence.Schema("pgleases").SQL())
	expectFile(t, "sql.txt", testkit.Value[string](t, pool, surface))
}
