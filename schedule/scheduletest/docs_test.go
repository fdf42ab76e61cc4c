package scheduletest_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/internal/testkit"
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
	err := pool.QueryRow(t.Context(), `SELECT string_agg(to_char(night AT TIME ZONE 'UTC', 'DD HH24:MI'), ', '
		ORDER BY night) FROM closings`).Scan(&closed)
	if want := "29 01:00, 30 00:30, 01 00:30"; err != nil || closed != want {
		t.Errorf("closed at %q, not %q: %v", closed, want, err)
	}
	// The one of the 31st was later than the grace when the outage ended.
	if outcomes := s.Entries("close"); outcomes[2].Outcome != schedule.OutcomeMissed {
		t.Errorf("the third tick is %s", outcomes[2].Outcome)
	}
}

type Mail struct{ To string }

// send is the application's.
func send(context.Context, schedule.Run[Mail]) error { return nil }

func TestMailIsSent(t *testing.T) {
	s := scheduletest.New(t, newPool(t), time.Now())
	mail := schedule.AtLeastOnce(s.Scheduler, "mail", send)
	id, err := mail.Enqueue(t.Context(), Mail{"ada@example.com"})
	if err != nil {
		t.Fatal(err)
	}
	s.Advance(time.Minute) // for all its attempts
	if j, err := s.Job(t.Context(), id); err != nil || j.Outcome != schedule.OutcomeSucceeded {
		t.Errorf("job %+v: %v", j, err)
	}
}

// moveMails moves up to 1,000 pending rows, and returns how many. A row that an old worker has locked stays.
func moveMails(ctx context.Context, pool *pgxpool.Pool, mail *schedule.Kind[Mail]) (moved int, err error) {
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, `WITH gone AS (DELETE FROM mails WHERE id IN (
				SELECT id FROM mails WHERE status = 'pending' AND run_at <= now() ORDER BY run_at, id LIMIT 1000 FOR UPDATE SKIP LOCKED) RETURNING *)
			SELECT address FROM gone ORDER BY run_at, id`)
		mails, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Mail])
		if err == nil {
			_, err = mail.EnqueueManyTx(ctx, tx, mails)
		}
		moved = len(mails)
		return err
	})
	return moved, err
}

// Rows that are due become jobs in their order; others stay.
func TestPendingRowsBecomeJobs(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	testkit.Must(pool.Exec(t.Context(), `CREATE TABLE mails (id int, status text, run_at timestamptz, address text);
		INSERT INTO mails VALUES (1, 'pending', now(), 'b'), (2, 'pending', now() - interval '1 hour', 'a'), (3, 'sent', now(), 'c'), (4, 'pending', 'infinity', 'd')`))(t)
	s := scheduletest.New(t, pool, midnight)
	var sent notes
	mail := schedule.AtLeastOnce(s.Scheduler, "mail", func(_ context.Context, r schedule.Run[Mail]) error {
		sent.note("%s", r.Args.To)
		return nil
	})
	expect(t, "moved", testkit.Must(moveMails(t.Context(), pool, mail))(t), 2)
	expect(t, "moved again", testkit.Must(moveMails(t.Context(), pool, mail))(t), 0)
	s.Advance(time.Second)
	expect(t, "sent", sent, "[a b]")
	var left string
	testkit.OK(t, pool.QueryRow(t.Context(), "SELECT string_agg(address, ' ' ORDER BY id) FROM mails").Scan(&left))
	expect(t, "left", left, "c d")
}
