//go:build unix

package pgleases_test

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
)

const (
	suite   = "go test -count=1 -timeout=10m ./..."
	modules = "for module in internal/migrations internal/bench/sticky examples/otel"
	hours   = "may take hours"
	minutes = "takes minutes; its own test measures everything with -quick"
	local   = "DATABASE_URL=postgres://localhost/postgres "
)

// commands are what the pages tell a reader to type into a shell, word for word. What has nothing beside it is run to its end.
var commands = []struct {
	line  string
	until string // it goes on until it has printed this and Ctrl-C is typed
	ci    string // .ci/run runs it, in these words
	why   string // it is not run: why
}{
	{line: `psql -v ON_ERROR_STOP=1 -c 'SET ROLE pgleases_owner' -f sql/grants.sql "$DATABASE_URL"`},
	{line: "go test -run TestName -count=20 ."}, // finds no test: the name stands for another

	{line: local + "go run ./examples/cron -id one", until: "partitions gained"},
	{line: local + "go run ./examples/cron -id two", until: "partitions gained"},
	{line: local + "go run ./examples/leader -id one", until: "one: leading under epoch"},
	{line: local + "go run ./examples/leader -id two", until: "two: not leading"},
	{line: local + "go run ./examples/worker -id worker-1", until: "partitions gained"},
	{line: local + "go run ./examples/worker -id worker-2", until: "partitions gained"},

	{line: "go run ./examples/fleet", ci: "step 'fleet' go run ./examples/fleet"},
	{line: "go test ./...", ci: suite},
	{line: "(cd internal/migrations && go test ./...)", ci: modules},
	{line: "(cd examples/otel && go test ./...)", ci: modules},
	{line: "go run ./internal/pgtest/cmd/pgtest -bouncer -- go test -short ./...", ci: "go run ./internal/pgtest/cmd/pgtest -bouncer -app -- go test "},
	{line: "go run ./internal/pgtest/cmd/pgtest -app -- go test -short ./...", ci: "go run ./internal/pgtest/cmd/pgtest -bouncer -app -- go test "},
	{line: "PGLEASES_TEST_POSTGRES_BIN=/usr/lib/postgresql/17/bin go test ./...", ci: `PGLEASES_TEST_POSTGRES_BIN=$bin "${@:2}"`},
	{line: "PGLEASES_TEST_POSTGRES=docker go test ./...", ci: "step 'tests on Docker' by_way docker .ci/docker"},
	{line: "go test ./internal/store", ci: suite},
	{line: "go test -run TestNoTwoProcesses -v .", ci: suite},
	{line: "go test -run TestACrashAt -v .", ci: suite},
	{line: "go test -run TestAPromoted -v .", ci: suite},
	{line: "go test -run 'TestAWrong.*Clock' -v .", ci: suite},
	{line: "go test -run TestADatabaseThat -v .", ci: suite},
	{line: "go test -run TestHeartbeatsThat -v .", ci: suite},
	{line: "gofmt", ci: "gofmt -l ."},
	{line: "go vet ./...", ci: "step 'vet' go vet ./..."},

	{line: ".ci/run", why: "it runs this test"},
	{line: "go test -run TestNoTwoClientsEver -timeout 1h . -seeds 1000", why: hours},
	{line: "go test -run TestSoak -timeout 3h -soak 1h -soak-report docs/soak.md .", why: hours},
	{line: "go test -run TestSoak -timeout 3h -soak 1h -soak-log soak.jsonl -soak-report docs/soak.md .", why: hours},
	{line: "go test ./internal/model -visit=all -timeout 2h -v", why: hours},
	{line: "go test ./internal/mutants -mutants . -timeout 3h -v", why: hours},
	{line: "go run ./internal/bench", why: minutes},
	{line: "go run ./internal/bench -o docs/figures.md", why: minutes},
	{line: "DATABASE_URL=postgres://... go test ./...", why: "the dots stand for the reader's server"},
	{line: "DATABASE_URL=postgres://... go run .", why: "the same, and for the folder examples/otel"},
	{line: "go get github.com/pgleases/pgleases", why: "needs the network, and a module of the reader's"},
	{line: "apt-get install postgresql", why: "needs root; .ci/run does it where it is missing"},
	{line: "apt-get install postgresql pgbouncer faketime spin gcc", why: "the same"},
	{line: "brew install postgresql@17", why: "needs macOS"},
}

func TestTheTableOfCommandsIsThatOfThePages(t *testing.T) {
	t.Parallel()
	all := append(pages(t), "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
	for _, pattern := range []string{"examples/*/*.md", "examples/*/main.go"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, found...)
	}
	listed := make(map[string]bool)
	for _, c := range commands {
		listed[c.line] = false
	}
	for _, page := range all {
		for _, line := range shellLines(t, page) {
			if _, ok := listed[line]; !ok {
				t.Errorf("%s: the table of commands lacks: %s", page, line)
			}
			listed[line] = true
		}
	}
	ci := readFile(t, ".ci/run")
	tests := testNames(t)
	named := regexp.MustCompile(`^go test -run '?([^ ']+)`) // all of this package
	flags := regexp.MustCompile(` -([\w-]+)`)
	for _, c := range commands {
		if !listed[c.line] {
			t.Errorf("no page has: %s", c.line)
		}
		if !strings.Contains(ci, c.ci) {
			t.Errorf("%s: .ci/run lacks %s", c.line, c.ci)
		}
		match := named.FindStringSubmatch(c.line)
		if match == nil {
			continue
		}
		if match[1] != "TestName" && !slices.ContainsFunc(tests, regexp.MustCompile(match[1]).MatchString) {
			t.Errorf("no test has the name in: %s", c.line)
		}
		for _, name := range flags.FindAllStringSubmatch(c.line, -1) {
			if flag.Lookup(name[1]) == nil && flag.Lookup("test."+name[1]) == nil {
				t.Errorf("there is no flag -%s: %s", name[1], c.line)
			}
		}
	}
}

// testNames returns the names of this package's tests.
func testNames(t *testing.T) (names []string) {
	t.Helper()
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		for _, match := range regexp.MustCompile(`(?m)^func (Test\w+)`).FindAllStringSubmatch(readFile(t, file), -1) {
			names = append(names, match[1])
		}
	}
	return names
}

// Of tests in other packages that may take hours, the package and the flags are tried. Not beside other tests, which may mind the
// compiler's work.
func TestTheCommandsOfThePagesWork(t *testing.T) {
	if brief() {
		t.Skip("it takes seconds to compile what they run")
	}
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip(err)
	}
	env := environment(t)
	for _, c := range commands {
		line := c.line
		switch {
		case c.why == hours && strings.HasPrefix(line, "go test ./internal/"):
			line = strings.Replace(line, "go test", "go test -list .", 1)
		case c.ci != "" || c.why != "":
			continue
		}
		t.Run(line, func(t *testing.T) { // one after the other: examples of the same -id would supersede each other
			if program, _, _ := strings.Cut(line, " "); program == "psql" {
				if _, err := exec.LookPath(program); err != nil {
					t.Skip(err)
				}
			}
			typed(t, line, env, c.until)
		})
	}
}

// environment has a server on localhost as the pages assume it, with a database in which docs/roles.md was followed until there is
// something to grant.
func environment(t *testing.T) []string {
	t.Helper()
	server := pgtest.Private(t)
	url, _, err := server.CreateDatabase(t.Context(), "pgleases_test")
	if err != nil {
		t.Fatal(err)
	}
	execute(t, newPool(t, url), codeBlocks(t, "docs/roles.md", "sql")[0], pgx.QueryExecModeSimpleProtocol)
	owner := newPool(t, url, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["role"] = "pgleases_owner" })
	if err := pgleases.Migrate(t.Context(), owner); err != nil {
		t.Fatal(err)
	}
	config := owner.Config().ConnConfig
	return append(os.Environ(), "DATABASE_URL="+url, fmt.Sprint("PGPORT=", config.Port), "PGUSER="+config.User)
}

// typed runs a command in the folder of the repository, and waits for its end. With until, it types Ctrl-C once that was printed.
func typed(t *testing.T, line string, env []string, until string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience) // it may have to compile all
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", line)
	cmd.Env = env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // signals reach what it starts too
	signal := func(s syscall.Signal) error { return syscall.Kill(-cmd.Process.Pid, s) }
	cmd.Cancel = func() error { return signal(syscall.SIGKILL) }
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	interrupted := false
	for lines := bufio.NewScanner(out); lines.Scan(); {
		fmt.Fprintln(&text, lines.Text())
		if until != "" && !interrupted && strings.Contains(lines.Text(), until) {
			interrupted = true
			if err := signal(syscall.SIGINT); err != nil {
				t.Error(err)
			}
		}
	}
	err = cmd.Wait()
	if interrupted { // go run then fails in any case, and tells whether the program did
		err = nil
	}
	if err != nil || interrupted != (until != "") || strings.Contains(text.String(), "exit status") {
		t.Errorf("%v, interrupted %v:\n%s", err, interrupted, text.String())
	}
}

var (
	fence    = regexp.MustCompile("(?ms)^ *```.*?^ *```$")
	indented = regexp.MustCompile(`(?m)^(?: {4}|//\t)(.+)$`)
	inline   = regexp.MustCompile("`([^`]+)`")
	// What is a command beside the code, the SQL and the names between backticks.
	program = regexp.MustCompile(`^\(?([A-Z_]+=\S* |cd |\S*/run$|(go|gofmt|apt-get|brew|docker|gcc|git|kubectl|make|npm|pgbench|psql|spin)( |$))`)
)

// shellLines returns the commands of a page, or of the comments of a program: in fences of sh, in indented lines, between backticks.
func shellLines(t *testing.T, page string) (lines []string) {
	t.Helper()
	for _, block := range codeBlocks(t, page, "(?:sh|bash|shell|console)") {
		lines = append(lines, trimmedLines(block)...)
	}
	text := fence.ReplaceAllString(readFile(t, page), "")
	for _, match := range indented.FindAllStringSubmatch(text, -1) {
		if strings.HasSuffix(page, ".md") || program.MatchString(match[1]) { // a program's comments have SQL too
			lines = append(lines, strings.TrimSpace(match[1]))
		}
	}
	for _, match := range inline.FindAllStringSubmatch(text, -1) {
		if code := strings.Join(strings.Fields(match[1]), " "); program.MatchString(code) {
			lines = append(lines, code)
		}
	}
	return slices.Compact(lines)
}
