package pgleases_test

import (
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/schedule"
)

var write = flag.Bool("write", false, "write docs/sql.md again")

const sqlPage = "docs/sql.md"

// The page is generated from the comments on views, functions, tables and columns.
const commentsOfTheSchema = `
WITH described AS (
	SELECT CASE c.relkind WHEN 'v' THEN 1 ELSE 3 END AS part, c.relname::text AS name, obj_description(c.oid, 'pg_class') AS comment,
	       E'\n\n| column | type | meaning |\n|---|---|---|\n' || (
	           SELECT string_agg(format('| %s | %s | %s |', '` + "`' || a.attname || '`" + `', format_type(a.atttypid, a.atttypmod),
	                             replace(coalesce(col_description(c.oid, a.attnum), ''), '|', '\|')), E'\n' ORDER BY a.attnum)
	           FROM pg_attribute AS a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped) AS rest
	FROM pg_class AS c WHERE c.relnamespace = 'pgleases'::regnamespace AND c.relkind IN ('r', 'v')
	UNION ALL
	SELECT 2, p.proname, obj_description(p.oid, 'pg_proc'), ''
	       || E'\n\n    ' || p.proname || '(' || pg_get_function_arguments(p.oid) || ') returns ' || pg_get_function_result(p.oid)
	FROM pg_proc AS p WHERE p.pronamespace = 'pgleases'::regnamespace AND obj_description(p.oid, 'pg_proc') IS NOT NULL
), parts AS (
	SELECT part, string_agg(E'\n\n### ' || name || E'\n\n' || coalesce(comment, '') || rest, '' ORDER BY name COLLATE "C", rest COLLATE "C") AS page
	FROM described GROUP BY part
)
SELECT string_agg(E'\n\n## ' || (ARRAY['Views', 'Functions', 'Tables'])[part] || page, '' ORDER BY part) FROM parts`

func TestSQLPageIsTheComments(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t, pgtest.EmptyDatabase(t))
	testkit.OK(t, pgleases.Migrate(t.Context(), pool))
	testkit.OK(t, schedule.Migrate(t.Context(), pool))
	text := "# SQL reference\n\nMade from the comments in the schema by `go test -run SQLPage . -write`. [Upgrades](stability.md) says what is stable; tables may change." +
		testkit.Value[string](t, pool, commentsOfTheSchema) + "\n"
	if *write {
		testkit.OK(t, os.WriteFile(sqlPage, []byte(text), 0o644))
	}
	if readFile(t, sqlPage) != text {
		t.Errorf("%s is not what the comments say: go test -run SQLPage . -write", sqlPage)
	}
}

// The page of errors names each error that a package exports.
func TestErrorsPageIsComplete(t *testing.T) {
	t.Parallel()
	sections := strings.Split(readFile(t, "docs/errors.md"), "\n## ")
	found := 0
	for title, folder := range map[string]string{"Package pgleases": ".", "Package lock": "lock", "Package schedule": "schedule", "Package admin": "admin"} {
		var section string
		for _, s := range sections {
			if strings.HasPrefix(s, title+"\n") {
				section = s
			}
		}
		listed := make(map[string]bool)
		for _, row := range regexp.MustCompile("(?m)^\\| `(Err\\w+)` \\|").FindAllStringSubmatch(section, -1) {
			listed[row[1]] = true
		}
		declared := make(map[string]bool)
		for _, name := range testkit.Must(filepath.Glob(folder + "/*.go"))(t) {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			for _, object := range testkit.Must(parser.ParseFile(token.NewFileSet(), name, nil, 0))(t).Scope.Objects {
				if object.Kind == ast.Var && strings.HasPrefix(object.Name, "Err") {
					declared[object.Name] = true
				}
			}
		}
		same(t, title, declared, listed)
		found += len(declared)
	}
	if found < 20 {
		t.Errorf("only %d errors found", found)
	}
}
