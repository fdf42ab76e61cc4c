package pgleases_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/pgleases/pgleases/internal/testkit"
)

// logs.md lists every line that the library logs, with level, message and fields, and every
// name that a line begins with.
func TestEveryLineOfTheLogIsDocumented(t *testing.T) {
	t.Parallel()
	logged, operations := logCalls(t)
	page := readFile(t, "docs/logs.md")
	documented := make(map[string]bool)
	message := ""
	sections := regexp.MustCompile("(?m)^### `(.+)`$|^(DEBUG|INFO|WARN|ERROR)(?:, with (.+))?\\.$")
	for _, line := range sections.FindAllStringSubmatch(page, -1) {
		if line[1] != "" {
			message = line[1]
			continue
		}
		documented[event(line[2], message, strings.Split(strings.ReplaceAll(line[3], "`", ""), ", "))] = true
	}
	same(t, "docs/logs.md", "events", logged, documented)

	_, table, found := strings.Cut(page, "| NAME |")
	if !found {
		t.Fatal("there is no table of names")
	}
	table, _, _ = strings.Cut(table, "\n\n")
	names := make(map[string]bool)
	for _, row := range regexp.MustCompile("(?m)^\\| `(.+?)` \\|").FindAllStringSubmatch(table, -1) {
		names[row[1]] = true
	}
	same(t, "docs/logs.md", "names", operations, names)
	if len(logged) < 10 || len(operations) < 10 {
		t.Errorf("only %d events and %d names were found in the code", len(logged), len(operations))
	}
}

var (
	shownLine  = regexp.MustCompile(`(?m)(DEBUG|INFO|WARN|ERROR) (pgleases: .+?) client=\S+(.*)$`)
	shownField = regexp.MustCompile(` (\w+)=(?:"[^"]*"|\[[^\]]*\]|\S+)`)
)

// Lines of the log that pages show have the message and all fields of a line in the code.
func TestLineOfTheLogInPagesIsLogged(t *testing.T) {
	t.Parallel()
	logged, _ := logCalls(t)
	n := 0
	for _, page := range append(testkit.Must(filepath.Glob("docs/*.md"))(t), "README.md") {
		for _, line := range shownLine.FindAllStringSubmatch(readFile(t, page), -1) {
			var fields []string
			for _, field := range shownField.FindAllStringSubmatch(line[3], -1) {
				fields = append(fields, field[1])
			}
			if n++; !logged[event(line[1], line[2], fields)] {
				t.Errorf("%s: no code logs a line with these fields in this order: correct the page\n%s", page, line[0])
			}
		}
	}
	if n < 6 {
		t.Errorf("only %d lines found", n)
	}
}

var remedyLine = regexp.MustCompile(`\blog[^"]* (?:says|why, such as|for, such as) \\?"([^"\\]+)\\?"`)

// Remedies of doctor, and of the alerts, name lines that the code logs.
func TestRemediesNameLinesOfTheLog(t *testing.T) {
	t.Parallel()
	logged, _ := logCalls(t)
	all := strings.Join(slices.Collect(maps.Keys(logged)), "\n")
	n := 0
	for _, file := range append(testkit.Must(filepath.Glob("internal/admin/*.go"))(t), "pgleasesprom/alerts.yaml") {
		for _, line := range remedyLine.FindAllStringSubmatch(readFile(t, file), -1) {
			if n++; !strings.Contains(all, line[1]) {
				t.Errorf("%s: no code logs %q", file, line[1])
			}
		}
	}
	if n < 6 {
		t.Errorf("only %d lines found", n)
	}
}

// same compares what the code has with the rows of a page.
func same(t *testing.T, page, what string, code, rows map[string]bool) {
	t.Helper()
	for _, s := range slices.Sorted(maps.Keys(code)) {
		if !rows[s] {
			t.Errorf("%s, %s: it lacks a section or row for %s", page, what, s)
		}
	}
	for _, s := range slices.Sorted(maps.Keys(rows)) {
		if !code[s] {
			t.Errorf("%s, %s: it has a section or row for what the code does not have: %s", page, what, s)
		}
	}
}

func event(level, message string, fields []string) string {
	return fmt.Sprintf("%s %q %s", level, message, strings.Join(fields, ","))
}

// logCalls returns all events in the code of the library, and the names of the engine's tasks.
func logCalls(t *testing.T) (events, names map[string]bool) {
	t.Helper()
	events, names = make(map[string]bool), make(map[string]bool)
	for _, pattern := range []string{"*.go", "*/*.go", "internal/store/*.go", "internal/engine/*.go", "internal/locks/*.go", "internal/liveness/*.go"} { // internal's other packages are for tests
		files := testkit.Must(filepath.Glob(pattern))(t)
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			set := token.NewFileSet()
			file := testkit.Must(parser.ParseFile(set, name, nil, 0))(t)
			ast.Inspect(file, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.CallExpr:
					if e, is := logCall(n); is {
						if e == "" {
							t.Errorf("%v: write the message and each field in this call itself, as slog.String(\"name\", ...): this test reads the names from the source", set.Position(n.Pos()))
						} else {
							events[e] = true
						}
					}
				case *ast.ValueSpec:
					for _, task := range taskNames(n) {
						if file.Name.Name == "engine" {
							names[task] = true
						}
					}
				}
				return true
			})
		}
	}
	return events, names
}

var logMethod = regexp.MustCompile(`^(?:(Debug|Info|Warn|Error)(?:Context)?|Log|LogAttrs)$`)

// logCall returns the event of a call that logs; "" if it cannot be determined.
func logCall(call *ast.CallExpr) (e string, is bool) {
	method, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || len(call.Args) == 0 {
		return "", false
	}
	match := logMethod.FindStringSubmatch(method.Sel.Name)
	if of, ok := method.X.(*ast.Ident); match == nil || ok && of.Name == "http" { // http.Error answers a request
		return "", false
	}
	level, args := strings.ToUpper(match[1]), call.Args
	for len(args) > 0 && text(args[0]) == "" { // a context, a level
		if s, ok := args[0].(*ast.SelectorExpr); ok && strings.HasPrefix(s.Sel.Name, "Level") {
			level = strings.ToUpper(strings.TrimPrefix(s.Sel.Name, "Level"))
		}
		args = args[1:]
	}
	if level == "" || len(args) == 0 {
		return "", true
	}
	var fields []string
	if of, ok := method.X.(*ast.CallExpr); ok {
		if logger, ok := of.Fun.(*ast.SelectorExpr); ok && logger.Sel.Name == "runLogger" { // of package schedule, which has these already
			fields = []string{"name", "at"}
		}
	}
	for _, arg := range args[1:] {
		attr, ok := arg.(*ast.CallExpr)
		if !ok || len(attr.Args) == 0 || text(attr.Args[0]) == "" {
			return "", true
		}
		fields = append(fields, text(attr.Args[0]))
	}
	return event(level, text(args[0]), fields), true
}

// text returns a string that is put together of literals and variables, these as their names in
// capitals; "" for anything else.
func text(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		if s, err := strconv.Unquote(e.Value); err == nil && e.Kind == token.STRING {
			return s
		}
	case *ast.BinaryExpr:
		left, right := text(e.X), text(e.Y)
		if name, ok := e.X.(*ast.Ident); ok {
			left = strings.ToUpper(name.Name)
		}
		if name, ok := e.Y.(*ast.Ident); ok {
			right = strings.ToUpper(name.Name)
		}
		if e.Op == token.ADD && left != "" && right != "" {
			return left + right
		}
	}
	return ""
}

// taskNames returns the strings in the table of the engine's names: their names.
func taskNames(table *ast.ValueSpec) (names []string) {
	if name := table.Names[0].Name; name != "tasks" && name != "waitForNotifications" {
		return nil
	}
	ast.Inspect(table, func(n ast.Node) bool {
		if literal, ok := n.(*ast.BasicLit); ok && literal.Kind == token.STRING {
			names = append(names, text(literal))
		}
		return true
	})
	return names
}
