package pgleases_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// Whoever imports a package gets pgx and what that needs, and nothing of what its tests use; with package schedule also a parser of cron expressions.
func TestOnlyPgxIsNeeded(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip(err)
	}
	own := []string{
		"github.com/pgleases/pgleases",
		"github.com/pgleases/pgleases/sql",
		"github.com/pgleases/pgleases/internal/store",
		"github.com/pgleases/pgleases/internal/ranges",
		"github.com/pgleases/pgleases/internal/seam",
	}
	foreign := []string{
		"github.com/jackc/pgx/v5", "github.com/jackc/puddle/v2", "github.com/jackc/pgpassfile", "github.com/jackc/pgservicefile",
		"golang.org/x/sync", "golang.org/x/text",
	}
	for _, test := range []struct {
		folder string
		needs  string // a dependency that it has for sure
		more   []string
	}{
		{".", "github.com/pgleases/pgleases/internal/store", nil},
		{"./lock", "github.com/pgleases/pgleases/internal/seam", []string{"github.com/pgleases/pgleases/lock"}},
		{"./admin", "github.com/pgleases/pgleases/internal/store", []string{"github.com/pgleases/pgleases/admin", "github.com/pgleases/pgleases/admin/sql", "github.com/pgleases/pgleases/schedule/sql"}},
		{"./dashboard", "github.com/pgleases/pgleases/admin", []string{"github.com/pgleases/pgleases/dashboard", "github.com/pgleases/pgleases/admin", "github.com/pgleases/pgleases/admin/sql", "github.com/pgleases/pgleases/schedule/sql"}},
		{"./schedule", "github.com/netresearch/go-cron", []string{"github.com/pgleases/pgleases/schedule", "github.com/pgleases/pgleases/schedule/sql", "github.com/netresearch/go-cron"}},
	} {
		cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{.ImportPath}} {{.Standard}}", test.folder)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%v: %s", err, stderr.String())
		}
		packages := strings.Split(strings.TrimSpace(string(out)), "\n")
		for _, line := range packages {
			path, standard, _ := strings.Cut(line, " ")
			of := func(module string) bool { return path == module || strings.HasPrefix(path, module+"/") }
			switch {
			case standard == "true":
				if path == "testing" {
					t.Errorf("%s depends on package %s", test.folder, path)
				}
			case !slices.Contains(own, path) && !slices.Contains(test.more, path) && !slices.ContainsFunc(foreign, of):
				t.Errorf("%s depends on package %s", test.folder, path)
			}
		}
		if !slices.Contains(packages, test.needs+" false") || !slices.Contains(packages, "time true") {
			t.Errorf("the list of %s is not one of dependencies: %v", test.folder, packages)
		}
	}
}
