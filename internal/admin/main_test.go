package admin_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/admin"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/testkit/clients"
)

func TestMain(m *testing.M) { testkit.Main(m) }

const patience = testkit.Patience

func newPool(t *testing.T, url string, configure ...func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	throughAnyPooler := func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec }
	return testkit.Pool(t, url, append(configure, throughAnyPooler)...)
}

func newAdmin(t *testing.T, pool *pgxpool.Pool, opts ...admin.Option) *admin.Admin {
	t.Helper()
	return testkit.Must(admin.New(pool, opts...))(t)
}

func newClient(t *testing.T, pool *pgxpool.Pool, id string) *pgleases.Client {
	t.Helper()
	return clients.New(t, pool, pgleases.WithClientID(id))
}

func joined(t *testing.T, c *pgleases.Client, name string, partitions int, opts ...pgleases.LeaseOption) *pgleases.Lease {
	t.Helper()
	return testkit.Must(c.Lease(t.Context(), name, partitions, append(opts, pgleases.WithHandoffDelay(0))...))(t)
}

func exec(t *testing.T, url string, statements ...string) {
	t.Helper()
	pool := newPool(t, pgtest.OwnerURL(url))
	defer pool.Close()
	for _, statement := range statements {
		testkit.Execute(t, pool, statement)
	}
}

// awaitSnapshot reads snapshots until one matches, and returns it.
func awaitSnapshot(t *testing.T, a *admin.Admin, what string, is func(*admin.Snapshot) bool) (s *admin.Snapshot) {
	t.Helper()
	testkit.Until(t, what, func() bool { s = testkit.Must(a.Snapshot(t.Context()))(t); return is(s) })
	return s
}
