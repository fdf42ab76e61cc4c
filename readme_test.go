package pgleases_test

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
)

func TestReadmeShowsCompiledCode(t *testing.T) {
	t.Parallel()
	compiled := "\n" + strings.Join(trimmedLines(readFile(t, "example_test.go")), "\n") + "\n"
	blocks := codeBlocks(t, "go")
	for _, block := range blocks {
		if !strings.Contains(compiled, "\n"+strings.Join(trimmedLines(block), "\n")+"\n") {
			t.Errorf("not a part of example_test.go:\n%s", block)
		}
	}
	if len(blocks) < 5 {
		t.Errorf("only %d blocks of Go found", len(blocks))
	}
}

func TestReadmeShowsSQLThatRuns(t *testing.T) {
	t.Parallel()
	pool := newPool(t, pgtest.Database(t))
	if err := pgleases.Migrate(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	blocks := codeBlocks(t, "sql")
	for _, block := range blocks {
		if _, err := pool.Exec(t.Context(), block, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Errorf("%v:\n%s", err, block)
		}
	}
	if len(blocks) < 2 {
		t.Errorf("only %d blocks of SQL found", len(blocks))
	}
}

func TestReadmeLinksLeadSomewhere(t *testing.T) {
	t.Parallel()
	for _, match := range regexp.MustCompile(`\]\(([^)]+)\)`).FindAllStringSubmatch(readFile(t, "README.md"), -1) {
		if target := match[1]; !strings.Contains(target, "://") {
			if _, err := os.Stat(target); err != nil {
				t.Error(err)
			}
		}
	}
}

// The mapping of keys to partitions never changes: users have stored its results.
func TestDocumentedPartitionsOfKeysHold(t *testing.T) {
	t.Parallel()
	pool := newPool(t, pgtest.Database(t))
	client := newClient(t, pool)
	small, large := joined(t, client, "small", 128), joined(t, client, "large", 1000)
	document := readFile(t, "doc.go")
	for _, vector := range []struct {
		key              string
		of128, of1000    int
		shown            string
		ofOne, ofGreates int
	}{
		{key: "", of128: 20, of1000: 844, shown: `""`, ofGreates: 7188},
		{key: "a", of128: 74, of1000: 442, shown: "a", ofGreates: 48586},
		{key: "customer-42", of128: 53, of1000: 661, shown: "customer-42", ofGreates: 32565},
		{key: "Grüße", of128: 58, of1000: 266, shown: "Grüße", ofGreates: 17722},
		{key: "🐘", of128: 31, of1000: 279, ofGreates: 56991},
	} {
		if got := small.PartitionFor(vector.key); got != vector.of128 {
			t.Errorf("key %q is in partition %d of 128, not %d", vector.key, got, vector.of128)
		}
		if got := large.PartitionFor(vector.key); got != vector.of1000 {
			t.Errorf("key %q is in partition %d of 1000, not %d", vector.key, got, vector.of1000)
		}
		if line := fmt.Sprintf("//\t%-13s%14d%17d\n", vector.shown, vector.of128, vector.of1000); vector.shown != "" &&
			!strings.Contains(document, line) {
			t.Errorf("doc.go lacks the line %q", line)
		}
		for n, want := range map[int]int{1: vector.ofOne, 128: vector.of128, 1000: vector.of1000, 65536: vector.ofGreates} {
			var got int
			err := pool.QueryRow(t.Context(), "SELECT pgleases.partition_for($1, $2)", pgx.QueryExecModeSimpleProtocol,
				vector.key, n).Scan(&got)
			if err != nil || got != want {
				t.Errorf("SQL: key %q is in partition %d of %d, not %d (%v)", vector.key, got, n, want, err)
			}
		}
	}
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(string(b), "\r\n", "\n")
}

// codeBlocks returns the README's blocks of a language.
func codeBlocks(t *testing.T, language string) (blocks []string) {
	t.Helper()
	block := regexp.MustCompile("(?s)```" + language + "\n(.*?)\n```")
	for _, match := range block.FindAllStringSubmatch(readFile(t, "README.md"), -1) {
		blocks = append(blocks, match[1])
	}
	return blocks
}

func trimmedLines(text string) []string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return lines
}
