//go:build linux

package supervise

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/testkit/command"
)

// The interpreters of the programs on the page, and how to find out whether one can run them.
var interpreters = map[string]struct {
	names []string
	probe []string
	file  string
	debs  string
}{
	"python": {[]string{"python3", "/usr/bin/python3"}, []string{"-c", "import psycopg2"}, "worker.py", "python3-psycopg2"},
	"sh":     {[]string{"sh"}, []string{"-c", "psql --version"}, "worker.sh", "postgresql-client"},
	"js":     {[]string{"node"}, []string{"--version"}, "worker.js", "nodejs"},
	"java":   {[]string{"java"}, []string{"--list-modules"}, "Status.java", "default-jdk-headless"},
	"ruby":   {[]string{"ruby"}, []string{"--version"}, "worker.rb", "ruby"},
}

// interpreter returns a program that can run a language, or skips the test.
func interpreter(t *testing.T, language string) string {
	t.Helper()
	for _, name := range interpreters[language].names {
		if exec.Command(name, interpreters[language].probe...).Run() == nil {
			return name
		}
	}
	text := "this machine lacks what the page needs for " + language + ": apt-get install " + interpreters[language].debs
	if os.Getenv("CI") != "" {
		t.Fatal(text)
	}
	t.Skip(text)
	return ""
}

// The programs of docs/languages.md do under pgleases run what the page says. With an old epoch,
// those that write write nothing.
func TestLanguagesPageRuns(t *testing.T) {
	t.Parallel()
	page := string(testkit.Must(os.ReadFile("../../../../docs/languages.md"))(t))
	blocks := regexp.MustCompile("(?s)```([a-z]+)\n(.*?)\n```").FindAllStringSubmatch(page, -1)
	if len(blocks) != 6 {
		t.Fatalf("%d programs on the page", len(blocks))
	}
	for _, block := range blocks {
		language, code := block[1], block[2]
		writes := strings.Contains(code, "pgleases.guard")
		t.Run(language+map[bool]string{true: " writes", false: " reads the socket"}[writes], func(t *testing.T) {
			t.Parallel()
			dir, database := t.TempDir(), pgtest.OwnerURL(pgtest.MigratedDatabase(t))
			program, file := interpreter(t, language), filepath.Join(dir, interpreters[language].file)
			testkit.OK(t, os.WriteFile(file, []byte(code), 0o600))
			env, pool := command.Database(database), testkit.Pool(t, database)
			testkit.Execute(t, pool, "CREATE TABLE public.orders (partition int, shipped boolean)")
			testkit.Execute(t, pool, "INSERT INTO public.orders SELECT n % 2, false FROM generate_series(1, 10) AS n")
			shipped := func() int {
				return testkit.Value[int](t, pool, "SELECT count(*) FROM public.orders WHERE shipped")
			}
			if writes {
				late := exec.Command(program, file)
				late.Env = append(append(os.Environ(), env...), "PGLEASES_LEASE=orders", "PGLEASES_PARTITION=0", "PGLEASES_EPOCH=1")
				out, err := late.CombinedOutput()
				if err == nil || !strings.Contains(string(out), "is not owned under epoch 1") || shipped() != 0 {
					t.Errorf("with an old epoch: %v, %d shipped: %s", err, shipped(), out)
				}
			}
			c := command.Run(t, env, "run", "orders", "--status-socket", filepath.Join(dir, "s"), "--", program, file)
			if writes {
				testkit.Until(t, "the orders of partition 0 are shipped", func() bool { return shipped() == 5 })
				return
			}
			epoch := ""
			testkit.Until(t, "it prints the epoch", func() bool {
				if s, served := shown(t, filepath.Join(dir, "s")); served && len(s.Partitions) == 1 {
					epoch = strconv.FormatInt(s.Partitions[0].Epoch, 10)
				}
				return epoch != "" && regexp.MustCompile(`["']`+epoch+`["']`).MatchString(c.Printed())
			})
		})
	}
}
