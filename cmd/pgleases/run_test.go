//go:build linux

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/testkit/command"
)

func TestMain(m *testing.M) { command.Main(m) }

// Wrong arguments are reported without a database, which may be away for another reason.
func TestRunChecksArgumentsWithoutADatabase(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 256)
	env := []string{"DATABASE_URL=postgres://127.0.0.1:1/none"}
	for want, args := range map[string][]string{
		`lease name "" is empty`:                  {""},
		`lease name "a\xff" is not valid UTF-8`:   {"a\xff"},
		`has 256 bytes: 1 to 255`:                 {long},
		`client ID "xxxxxxxxxxxxxxxxxxxx"... has`: {"one", "--id", long, "--once"},
		`client ID "a\xff" is not valid UTF-8`:    {"one", "--id", "a\xff", "--try"},
		`lease "one": 0 partitions`:               {"one", "-n", "0"},
		`lease "one": 65537 partitions`:           {"one", "-n", "65537"},
		`TTL 11m0s is out of range`:               {"one", "--id", "a", "--wait", "1m", "--ttl", "11m"},
		`schema name "" is empty`:                 {"one", "--id", "a", "--once", "--schema="},
	} {
		c := command.Run(t, env, slices.Concat([]string{"run"}, args, []string{"--", "true"})...)
		expectExit(t, c, 125, want)
	}
}

// A name may begin with a dash, as those of other verbs.
func TestRunTakesALeaseThatBeginsWithADash(t *testing.T) {
	t.Parallel()
	env := command.Database(pgtest.MigratedDatabase(t))
	c := command.Run(t, env, "run", "--once", "--", "-x", "--", "sh", "-c", "echo lease $PGLEASES_LEASE")
	expectExit(t, c, 0)
	expectPrinted(t, c.Printed(), `^lease -x$`)
}

func TestRunRefusesWrongFlagsWithARemedy(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	env := command.Database(pgtest.MigratedDatabase(t))
	expectExit(t, command.Run(t, env, "run", "counted", "--once", "--", "true"), 0)
	if t.Failed() {
		t.FailNow() // nothing else would be as it should
	}
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	testkit.OK(t, os.WriteFile(plain, nil, 0o600))
	for _, test := range []struct {
		args string
		code int
		want string
	}{
		{"run", 125, "the lease is missing: pgleases run LEASE -- PROGRAM"},
		{"run -- true", 125, "the lease is missing"},
		{"run one", 125, "the program is missing: pgleases run one -- PROGRAM"},
		{"run one true", 125, `"true" is neither the lease nor behind --`},
		{"run one two -- true", 125, `"two" is neither the lease nor behind --`},
		{"run one --grace -1s -- true", 125, "--grace -1s is negative: give 0 or more"},
		{"run one --grace 2562047h -- true", 125, "--grace 2562047h0m0s is too long: give 8760h0m0s at most"},
		{"run one --id= -- true", 125, "--id is empty"},
		{"run one --status-socket= -- true", 125, "--status-socket is empty: give a path"},
		{"run one --status-socket " + plain + " -- true", 125, "the file exists, and is no socket: give another path"},
		{"run one --status-socket " + plain + "/x -- true", 125, "not a directory"},
		{"run one --status-socket " + filepath.Join(dir, strings.Repeat("x", 120)) + " -- true", 125,
			"is the path longer than 100 bytes?"},
		{"run one --ttl 1ms -- true", 125, "TTL 1ms is out of range: 1s to 10m0s"},
		{"run one --wait 0s -- true", 125, "--wait 0s: give a time above 0, or --try"},
		{"run one --wait 1s --try -- true", 125, "--try and --wait: give one of them"},
		{"run one --once -n 2 -- true", 125, "use -n 1"},
		{"run one -n 0 -- true", 125, "0 partitions is out of range: 1 to 65536"},
		{"run one --nonsense -- true", 125, "unknown flag: --nonsense"},
		{"run counted -n 2 -- true", 125, "Give that number with -n"},
		{"run one -- /no/such/program", 127, "give a program in PATH"},
		{"run one -- " + plain, 126, "is it executable?"},
		{"run one -- " + dir, 126, "is a directory: is it executable?"},
		{"run one --database postgres://127.0.0.1:1/none -- true", 125,
			"Set --database, DATABASE_URL or the PG* variables"},
		{"nonsense", 125, `unknown command "nonsense"`},
	} {
		c := command.Run(t, env, strings.Fields(test.args)...)
		expectExit(t, c, test.code, test.want)
	}
}
