package testkit

import (
	"context"
	"os/exec"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
)

const inject = "CREATE TABLE public.injected();--"

// HostileNames are identifiers that break a text which does not quote them where they stand. They
// have up to 63 bytes.
var HostileNames = []string{
	"a\n" + inject,
	"a\r\n\t" + inject,
	"a$pgleases_body$;" + inject,
	"a$pgleases$;" + inject,
	"a';" + inject,
	`a\';` + inject,
	`a";` + inject,
	"a*/;" + inject,
	"a\\\x01\x1b[2J\u202e/*",
	"pgleases.a pgleases_app",
	strings.Repeat("é", 31) + "x",
}

// backslashesEscape makes a backslash in a string escape what follows it.
const backslashesEscape = "SET LOCAL standard_conforming_strings = off; SET LOCAL escape_string_warning = off;\n"

// RunPrinted runs SQL that was printed for people, by the driver and by psql, and whatever a
// backslash means in a string. The test fails if the text fails, or if a part of a hostile name
// ran.
func RunPrinted(t testing.TB, pool *pgxpool.Pool, text string) {
	t.Helper()
	run := func(how, text string) {
		t.Helper()
		conn := Must(pool.Acquire(context.Background()))(t)
		defer conn.Release()
		if _, err := conn.Conn().PgConn().Exec(context.Background(), text).ReadAll(); err != nil {
			t.Errorf("%s: %v\n%s", how, err, text)
			_, _ = conn.Conn().PgConn().Exec(context.Background(), "ROLLBACK").ReadAll() // it may be no transaction
		}
	}
	run("with backslashes that escape", "BEGIN; "+backslashesEscape+text+"\n;ROLLBACK")
	if psql, err := exec.LookPath("psql"); err == nil {
		args := []string{"-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", pool.Config().ConnString()}
		c := exec.CommandContext(t.Context(), psql, args...)
		c.Stdin = strings.NewReader("BEGIN;\n" + text + "\n;ROLLBACK;\n")
		if out, err := c.CombinedOutput(); err != nil {
			t.Errorf("psql: %v: %s\n%s", err, out, text)
		}
	}
	run("by the driver", text)
	if Value[bool](t, pool, "SELECT to_regclass('public.injected') IS NOT NULL") {
		t.Errorf("a part of a name ran:\n%s", text)
		Execute(t, pool, "DROP TABLE public.injected")
	}
}
