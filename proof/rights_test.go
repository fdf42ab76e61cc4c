//go:build unix

package proof_test

import (
	"math/rand/v2"
	"net/url"
	"testing"
	"time"

	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/timeguard"
	"github.com/pgleases/pgleases/proof/faults"
	"github.com/pgleases/pgleases/proof/pgserver"
	"github.com/pgleases/pgleases/sql"
)

const appRole = "pgleases_app" // as in sql/grants

// revokes are the statements of an administrator that keep an application from working.
var revokes = []string{
	"REVOKE USAGE ON SCHEMA pgleases FROM " + appRole,
	"REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA pgleases FROM " + appRole,
	"REVOKE ALL ON ALL TABLES IN SCHEMA pgleases FROM " + appRole,
}

// The rights of the clients' role are taken away again and again, for up to a TTL and a half, while
// processes start, close, stand still and are killed. No partition has two owners, and all have one
// when the role has its rights again.
func TestRevokedRightsKeepOneOwner(t *testing.T) {
	t.Parallel()
	timeguard.Run(t, func(t *timeguard.Try) {
		rounds := 3
		if brief() {
			rounds = 1
		}
		server := pgserver.Private(t)
		url, grants := rightsOf(t, server.URL())
		database := &faults.Database{URL: server.URL(), Revokes: revokes, Grants: grants}
		e := attack(t, rand.Uint64(), 2*time.Minute, url, database, func(f *faults.Fleet) {
			f.Faults = only(f.Faults, "join", "close", "kill", "pause")
			f.Enough = func(counts map[string]int) bool {
				return min(counts[revokes[0]], counts[revokes[1]], counts[revokes[2]]) >= rounds
			}
		})
		covered(t, e, 20, 10_000)
		for _, revoke := range revokes {
			if n := e.Faults[revoke]; n < rounds {
				t.Missed(e.began, time.Since(e.began), "%s happened %d times, not %d", revoke, n, rounds)
			}
		}
	})
}

// covered fails the test if a promise was broken, or if there were fewer writes or reads than these.
func covered(t *timeguard.Try, e episode, writes int, reads int64) {
	t.Helper()
	for _, v := range e.Violations {
		t.Error(v)
	}
	if e.Writes < writes || e.Reads < reads {
		tooLittle(t, e.began, "only %d guarded writes and %d reads", e.Writes, e.Reads)
	}
}

// rightsOf makes the tables in a database, and returns its URL for a role with the rights of an
// application, and the statements that give these rights.
func rightsOf(t testing.TB, databaseURL string) (asRole, grants string) {
	t.Helper()
	grants = string(testkit.Must(sql.Files.ReadFile("grants/application.sql"))(t))
	schema := string(testkit.Must(sql.Files.ReadFile("schema.sql"))(t))
	pool := testkit.Pool(t, databaseURL, size(1))
	testkit.Execute(t, pool, "CREATE ROLE "+appRole+" LOGIN")
	// Effects are written to such tables.
	testkit.Execute(t, pool, `ALTER DEFAULT PRIVILEGES IN SCHEMA public
		GRANT SELECT, INSERT, UPDATE ON TABLES TO `+appRole)
	testkit.Execute(t, pool, "CREATE SCHEMA pgleases")
	testkit.Execute(t, pool, schema)
	testkit.Execute(t, pool, "REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA pgleases FROM PUBLIC;"+grants)
	u := testkit.Must(url.Parse(databaseURL))(t)
	u.User = url.User(appRole)
	return u.String(), grants
}
