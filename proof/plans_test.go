//go:build unix

package proof_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/testkit/notes"
	"github.com/pgleases/pgleases/proof/pgserver"
	"github.com/pgleases/pgleases/schedule"
)

// PostgreSQL plans a statement of a function five times. Then it keeps a generic plan, but only if
// that plan costs no more than the first five. If the first five were planned under other settings,
// as a guard is in an application's transaction and in a run, PostgreSQL would plan the statement
// each time, for a third of the cost of a run.
func TestFrequentStatementsUseGenericPlans(t *testing.T) {
	t.Parallel()
	const jobs, often = 1000, 400
	server := pgserver.Private(t)
	pool := testkit.Pool(t, server.URL(), size(4))
	if count(t, pool, "pg_available_extensions WHERE name = 'pg_stat_statements'") == 0 {
		notes.Lacks(t, "pg_stat_statements",
			"pg_stat_statements is not installed (Debian, Ubuntu: apt-get install postgresql-contrib)")
	}
	testkit.Execute(t, pool, "ALTER SYSTEM SET shared_preload_libraries = 'pg_stat_statements'")
	pgserver.Required(t, server.Restart(t.Context(), pgserver.Fast))
	pool.Reset()
	testkit.Execute(t, pool, `CREATE EXTENSION pg_stat_statements;
		ALTER DATABASE postgres SET pg_stat_statements.track = 'all';
		ALTER DATABASE postgres SET pg_stat_statements.track_planning = on;
		ALTER DATABASE postgres SET compute_query_id = on`)
	pool.Reset()
	pgserver.Required(t, schedule.Migrate(t.Context(), pool))

	pool = testkit.Pool(t, server.URL(), size(4), func(c *pgxpool.Config) {
		c.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
			for range 5 {
				// It raises an error, because the partition has no owner.
				_, _ = conn.Exec(ctx, "SELECT pgleases.guard('no lease', 0, 0)")
			}
			_, _ = conn.Exec(ctx, "SELECT pgleases.schedule_open('no lease', 0, 0, 0, true, '', 0, 0, 0)")
			return nil
		}
	})
	client, err := pgleases.NewClient(t.Context(), pool)
	pgserver.Required(t, err)
	defer client.Close(context.WithoutCancel(t.Context()))
	scheduler, err := schedule.New(t.Context(), client, pool, "planned", schedule.WithMaxRunning(3))
	pgserver.Required(t, err)
	kind := schedule.InTx(scheduler, "nothing", func(context.Context, pgx.Tx, schedule.Run[int]) error { return nil })
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- scheduler.Run(ctx) }()
	_, err = kind.EnqueueMany(t.Context(), make([]int, jobs))
	pgserver.Required(t, err)
	waitFor(t, patience, "no job is left", func() bool { return count(t, pool, "pgleases.jobs") == 0 })
	cancel()
	<-ended

	const of = "FROM pg_stat_statements WHERE query LIKE '%pgleases%' AND NOT toplevel"
	if n := testkit.Value[int](t, pool, "SELECT count(*) "+of+" AND calls >= $1", often); n < 3 {
		t.Errorf("%d statements were seen that runs send in functions", n)
	}
	planned := "SELECT coalesce(string_agg(format('%s plans of %s: %s', plans, calls, query), chr(10)), '') " +
		of + " AND calls >= $1 AND plans > calls / 2"
	if wrong := testkit.Value[string](t, pool, planned, often); wrong != "" {
		t.Error(wrong)
	}
}
