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

// Books are what production gives to register as well, with SQL behind them.
type Books interface {
	Close(ctx context.Context, tx pgx.Tx, from, to time.Time) error
}

// register is the application's, and tested as it is.
func register(s *schedule.Scheduler, books Books) error {
	kind := schedule.InTx(s, "books", func(ctx context.Context, tx pgx.Tx, r schedule.Run[struct{}]) error {
		return books.Close(ctx, tx, r.From, r.At)
	}, schedule.Retry(3, schedule.Backoff(time.Minute, time.Hour)))
	return kind.Add("close", struct{}{}, schedule.Cron("30 2 * * *", "Europe/Berlin"), schedule.Grace(6*time.Hour))
}

// nights are books that note when they were closed.
type nights []string

func (n *nights) Close(_ context.Context, _ pgx.Tx, _, to time.Time) error {
	*n = append(*n, to.Format("02 Jan 15:04 MST"))
	return nil
}

func TestBooksAreClosedEachNight(t *testing.T) {
	s := scheduletest.New(t, time.Date(2026, 3, 28, 12, 0, 0, 0, time.UTC))
	var closed nights
	if err := register(s.Scheduler, &closed); err != nil {
		t.Fatal(err)
	}
	s.Advance(48 * time.Hour) // in the night to the 29th the clocks of Berlin leave 2:30 out
	s.Outage(36 * time.Hour)
	s.Advance(24 * time.Hour)

	if want := []string{"29 Mar 01:00 UTC", "30 Mar 00:30 UTC", "01 Apr 00:30 UTC"}; !slices.Equal(closed, want) {
		t.Errorf("closed at %q, not %q", closed, want)
	}
	if fates := s.Entries("close"); fates[2].Fate != schedule.FateMissed { // after the outage that of the 31st was later than the grace
		t.Errorf("the third tick is %s", fates[2].Fate)
	}
}
