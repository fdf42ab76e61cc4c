package scheduletest_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/schedule"
	"github.com/pgleases/pgleases/schedule/scheduletest"
)

func Example() {
	test := func(t *testing.T, pool *pgxpool.Pool) {
		s := scheduletest.New(t, pool, time.Date(2026, 3, 28, 12, 0, 0, 0, time.UTC))
		var closed []string
		kind := schedule.InTx(s.Scheduler, "books", func(_ context.Context, _ pgx.Tx, r schedule.Run[string]) error {
			closed = append(closed, r.Args+" on "+r.At.Format("2 January at 15:04"))
			return nil
		})
		if err := kind.Add("close", "the ledger", schedule.Cron("30 2 * * *", "Europe/Berlin")); err != nil {
			t.Fatal(err)
		}
		s.Advance(48 * time.Hour)
		want := []string{"the ledger on 29 March at 01:00", "the ledger on 30 March at 00:30"}
		if !slices.Equal(closed, want) {
			t.Errorf("closed %q, not %q", closed, want)
		}
		if outcome := s.Entries("close")[0].Outcome; outcome != schedule.OutcomeSucceeded {
			t.Errorf("the first tick is %s", outcome)
		}
	}
	shown = test // go test runs a function of this kind
	// Output:
}
