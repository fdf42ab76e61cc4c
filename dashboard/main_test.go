package dashboard_test

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/testkit/clients"
)

func TestMain(m *testing.M) { testkit.Main(m) }

const patience = testkit.Patience

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
