package pgleases_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// A package links pgx with the modules that pgx needs. Modules of tests, the command and the examples
// are not linked.
func TestOnlyPgxIsNeeded(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip(err)
	}
	const own = "github.com/pgleases/pgleases"
	pgx := []string{
		"github.com/jackc/pgx/v5", "github.com/jackc/puddle/v2",
		"github.com/jackc/pgpassfile", "github.com/jackc/pgservicefile",
		"golang.org/x/sync", "golang.org/x/text",
	}
	tests := map[string]struct {
		modules  []string
		schedule bool // the package links package schedule
		testing  bool // the package links package testing
	}{
		".":                       {modules: pgx},
		"./leader":                {modules: pgx},
		"./consumer":              {modules: pgx},
		"./lock":                  {modules: pgx},
		"./fence":                 {modules: pgx},
		"./dashboard":             {modules: pgx, schedule: true},
		"./health":                {modules: pgx},
		"./pgleasestest":          {modules: pgx},
		"./schedule":              {modules: pgx},
		"./schedule/scheduletest": {modules: pgx, schedule: true, testing: true},
		"./sql":                   {},
		"./consumer/sql":          {},
		"./schedule/sql":          {},
	}
	moduleOf := make(map[string]string) // of a package; the standard library has none
	for _, line := range goList(t, "-deps", "-f", "{{.ImportPath}} {{with .Module}}{{.Path}}{{end}}", "./...") {
		path, module, _ := strings.Cut(line, " ")
		moduleOf[path] = module
	}
	checked := 0
	for _, line := range goList(t, "-f", `{{.Name}} {{.ImportPath}} {{join .Deps " "}}`, "./...") {
		fields := strings.Fields(line)
		name, path, deps := fields[0], fields[1], fields[2:]
		folder := "." + strings.TrimPrefix(path, own)
		test, listed := tests[folder]
		if !listed {
			if name != "main" && !strings.Contains(path, "/internal/") && !strings.HasPrefix(folder, "./examples/") {
				t.Errorf("package %s: users may import it; say above what it compiles in", folder)
			}
			continue
		}
		checked++
		modules := []string{own}
		for _, dep := range deps {
			if module := moduleOf[dep]; module != "" && !slices.Contains(modules, module) {
				modules = append(modules, module)
			}
		}
		slices.Sort(modules)
		want := append(slices.Clone(test.modules), own)
		if slices.Sort(want); !slices.Equal(modules, want) {
			t.Errorf("%s: compiled in are the modules %v, want %v", folder, modules, want)
		}
		if got := slices.Contains(deps, own+"/schedule"); got != test.schedule {
			t.Errorf("%s: package schedule is compiled in: %v, want %v", folder, got, test.schedule)
		}
		if got := slices.Contains(deps, "testing"); got != test.testing {
			t.Errorf("%s: package testing is compiled in: %v, want %v", folder, got, test.testing)
		}
	}
	if checked != len(tests) {
		t.Errorf("%d of %d packages found", checked, len(tests))
	}
}

// goList runs go list and returns the lines that it prints.
func goList(t *testing.T, args ...string) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"list"}, args...)...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list %v: %v: %s", args, err, stderr.String())
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}
