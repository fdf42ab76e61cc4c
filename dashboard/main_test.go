package dashboard_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/dashboard"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/testkit/clients"
)

func TestMain(m *testing.M) { testkit.Main(m) }

const patience = testkit.Patience

// as returns options that give all users an access.
func as(access dashboard.Access, actor string) dashboard.Options {
	return dashboard.Options{
		Authorize: func(*http.Request) (dashboard.Access, string) { return access, actor },
	}
}

var (
	asOperator = as(dashboard.AccessOperator, "ann")
	asViewer   = as(dashboard.AccessReadOnly, "vic")
)

// expect checks the status of an answer, and that it has texts.
func expect(t *testing.T, what string, w *httptest.ResponseRecorder, status int, texts ...string) {
	t.Helper()
	isMissing := func(text string) bool { return !strings.Contains(w.Body.String(), text) }
	if w.Code != status || slices.ContainsFunc(texts, isMissing) {
		t.Errorf("%s: %d %s, want %d %q", what, w.Code, w.Body, status, texts)
	}
}

// newPool returns a pool whose statements go through any pooler.
func newPool(t *testing.T, url string) *pgxpool.Pool {
	t.Helper()
	return testkit.Pool(t, url, new(testkit.Wire).Carry)
}

func newClient(t *testing.T, pool *pgxpool.Pool, id string) *pgleases.Client {
	t.Helper()
	return clients.New(t, pool, pgleases.WithClientID(id))
}

func join(t *testing.T, c *pgleases.Client, name string, partitions int) {
	t.Helper()
	testkit.Must(c.Lease(t.Context(), name, partitions, pgleases.WithHandoffDelay(0)))(t)
}

func exec(t *testing.T, url string, statements ...string) {
	t.Helper()
	pool := newPool(t, pgtest.OwnerURL(url))
	defer pool.Close()
	for _, statement := range statements {
		testkit.Execute(t, pool, statement)
	}
}

// roleOf returns a new role that has no rights, and a pool of it.
func roleOf(t *testing.T, url string) (role string, pool *pgxpool.Pool) {
	t.Helper()
	owner := newPool(t, pgtest.OwnerURL(url))
	role = "pgleases_test_" + strings.ToLower(rand.Text())
	exec(t, url, fmt.Sprintf("CREATE ROLE %[1]s LOGIN PASSWORD '%[1]s'", role))
	t.Cleanup(func() { // before the database goes
		drop := fmt.Sprintf("DROP OWNED BY %[1]s; DROP ROLE %[1]s", role)
		if _, err := owner.Exec(context.Background(), drop, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Error(err)
		}
	})
	direct, _ := pgtest.DirectURL(pgtest.OwnerURL(url)) // a pooler may log in as somebody else
	config := testkit.Must(pgtest.ParseConfig(direct))(t)
	config.ConnConfig.User, config.ConnConfig.Password = role, role
	pool = testkit.Must(pgxpool.NewWithConfig(t.Context(), config))(t)
	t.Cleanup(pool.Close)
	return role, pool
}
