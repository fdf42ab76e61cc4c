package scheduletest_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/schedule"
	"github.com/pgleases/pgleases/schedule/scheduletest"
)

// register is the application's, and tested as it is.
func register(s *schedule.Scheduler) error {
	kind := schedule.InTx(s, "books", func(ctx context.Context, tx pgx.Tx, r schedule.Run[struct{}]) error {
		_, err := tx.Exec(ctx, "INSERT INTO closings (night) VALUES ($1)", r.At)
		return err
	}, schedule.WithMaxAttempts(3, schedule.Backoff(time.Minute, time.Hour)))
	return kind.Add("close", struct{}{}, schedule.Cron("30 2 * * *", "Europe/Berlin"), schedule.WithGrace(6*time.Hour))
}

// newPool leads to a database in which the application's migrations have run.
func newPool(t testing.TB) *pgxpool.Pool {
	pool, err := pgxpool.New(context.Background(), os.Getenv("DATABASE_URL"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, _ = pool.Exec(context.Background(), "TRUNCATE closings") // for the next test
		pool.Close()
	})
	return pool
}

func TestBooksAreClosedEachNight(t *testing.T) {
	pool := newPool(t)
	s := scheduletest.New(t, pool, time.Date(2026, 3, 28, 12, 0, 0, 0, time.UTC))
	if err := register(s.Scheduler); err != nil {
		t.Fatal(err)
	}
	s.Advance(48 * time.Hour) // in the night to the 29th the clocks of Berlin leave 2:30 out
	s.Outage(36 * time.Hour)
	s.Advance(24 * time.Hour)

	var closed string
	err := pool.QueryRow(t.Context(), "SELECT string_agg(to_char(night AT TIME ZONE 'UTC', 'DD HH24:MI'), ', ' ORDER BY night) FROM closings").Scan(&closed)
	if want := "29 01:00, 30 00:30, 01 00:30"; err != nil || closed != want {
		t.Errorf("closed at %q, not %q: %v", closed, want, err)
	}
	if outcomes := s.Entries("close"); outcomes[2].Outcome != schedule.OutcomeMissed { // after the outage that of the 31st was later than the grace
		t.Errorf("the third tick is %s", outcomes[2].Outcome)
	}
}
