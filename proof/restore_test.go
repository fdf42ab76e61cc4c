//go:build unix

package proof_test

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/timeguard"
	"github.com/pgleases/pgleases/proof/oracle"
	"github.com/pgleases/pgleases/proof/pgserver"
	"github.com/pgleases/pgleases/proof/tally"
)

// TestRestoreStepsKeepOneOwner runs the steps of docs/restore.md as they are written there, while
// clients work.
func TestRestoreStepsKeepOneOwner(t *testing.T) {
	if brief() {
		t.Skip("has servers of its own, which need pg_dump")
	}
	t.Parallel()
	for name, first := range map[string]string{
		"beside":   "createdb app_restored",
		"in place": "pg_restore --exit-on-error --clean",
		"again":    `psql -v ON_ERROR_STOP=1 -d app -c 'DROP SCHEMA pgleases CASCADE'`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			timeguard.Run(t, func(t *timeguard.Try) { restoring(t, steps(t, first)) })
		})
	}
}

// steps returns the block of shell commands in docs/restore.md that begins like that.
func steps(t testing.TB, first string) string {
	t.Helper()
	page := string(testkit.Must(os.ReadFile("../docs/restore.md"))(t))
	for _, block := range regexp.MustCompile("(?s)\n```sh\n(.*?)```\n").FindAllStringSubmatch(page, -1) {
		if strings.HasPrefix(block[1], first) {
			return block[1]
		}
	}
	t.Fatalf("docs/restore.md has no block that begins with %q", first)
	return ""
}

// restoring runs the steps beside clients whose owners have changed since the dump.
func restoring(t *timeguard.Try, steps string) {
	server := pgserver.Private(t)
	shell := shellOf(t, server)
	shell("createdb app")
	pool := testkit.Pool(t, inDatabase(t, server.URL(), "app"), func(c *pgxpool.Config) { c.MaxConns = 10 })
	leases := make(map[string]*pgleases.Lease)
	var clients []*pgleases.Client
	open := func() {
		id := pgleases.WithClientID(fmt.Sprint("client-", len(clients)))
		c := testkit.Must(pgleases.NewClient(t.Context(), pool, id, pgleases.WithTTL(2*time.Second), quietly(t)))(t)
		t.Cleanup(func() { _ = c.Close(canceled(nil)) }) // the database may be gone
		clients = append(clients, c)
		leases[c.ID()] = joined(t, c, "orders", 32, pgleases.WithHandoffDelay(0))
	}
	owned := func() (n int) {
		for _, l := range leases {
			n += len(l.Values())
		}
		return n
	}
	for range 6 {
		open()
	}
	logs := watched(t, leases)
	until(t, "all is owned", func() bool { return owned() == 32 })
	shell("pg_dump --format=custom --file=app.dump app")

	open()
	late := watched(t, map[string]*pgleases.Lease{"client-6": leases["client-6"]})
	until(t, "the late client has its share", func() bool { return len(leases["client-6"].Values()) >= 4 })
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	testkit.OK(t, clients[0].Close(ctx))
	until(t, "the others own all", func() bool { return owned() == 32 })
	// The sessions of the dump expire before.
	dumped := testkit.Value[time.Time](t, pool, "SELECT max(expires_at) FROM pgleases.clients")
	until(t, "the sessions of the dump have expired", func() bool {
		return testkit.Value[bool](t, pool, "SELECT clock_timestamp() > $1", dumped)
	})

	before := time.Now()
	shell(steps)
	t.Logf("the steps took %v", time.Since(before))
	highest := highestEpoch(leases)
	until(t, "all is owned under higher epochs", func() bool { return owned() == 32 && lowestEpoch(leases) > highest })
	report := oracle.Check(append(logs(), late()...))
	tally.Fault(t, "restore of a dump")
	weighed(t, report)
	t.Logf("%v; owned again %v after the steps began", report, time.Since(before))
	testkit.OK(t, report.Err())
}

func highestEpoch(leases map[string]*pgleases.Lease) (highest int64) {
	for _, l := range leases {
		for n := range l.NumPartitions() {
			if p, owned := l.Partition(n); owned {
				highest = max(highest, p.Epoch)
			}
		}
	}
	return max(highest, 1<<32-1) // of the first server generation
}

func lowestEpoch(leases map[string]*pgleases.Lease) int64 {
	lowest := int64(1) << 62
	for _, l := range leases {
		for n := range l.NumPartitions() {
			if p, owned := l.Partition(n); owned {
				lowest = min(lowest, p.Epoch)
			}
		}
	}
	return lowest
}

// shellOf returns a function that runs shell commands with the server's programs and the command
// pgleases, in a directory of its own.
func shellOf(t testing.TB, server *pgserver.Server) func(commands string) {
	t.Helper()
	dir := t.TempDir()
	bin := filepath.Join(dir, "bin")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(bin, "pgleases"),
		"github.com/pgleases/pgleases/cmd/pgleases")
	build.Dir = ".." // the module that has the command
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the command: %v: %s", err, text)
	}
	host, port := address(t, server.URL())
	return func(commands string) {
		t.Helper()
		run := exec.CommandContext(t.Context(), "sh", "-e", "-c", commands)
		run.Dir = dir
		path := strings.Join([]string{bin, server.Bin(), os.Getenv("PATH")}, ":")
		run.Env = append(os.Environ(), "PATH="+path, "PGHOST="+host, fmt.Sprintf("PGPORT=%d", port),
			"PGUSER=postgres", "DATABASE_URL="+inDatabase(t, server.URL(), "app"))
		if text, err := run.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s\n%s", err, text, commands)
		}
	}
}

// inDatabase returns the URL of another database of the server.
func inDatabase(t testing.TB, server, name string) string {
	t.Helper()
	u := testkit.Must(url.Parse(server))(t)
	u.Path = "/" + name
	return u.String()
}
