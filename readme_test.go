package pgleases_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/consumer"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
)

// These files have one Example each, which go doc shows as the function main of a whole program.
var (
	programs = []string{
		"lock/example_program_test.go", "lock/example_report_test.go", "leader/example_test.go",
		"fence/example_program_test.go", "schedule/example_program_test.go", "schedule/example_jobs_test.go",
		"consumer/example_test.go",
	}
	exampleOfProgram = regexp.MustCompile(`(?m)^func Example\w*\(\) \{$`)
	packageOfTest    = regexp.MustCompile(`(?m)^package \w+_test$`)
)

// The pages are README.md, those in docs, and comments of packages. Their code is that of tests and
// examples, word for word but for the indentation.
func TestPagesShowCompiledCode(t *testing.T) {
	t.Parallel()
	compiled := "\n"
	sources := append([]string{
		"pages_test.go", "lock/example_do_test.go", "lock/example_election_test.go", "lock/example_test.go",
		"fence/recipes_test.go", "schedule/example_test.go", "schedule/example_long_test.go",
		"schedule/example_databasesql_test.go", "schedule/scheduletest/docs_test.go",
		"consumer/example_around_test.go", "consumer/example_atleastonce_test.go",
		"consumer/example_table_test.go", "consumer/program_test.go",
		"example_middleware_test.go", "example_state_test.go",
		"leader/example_exit_test.go", "leader/example_probes_test.go",
		"proof/migrations/migrations_test.go", "pgleasestest/example_test.go", "pgleasesprom/example_test.go",
		"examples/calls/main.go", "examples/dashboard/main.go", "examples/first/main.go", "examples/gorm/main.go",
		"examples/kubernetes/main.go", "examples/otel/main.go", "examples/lock/main.go",
		"examples/partners/main.go", "examples/quickstart/main.go", "examples/router/main.go",
		"examples/service/main.go", "examples/service/loading_test.go", "examples/river/move_test.go",
		"examples/state/main.go",
		"adapters/gocron/example_test.go", "adapters/cron/example_test.go", "adapters/clientgo/example_test.go",
	}, programs...)
	for _, source := range sources {
		text := strings.Join(trimmedLines(readFile(t, source)), "\n") + "\n"
		if slices.Contains(programs, source) {
			text = exampleOfProgram.ReplaceAllString(text, "func main() {")
			text = packageOfTest.ReplaceAllString(text, "package main")
		}
		compiled += text
	}
	found := 0
	check := func(page, block string) {
		found++
		if !strings.Contains(compiled, "\n"+strings.Join(trimmedLines(block), "\n")+"\n") {
			t.Errorf("%s: not a part of what is compiled: change the same lines in one of %s:\n%s",
				page, strings.Join(sources, ", "), block)
		}
	}
	for _, page := range pages(t) {
		for _, block := range codeBlocks(t, page, "go") {
			check(page, block)
		}
	}
	for _, page := range []string{
		"adapters/gocron/doc.go", "adapters/cron/doc.go", "adapters/clientgo/doc.go",
		"fence/fence.go", "consumer/doc.go",
	} {
		text := readFile(t, page)
		for _, block := range regexp.MustCompile(`(?m)(?:^//\t.*\n)+`).FindAllString(text, -1) {
			check(page, strings.TrimSpace(strings.ReplaceAll(block, "//\t", "")))
		}
	}
	if found < 20 {
		t.Errorf("only %d blocks of Go found", found)
	}
}

func TestPagesShowSQLThatRuns(t *testing.T) {
	t.Parallel()
	tested := []string{ // they have tests of their own
		"docs/operations.md", "docs/restore.md", "docs/queries.md", "docs/roles.md", "docs/fence.md",
	}
	found := 0
	for _, page := range pages(t) {
		if slices.Contains(tested, page) {
			continue
		}
		blocks := codeBlocks(t, page, "sql")
		if len(blocks) == 0 {
			continue
		}
		pool := testkit.Pool(t, pgtest.EmptyDatabase(t))
		testkit.OK(t, consumer.Migrate(t.Context(), pool))
		for _, block := range blocks {
			found++
			if _, err := pool.Exec(t.Context(), block, pgx.QueryExecModeSimpleProtocol); err != nil {
				t.Errorf("%s: %v:\n%s", page, err, block)
			}
		}
	}
	if found < 3 {
		t.Errorf("only %d blocks of SQL found", found)
	}
}

// The look for the next row of a partition reads the index that the page creates, and sorts nothing.
func TestLookOfMovingPageReadsItsIndex(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t, pgtest.MigratedDatabase(t))
	blocks := strings.Join(codeBlocks(t, "docs/moving.md", "sql"), "\n")
	testkit.Execute(t, pool, blocks, pgx.QueryExecModeSimpleProtocol)
	testkit.Execute(t, pool, `
		INSERT INTO items (customer, done_at)
		SELECT 'customer-' || n, CASE WHEN n % 2 = 0 THEN now() END FROM generate_series(1, 20000) AS n;
		ANALYZE items`, pgx.QueryExecModeSimpleProtocol)
	look := regexp.MustCompile(`(?m)^    (SELECT id FROM items .*)$`).FindStringSubmatch(readFile(t, "docs/moving.md"))
	if look == nil {
		t.Fatal("the page has no look")
	}
	query := strings.ReplaceAll(look[1], "$1", "(SELECT 7)") // as a parameter, its value is not known
	rows := testkit.Must(pool.Query(t.Context(), "EXPLAIN "+query))(t)
	plan := strings.Join(testkit.Must(pgx.CollectRows(rows, pgx.RowTo[string]))(t), "\n")
	if !strings.Contains(plan, " using items_partition_for_") || strings.Contains(plan, "Sort") {
		t.Errorf("the plan is\n%s", plan)
	}
}

// A page that names a test, or the beginning of its name, names an existing test.
func TestTestsThatPagesNameAreThere(t *testing.T) {
	t.Parallel()
	code := ""
	for _, pattern := range []string{
		"*_test.go", "*/*_test.go", "*/*/*_test.go", "*/*/*/*_test.go", "*/*/*/*/*_test.go",
	} {
		files := testkit.Must(filepath.Glob(pattern))(t)
		for _, file := range files {
			code += readFile(t, file)
		}
	}
	named := 0
	for _, page := range append(pages(t), "ARCHITECTURE.md", "CONTRIBUTING.md") {
		for _, name := range regexp.MustCompile(`\bTest[A-Z]\w+`).FindAllString(readFile(t, page), -1) {
			if named++; name != "TestName" && !strings.Contains(code, "\nfunc "+name) {
				t.Errorf("%s: there is no test %s", page, name)
			}
		}
	}
	if named < 40 {
		t.Errorf("only %d tests are named", named)
	}
}

func TestLinksOfPagesLeadSomewhere(t *testing.T) {
	t.Parallel()
	for _, page := range append(pages(t), "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "examples/README.md") {
		for _, match := range regexp.MustCompile(`\]\(([^) ]+)\)`).FindAllStringSubmatch(readFile(t, page), -1) {
			if strings.Contains(match[1], "://") {
				continue
			}
			target, section, _ := strings.Cut(match[1], "#")
			if target == "" {
				target = filepath.Base(page)
			}
			target = filepath.Join(filepath.Dir(page), target)
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: %v", page, err)
			} else if section != "" && !slices.Contains(sections(t, target), section) {
				t.Errorf("%s: %s has no section %q", page, target, section)
			}
		}
	}
}

// Each folder with code is on the page about the architecture, except for examples, the proof, and
// the folders named sql, which only embed files.
func TestArchitectureNamesEachPackage(t *testing.T) {
	t.Parallel()
	_, list, _ := strings.Cut(readFile(t, "ARCHITECTURE.md"), "## Packages\n")
	list, _, _ = strings.Cut(list, "\n## ")
	found := 0
	err := filepath.WalkDir(".", func(path string, entry os.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return err
		}
		if slices.Contains([]string{".git", ".ci", "examples", "proof", "testdata", "node_modules"}, entry.Name()) {
			return filepath.SkipDir
		}
		files, err := filepath.Glob(filepath.Join(path, "*.go"))
		if path == "." || entry.Name() == "sql" || len(files) == 0 {
			return err
		}
		if found++; !strings.Contains(list, "]("+path+")") {
			t.Errorf("ARCHITECTURE.md does not name the package %s", path)
		}
		return err
	})
	testkit.OK(t, err)
	if found < 30 {
		t.Errorf("only %d packages were found", found)
	}
}

// sections returns the names under which links reach the sections of a page.
func sections(t *testing.T, page string) (names []string) {
	t.Helper()
	for _, match := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllStringSubmatch(readFile(t, page), -1) {
		title := regexp.MustCompile(`[^\w -]`).ReplaceAllString(strings.ToLower(match[1]), "")
		names = append(names, strings.ReplaceAll(title, " ", "-"))
	}
	return names
}

// The mapping of keys to partitions never changes: users have stored its results.
func TestDocumentedPartitionsOfKeysHold(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t, pgtest.Database(t))
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
		for n, want := range map[int]int{
			1: vector.ofOne, 128: vector.of128, 1000: vector.of1000, 65536: vector.ofGreates,
		} {
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
	b := testkit.Must(os.ReadFile(name))(t)
	return strings.ReplaceAll(string(b), "\r\n", "\n")
}

// pages returns README.md and the pages in docs.
func pages(t *testing.T) []string {
	t.Helper()
	names := testkit.Must(filepath.Glob("docs/*.md"))(t)
	return append(names, "README.md")
}

// codeBlocks returns a page's blocks of a language, those in lists too.
func codeBlocks(t *testing.T, page, language string) (blocks []string) {
	t.Helper()
	block := regexp.MustCompile("(?ms)^ *```" + language + "\n(.*?)\n *```$")
	for _, match := range block.FindAllStringSubmatch(readFile(t, page), -1) {
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

// Changed is a closed channel after a lease's end: a loop that waits only for it would use a whole
// processor. These are the loops of README.md, in examples that TestPagesShowCompiledCode compares
// with it.
func TestThePrintedLoopsEndWithTheirLease(t *testing.T) {
	t.Parallel()
	loops := map[string]func(context.Context, *pgxpool.Pool, *pgleases.Lease){
		"Values": func(ctx context.Context, _ *pgxpool.Pool, lease *pgleases.Lease) {
			shipOwned(ctx, lease, func(context.Context, int) {})
		},
		"Hold": shipHeld,
		"Run":  func(ctx context.Context, pool *pgxpool.Pool, lease *pgleases.Lease) { _ = shipEach(ctx, pool, lease) },
	}
	ends := map[string]func(*testing.T, *pgxpool.Pool, *pgleases.Client, *pgleases.Lease){
		"the client is closed": func(t *testing.T, _ *pgxpool.Pool, c *pgleases.Client, _ *pgleases.Lease) {
			shut(t, c)
		},
		"the lease is left": func(t *testing.T, _ *pgxpool.Pool, _ *pgleases.Client, l *pgleases.Lease) {
			if err := l.Leave(t.Context()); err != nil {
				t.Error(err)
			}
		},
		"the ID is taken over": func(t *testing.T, pool *pgxpool.Pool, c *pgleases.Client, _ *pgleases.Lease) {
			newClient(t, pool, pgleases.WithClientID(c.ID()))
		},
	}
	url := pgtest.MigratedDatabase(t)
	pool := testkit.Pool(t, url)
	testkit.OK(t, pgleases.Migrate(t.Context(), pool))
	testkit.Execute(t, pool, orders, pgx.QueryExecModeSimpleProtocol)
	for way, loop := range loops {
		for what, end := range ends {
			t.Run(way+", "+what, func(t *testing.T) {
				t.Parallel()
				client := newClient(t, pool,
					pgleases.WithTTL(30*time.Second), pgleases.WithHeartbeat(50*time.Millisecond))
				lease := joined(t, client, t.Name(), 4, pgleases.WithHandoffDelay(0))
				if lease.Err() != nil {
					t.Errorf("a living lease has the error %v", lease.Err())
				}
				ctx := &countedContext{Context: t.Context()}
				done := make(chan error, 1)
				go func() {
					loop(ctx, pool, lease)
					done <- nil
				}()
				testkit.OK(t, lease.Wait(t.Context()))
				end(t, pool, client, lease)
				testkit.Receive(t, "the lease ends", lease.Done())
				before := ctx.looks.Load()
				testkit.Receive(t, "the loop ends", done)
				if passes := ctx.looks.Load() - before; passes > 2 {
					t.Errorf("%d passes after the end of the lease", passes)
				}
				if lease.Err() == nil {
					t.Error("a lease that ended has no error")
				}
			})
		}
	}
}

// A countedContext counts how often it is asked whether it has ended, which each pass of a loop
// does.
type countedContext struct {
	context.Context
	looks atomic.Int64
}

func (c *countedContext) Err() error {
	c.looks.Add(1)
	return c.Context.Err()
}
