package admin_test

import (
	"fmt"
	"regexp"
	"strings"
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
	inAnyTime := admin.WithPastLimit(testkit.Patience) // on a busy machine
	return testkit.Must(admin.New(pool, append([]admin.Option{inAnyTime}, opts...)...))(t)
}

func newClient(t *testing.T, pool *pgxpool.Pool, id string) *pgleases.Client {
	t.Helper()
	return clients.New(t, pool, pgleases.WithClientID(id))
}

func joined(
	t *testing.T, c *pgleases.Client, name string, partitions int, opts ...pgleases.LeaseOption,
) *pgleases.Lease {
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

// liveClients returns a statement that inserts clients, whose sessions count from 11.
func liveClients(ids ...string) string {
	return fmt.Sprintf(`
		INSERT INTO pgleases.clients
		SELECT 10 + n, id, 1, clock_timestamp() + interval '1 minute', '1 minute', 'host', 7, now()
		FROM unnest('{%s}'::text[]) WITH ORDINALITY AS v (id, n)`, strings.Join(ids, ","))
}

// explained returns why a partition is where it is, in one text.
func explained(t *testing.T, a *admin.Admin, lease string, partition int) string {
	t.Helper()
	return strings.Join(testkit.Must(a.Explain(t.Context(), lease, partition))(t).Reasons, " ")
}

func expectMatch(t *testing.T, what, got, pattern string) {
	t.Helper()
	if !regexp.MustCompile(pattern).MatchString(got) {
		t.Errorf("%s: %s, want %s", what, got, pattern)
	}
}

// fails reports whether there is an error, and whether a part of its text is as wanted.
func fails(err error, part string) bool { return err != nil && strings.Contains(err.Error(), part) }

// awaitSnapshot reads snapshots until one matches, and returns it.
func awaitSnapshot(t *testing.T, a *admin.Admin, what string, is func(*admin.Snapshot) bool) (s *admin.Snapshot) {
	t.Helper()
	testkit.Until(t, what, func() bool { s = testkit.Must(a.Snapshot(t.Context()))(t); return is(s) })
	return s
}
