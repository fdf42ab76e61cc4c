//go:build linux

package supervise

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/testkit/command"
)

const jdbc = "/usr/share/java/postgresql.jar"

// An interpreter runs programs of a kind.
type interpreter struct {
	names []string // commands, of which one succeeds with the arguments probe
	probe []string
	args  []string // before the program's file
	file  string
	debs  string
}

var (
	python   = []string{"python3", "/usr/bin/python3"}
	withJDBC = []string{"-p", jdbc, "--describe-module", "org.postgresql.jdbc"}
)

// The interpreters of the programs on the page, by language or driver.
var interpreters = map[string]interpreter{
	"python":    {python, []string{"-c", "import psycopg2"}, nil, "worker.py", "python3-psycopg2"},
	"sh":        {[]string{"sh"}, []string{"-c", "psql --version"}, nil, "worker.sh", "postgresql-client"},
	"js":        {[]string{"node"}, []string{"--version"}, nil, "worker.js", "nodejs"},
	"java":      {[]string{"java"}, []string{"--list-modules"}, nil, "Status.java", "default-jdk-headless"},
	"ruby":      {[]string{"ruby"}, []string{"--version"}, nil, "worker.rb", "ruby"},
	"psycopg 3": {python, []string{"-c", "import psycopg"}, nil, "worker.py", "python3-psycopg"},
	"node-postgres": {[]string{"node"}, []string{"-e", "require('pg')"}, nil, "worker.js",
		"node-pg, or npm install pg"},
	"JDBC": {[]string{"java"}, withJDBC, []string{"-cp", jdbc}, "Worker.java",
		"default-jdk-headless libpostgresql-jdbc-java"},
	"Ruby's pg": {[]string{"ruby"}, []string{"-e", "require 'pg'"}, nil, "worker.rb", "ruby-pg"},
}

// The programs around the lines of the page's table of drivers, which replace GUARD.
var drivers = map[string]string{
	"psycopg 3": `
import os, time, psycopg
lease, partition, epoch = os.environ["PGLEASES_LEASE"], int(os.environ["PGLEASES_PARTITION"]), int(os.environ["PGLEASES_EPOCH"])
with psycopg.connect(os.environ["DATABASE_URL"]) as db, db.cursor() as cursor:
    GUARD
    cursor.execute("UPDATE orders SET shipped = true WHERE partition = %s", (partition,))
`,
	"node-postgres": `
const { Client } = require('pg')
async function main() {
  const { PGLEASES_LEASE: lease, PGLEASES_PARTITION: partition, PGLEASES_EPOCH: epoch } = process.env
  const client = new Client({ connectionString: process.env.DATABASE_URL })
  await client.connect()
  await client.query('BEGIN')
  GUARD
  await client.query('UPDATE orders SET shipped = true WHERE partition = $1', [partition])
  await client.query('COMMIT')
  await client.end()
}
main().catch((err) => { console.error(err); process.exit(1) })
`,
	"JDBC": `
class Worker {
    public static void main(String[] args) throws Exception {
        var env = System.getenv();
        try (var db = java.sql.DriverManager.getConnection(env.get("JDBC_URL"))) {
            db.setAutoCommit(false);
            var guard = db.prepareStatement("GUARD");
            guard.setString(1, env.get("PGLEASES_LEASE"));
            guard.setInt(2, Integer.parseInt(env.get("PGLEASES_PARTITION")));
            guard.setLong(3, Long.parseLong(env.get("PGLEASES_EPOCH")));
            guard.execute();
            db.createStatement().execute("UPDATE orders SET shipped = true WHERE partition = " + env.get("PGLEASES_PARTITION"));
            db.commit();
        }
    }
}
`,
	"Ruby's pg": `
require 'pg'
lease, partition, epoch = ENV.values_at('PGLEASES_LEASE', 'PGLEASES_PARTITION', 'PGLEASES_EPOCH')
PG.connect(ENV.fetch('DATABASE_URL')).transaction do |connection|
  GUARD
  connection.exec_params('UPDATE orders SET shipped = true WHERE partition = $1', [partition])
end
`,
}

// programs returns the programs of the page by kind: a language, or a driver.
func programs(t *testing.T) (kinds, codes []string) {
	t.Helper()
	page := string(testkit.Must(os.ReadFile("../../../../docs/languages.md"))(t))
	for _, block := range regexp.MustCompile("(?s)```([a-z]+)\n(.*?)\n```").FindAllStringSubmatch(page, -1) {
		kinds, codes = append(kinds, block[1]), append(codes, block[2])
	}
	for _, row := range regexp.MustCompile("(?m)^\\| ([^|]+) \\| `(.*?guard.*?)`").FindAllStringSubmatch(page, -1) {
		kinds, codes = append(kinds, row[1]), append(codes, strings.Replace(drivers[row[1]], "GUARD", row[2], 1))
	}
	return kinds, codes
}

// command returns the command that runs a file.
func (i interpreter) command(t *testing.T, file string) []string {
	t.Helper()
	for _, name := range i.names {
		if exec.Command(name, i.probe...).Run() == nil {
			return append(append([]string{name}, i.args...), file)
		}
	}
	t.Fatal("this machine lacks what the page needs: apt-get install " + i.debs)
	return nil
}

// The programs of docs/languages.md do under pgleases run what the page says. With an old epoch,
// those that write write nothing.
func TestLanguagesPageRuns(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	kinds, codes := programs(t)
	if len(kinds) != 10 {
		t.Fatalf("the page has programs for %q", kinds)
	}
	for n, kind := range kinds {
		writes := strings.Contains(codes[n], "pgleases.guard")
		t.Run(kind+map[bool]string{true: " writes", false: " reads the socket"}[writes], func(t *testing.T) {
			t.Parallel()
			dir, database := t.TempDir(), pgtest.OwnerURL(pgtest.MigratedDatabase(t))
			file := filepath.Join(dir, interpreters[kind].file)
			program := interpreters[kind].command(t, file)
			testkit.OK(t, os.WriteFile(file, []byte(codes[n]), 0o600))
			env, pool := append(command.Database(database), "JDBC_URL="+jdbcURL(t, database)), testkit.Pool(t, database)
			testkit.Execute(t, pool, "CREATE TABLE public.orders (partition int, shipped boolean)")
			testkit.Execute(t, pool, "INSERT INTO public.orders SELECT n % 2, false FROM generate_series(1, 10) AS n")
			shipped := func() int {
				return testkit.Value[int](t, pool, "SELECT count(*) FROM public.orders WHERE shipped")
			}
			if writes {
				late := exec.Command(program[0], program[1:]...)
				late.Env = slices.Concat(os.Environ(), env,
					[]string{"PGLEASES_LEASE=orders", "PGLEASES_PARTITION=0", "PGLEASES_EPOCH=1"})
				out, err := late.CombinedOutput()
				if err == nil || !strings.Contains(string(out), "is not owned under epoch 1") || shipped() != 0 {
					t.Errorf("with an old epoch: %v, %d shipped: %s", err, shipped(), out)
				}
			}
			socket := filepath.Join(dir, "s")
			args := []string{"run", "orders", "--ttl", "5m", "--status-socket", socket, "--"}
			c := command.Run(t, env, append(args, program...)...)
			if writes {
				testkit.Until(t, "the orders of partition 0 are shipped", func() bool { return shipped() == 5 })
				return
			}
			epoch := ""
			testkit.Until(t, "it prints the epoch", func() bool {
				if s, served := shown(t, socket); served && len(s.Partitions) == 1 {
					epoch = strconv.FormatInt(s.Partitions[0].Epoch, 10)
				}
				return epoch != "" && regexp.MustCompile(`["']`+epoch+`["']`).MatchString(c.Printed())
			})
		})
	}
}

// jdbcURL returns the URL of a database for JDBC.
func jdbcURL(t *testing.T, database string) string {
	t.Helper()
	c := testkit.Must(pgx.ParseConfig(database))(t)
	return fmt.Sprintf("jdbc:postgresql://%s:%d/%s?user=%s&password=%s", c.Host, c.Port, c.Database, c.User, c.Password)
}
