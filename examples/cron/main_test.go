package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/schedule"
	"github.com/pgleases/pgleases/schedule/sql"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// database returns the URL of a database with all tables, whose role may do what one that runs schedules needs, and of its owner.
func database(t *testing.T) (url string, owner *pgxpool.Pool) {
	t.Helper()
	url = pgtest.MigratedDatabase(t)
	owner = testkit.Pool(t, pgtest.OwnerURL(url))
	testkit.OK(t, schedule.Migrate(t.Context(), owner))
	if url != pgtest.OwnerURL(url) {
		grants := testkit.Must(sql.Files.ReadFile("grants/application.sql"))(t)
		testkit.Execute(t, owner, string(grants))
	}
	return url, owner
}

// start runs the program, and returns what ends it in good order.
func start(t *testing.T, url string, declare func(*schedule.Scheduler) error) (end func()) {
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, url, declare) }()
	return func() {
		stop()
		testkit.OK(t, testkit.Receive(t, "the program ends", ended))
	}
}

func TestTimetableIsDeclaredAndListed(t *testing.T) {
	t.Parallel()
	url, owner := database(t)
	end := start(t, url, timetable)
	testkit.Becomes(t, owner, "all is declared", 4,
		"SELECT count(*) FROM pgleases.schedules WHERE declared AND due < 'infinity'")
	end()
}

func TestJobWithABadRuleIsNamed(t *testing.T) {
	t.Parallel()
	url, _ := database(t)
	err := run(t.Context(), url, func(s *schedule.Scheduler) error {
		k := schedule.InTx(s, "close", func(context.Context, pgx.Tx, schedule.Run[bool]) error { return nil })
		return k.Add("report", true, schedule.Cron("60 * * * *", "UTC"))
	})
	if err == nil || !strings.Contains(err.Error(), `"report"`) || !strings.Contains(err.Error(), `"60 * * * *"`) {
		t.Errorf("it returned %v", err)
	}
}

// In Santiago clocks are set forward at midnight. The database's clock comes to that instant while the program runs.
func TestJobInSkippedHourRunsOnceWhenClocksJump(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 9, 6, 4, 0, 0, 0, time.UTC)
	url, owner := database(t)
	setClock := func(shows string) {
		testkit.Execute(t, owner, `CREATE OR REPLACE FUNCTION pgleases.schedule_clock() RETURNS timestamptz
			LANGUAGE sql STABLE AS $$ SELECT `+shows+` $$`)
	}
	setClock("timestamptz '2026-09-06T03:59:59Z'") // where it stands still until the schedule is there
	ticks := make(chan time.Time, 10)
	end := start(t, url, func(s *schedule.Scheduler) error {
		k := schedule.InTx(s, "tick", func(_ context.Context, _ pgx.Tx, r schedule.Run[bool]) error {
			ticks <- r.At
			return nil
		})
		return k.Add("job", true, schedule.Cron("0 0 * * *", "America/Santiago"))
	})
	testkit.Becomes(t, owner, "it is declared", 1, "SELECT count(*) FROM pgleases.schedules")
	now := time.Now().Format(time.RFC3339Nano)
	setClock("statement_timestamp() + (timestamptz '2026-09-06T03:59:59Z' - timestamptz '" + now + "')")
	if tick := testkit.Receive(t, "it runs", ticks); !tick.Equal(at) {
		t.Errorf("it ran for %v, not for %v", tick, at)
	}
	testkit.Becomes(t, owner, "it is done", 1, "SELECT count(*) FROM pgleases.history WHERE outcome = 'succeeded'")
	next := testkit.Value[time.Time](t, owner, "SELECT due FROM pgleases.schedules")
	if next.Before(at.Add(12 * time.Hour)) {
		t.Errorf("the next is at %v", next)
	}
	end()
	if len(ticks) > 0 {
		t.Errorf("it ran %d times more", len(ticks))
	}
}
