package wrap_test

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pgleases/pgleases/internal/wrap"
)

var errClosed = errors.New("pgleases: closed")

func TestErrorfNamesThePackageOnce(t *testing.T) {
	for _, test := range []struct {
		err  error
		want string
	}{
		{wrap.Errorf("pgleases: join lease %q: %w", "a", errClosed), `pgleases: join lease "a": closed`},
		{wrap.Errorf("schedule: run group %q: %w", "a", wrap.Errorf("pgleases: run lease %q: %w", "b", errClosed)),
			`schedule: run group "a": run lease "b": closed`},
		{wrap.Errorf("pgleases: close: %w", errors.Join(errClosed, errClosed)), "pgleases: close: closed\nclosed"},
		{wrap.Errorf("%w: %w", errClosed, errClosed), "pgleases: closed: closed"},
		{wrap.Errorf("dashboard: list leases: %v", errClosed), "dashboard: list leases: closed"},
	} {
		if test.err.Error() != test.want {
			t.Errorf("got  %s\nwant %s", test.err, test.want)
		}
	}
	if err := wrap.Errorf("pgleases: join lease %q: %w", "a", errClosed); !errors.Is(err, errClosed) {
		t.Errorf("%v does not wrap its cause", err)
	}
}

// A format that begins with the name of a package and wraps an error belongs to Errorf of this
// package: what it wraps may begin with a name too.
func TestHouseErrorsAreWrappedHere(t *testing.T) {
	// The format begins with a name, or with an error that has one, and another error follows.
	named := regexp.MustCompile("^[\"`]((" + strings.Join(wrap.Names, "|") + "|%s): |%w).*%w")
	found := 0
	err := filepath.WalkDir("../..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		if strings.HasPrefix(path, "../../proof/") || strings.HasPrefix(path, "../../internal/pgtest/") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(node ast.Node) bool {
			call, isCall := node.(*ast.CallExpr)
			if !isCall || len(call.Args) == 0 {
				return true
			}
			format := textOf(call.Args[0])
			if !named.MatchString(format) {
				return true
			}
			switch types.ExprString(call.Fun) {
			case "wrap.Errorf":
				found++
			case "fmt.Errorf":
				t.Errorf("%s: %s: this names the package twice if what it wraps begins with a name: use wrap.Errorf", path, format)
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if found == 0 {
		t.Error("no use of wrap.Errorf was found")
	}
}

// textOf returns the literal with which a text begins, with its quotes.
func textOf(text ast.Expr) string {
	switch e := text.(type) {
	case *ast.BasicLit:
		return e.Value
	case *ast.BinaryExpr:
		return textOf(e.X) + textOf(e.Y)
	}
	return ""
}
