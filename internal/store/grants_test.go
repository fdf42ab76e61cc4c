package store_test

import (
	"context"
	"os"
	"regexp"
	"testing"

	"github.com/jackc/pgx/v5"

	. "github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/testkit"
)

func (f *fixture) ctxOfCleanup() context.Context { return context.WithoutCancel(f.ctx) }

// grant gives a role the rights of a file of grants.
func (f *fixture) grant(purpose, role string) {
	f.Helper()
	text := testkit.Must(os.ReadFile("../../sql/grants/" + purpose + ".sql"))(f)
	f.exec(regexp.MustCompile(`pgleases_(app|operator)\b`).ReplaceAllString(string(text), role))
}

func TestARoleThatOwnsNothingRunsTheWholeProtocol(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	f := fixtureIn(t, emptyDatabase(t), "pgleases")
	role := f.role()
	f.exec("REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA pgleases FROM PUBLIC") // as default privileges may have it
	f.grant("application", role)
	f.runAs = role
	f.ok(f.conn().Fits(f.ctx))
	protocol(f)
	conn := f.as(role)
	for _, relation := range []string{"status", "members_status", "locks_status"} {
		testkit.Must(conn.Exec(f.ctx, "SELECT * FROM pgleases."+relation))(f)
	}
}

func TestTheRightsOfAGuardAloneSuffice(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	f := freshFixture(t)
	a := f.client("a")
	a.join("l", 1)
	a.give("l", a.session)
	role := f.role()
	f.grant("guard", role)
	tx := testkit.Must(f.as(role).Begin(f.ctx))(f)
	f.ok(guard(f, tx, "l", 0, 1))
	b := f.locker("b")
	token := b.acquire("x", false, false).Token
	testkit.Must(tx.Exec(f.ctx, StatementsFor(f.schema).LockGuard,
		pgx.QueryExecModeSimpleProtocol, "x", token, int64(60_000)))(f)
	expect(t, b.give("x"), "busy", "release of a lock under which a transaction is guarded")
}
