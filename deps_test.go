package pgleases_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// Whoever imports this package gets pgx and what that needs, and nothing of what its tests use.
func TestOnlyPgxIsNeeded(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{.ImportPath}} {{.Standard}}", ".")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, stderr.String())
	}
	own := []string{
		"github.com/pgleases/pgleases",
		"github.com/pgleases/pgleases/sql",
		"github.com/pgleases/pgleases/internal/store",
		"github.com/pgleases/pgleases/internal/ranges",
		"github.com/pgleases/pgleases/internal/seam",
		"github.com/pgleases/pgleases/internal/ranges",
	}
	foreign := []string{
		"github.com/jackc/pgx/v5", "github.com/jackc/puddle/v2", "github.com/jackc/pgpassfile", "github.com/jackc/pgservicefile",
		"golang.org/x/sync", "golang.org/x/text",
	}
	packages := strings.Split(strings.TrimSpace(string(out)), "\n")
	for _, line := range packages {
		path, standard, _ := strings.Cut(line, " ")
		of := func(module string) bool { return path == module || strings.HasPrefix(path, module+"/") }
		switch {
		case standard == "true":
			if path == "testing" {
				t.Errorf("depends on package %s", path)
			}
		case !slices.Contains(own, path) && !slices.ContainsFunc(foreign, of):
			t.Errorf("depends on package %s", path)
		}
	}
	if !slices.Contains(packages, own[2]+" false") || !slices.Contains(packages, "context true") {
		t.Errorf("the list is not one of dependencies: %v", packages)
	}
}
