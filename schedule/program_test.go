package schedule_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/testkit/clients"
	"github.com/pgleases/pgleases/schedule"
)

// The programs of the examples, which the examples themselves do not run.
func TestProgramsOfExamplesRun(t *testing.T) {
	t.Parallel()
	for name, program := range map[string]struct {
		run            func(context.Context, *pgleases.Client, *pgxpool.Pool) error
		group, trigger string
		table, done    string
	}{
		"schedules": {
			run: runBilling, group: "billing", trigger: "close",
			table: "CREATE TABLE closings (ledger text, night timestamptz)", done: "SELECT count(*) FROM closings",
		},
		"jobs": {
			run: runShop, group: "shop",
			table: "CREATE TABLE orders (customer text)",
			done:  "SELECT count(*) FROM pgleases.history, orders WHERE kind = 'mail' AND outcome = 'succeeded'",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := testkit.Pool(t, pgtest.OwnerURL(pgtest.MigratedDatabase(t)))
			testkit.OK(t, schedule.Migrate(t.Context(), pool))
			testkit.Execute(t, pool, program.table)
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			client := clients.New(t, pool)
			go func() { ended <- program.run(ctx, client, pool) }()
			if program.trigger != "" {
				testkit.Becomes(t, pool, "it is declared", 1, "SELECT count(*) FROM pgleases.schedules")
				operators := testkit.Must(schedule.Manage(t.Context(), pool, program.group))(t)
				testkit.Must(operators.Trigger(t.Context(), program.trigger))(t)
			}
			testkit.Becomes(t, pool, "its work is done", 1, program.done)
			stop()
			if err := testkit.Receive(t, "it ends", ended); !errors.Is(err, context.Canceled) {
				t.Errorf("it ended with %v", err)
			}
		})
	}
}
