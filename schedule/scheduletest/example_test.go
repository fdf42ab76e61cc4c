package scheduletest_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/schedule"
	"github.com/pgleases/pgleases/schedule/scheduletest"
)

type books struct{ Ledger string }

type ledger interface {
	Close(ctx context.Context, tx pgx.Tx, books string, from, to time.Time) error
}

// register is the application's: it is tested as it is.
func register(s *schedule.Scheduler, l ledger) error {
	kind := schedule.InTx(s, "books", func(ctx context.Context, tx pgx.Tx, r schedule.Run[books]) error {
		return l.Close(ctx, tx, r.Args.Ledger, r.From, r.At)
	}, schedule.Retry(3, schedule.Backoff(time.Minute, time.Hour)))
	return kind.Add("close", books{"main"}, schedule.Cron("30 2 * * *", "Europe/Berlin"), schedule.Grace(6*time.Hour))
}

// nights is a ledger that notes the nights on which it was closed.
type nights struct {
	closed []string
	place  *time.Location
}

func (n *nights) Close(_ context.Context, _ pgx.Tx, _ string, _, to time.Time) error {
	n.closed = append(n.closed, to.In(n.place).Format("02 Jan 15:04"))
	return nil
}

func Example() {
	test := func(t *testing.T) {
		berlin, err := time.LoadLocation("Europe/Berlin")
		if err != nil {
			t.Fatal(err)
		}
		s := scheduletest.New(t, time.Date(2026, 3, 28, 12, 0, 0, 0, berlin))
		ledger := &nights{place: berlin}
		if err := register(s.Scheduler, ledger); err != nil {
			t.Fatal(err)
		}
		s.Advance(48 * time.Hour) // in the night to the 29th, 2:30 is left out
		s.Outage(36 * time.Hour)
		s.Advance(24 * time.Hour) // the tick of the 31st is too late by then

		if want := []string{"29 Mar 03:00", "30 Mar 02:30", "01 Apr 02:30"}; !slices.Equal(ledger.closed, want) {
			t.Errorf("closed on %q, not on %q", ledger.closed, want)
		}
		if fate := s.Entries("close")[2].Fate; fate != schedule.FateMissed {
			t.Errorf("the tick in the outage is %s", fate)
		}
	}
	shown = test
	// Output:
}
