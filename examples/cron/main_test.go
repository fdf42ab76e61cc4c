//go:build unix

package main

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/schedule"
	"github.com/pgleases/pgleases/schedule/sql"
)

// database returns the URL of a database with all tables, whose role may do what one that runs schedules needs, and of its owner.
func database(t *testing.T) (url string, owner *pgxpool.Pool) {
	t.Helper()
	url = pgtest.MigratedDatabase(t)
	owner, err := pgxpool.New(t.Context(), pgtest.OwnerURL(url))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(owner.Close)
	if err := schedule.Migrate(t.Context(), owner); err != nil {
		t.Fatal(err)
	}
	if url != pgtest.OwnerURL(url) {
		if _, err := owner.Exec(t.Context(), string(must(sql.Files.ReadFile("grants/application.sql"))), pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatal(err)
		}
	}
	return url, owner
}

func TestTimetableIsDeclaredAndListed(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	url, _ := database(t)
	ended := make(chan error, 1)
	running, end := context.WithCancel(ctx)
	go func() { ended <- run(running, url, timetable) }()
	conn := connect(t, ctx, url)
	h := history{t, ctx, url, conn}
	h.eventually("all is declared", `SELECT count(*) = 4 FROM pgleases.schedules WHERE declared AND due < 'infinity'`)
	end()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestJobWithABadRuleIsNamed(t *testing.T) {
	t.Parallel()
	url, _ := database(t)
	err := run(t.Context(), url, func(s *schedule.Scheduler) error {
		k := schedule.InTx(s, "close", func(context.Context, pgx.Tx, schedule.Run[bool]) error { return nil })
		return k.Add("books", true, schedule.Cron("60 * * * *", "UTC"))
	})
	if err == nil || !strings.Contains(err.Error(), `"books"`) || !strings.Contains(err.Error(), `"60 * * * *"`) {
		t.Errorf("it returned %v", err)
	}
}

// jumps are instants at which clocks are set forward over a time at which a job is to run: at midnight, by half an hour, at night.
var jumps = []struct{ zone, rule, at string }{
	{"America/Santiago", "0 0 * * *", "2026-09-06T04:00:00Z"},
	{"Africa/Cairo", "0 0 * * *", "2026-04-23T22:00:00Z"},
	{"America/Havana", "0 0 * * *", "2026-03-08T05:00:00Z"},
	{"Asia/Beirut", "0 0 * * *", "2026-03-28T22:00:00Z"},
	{"Australia/Lord_Howe", "15 2 * * *", "2026-10-03T15:30:00Z"},
	{"America/New_York", "*/30 1-2 * * *", "2026-03-08T07:00:00Z"},
}

// The database's clock comes to the jump while the process runs: the job runs there, once.
func TestWhatClocksLeaveOutRunsOnceWhenTheyJump(t *testing.T) {
	t.Parallel()
	for _, jump := range jumps {
		t.Run(jump.zone, func(t *testing.T) {
			t.Parallel()
			ctx, stop := context.WithTimeout(t.Context(), patience)
			defer stop()
			at, err := time.Parse(time.RFC3339, jump.at)
			if err != nil {
				t.Fatal(err)
			}
			url, owner := database(t)
			setClock := func(shows string) {
				_, err := owner.Exec(ctx, `CREATE OR REPLACE FUNCTION pgleases.schedule_clock() RETURNS timestamptz LANGUAGE sql STABLE AS $$ SELECT `+shows+` $$`)
				if err != nil {
					t.Fatal(err)
				}
			}
			before := at.Add(-time.Second)
			setClock(fmt.Sprintf("timestamptz '%s'", before.Format(time.RFC3339))) // where it stands still until the schedule is there
			ticks := make(chan time.Time, 10)
			running, end := context.WithCancel(ctx)
			ended := make(chan error, 1)
			go func() {
				ended <- run(running, url, func(s *schedule.Scheduler) error {
					k := schedule.InTx(s, "tick", func(_ context.Context, _ pgx.Tx, r schedule.Run[bool]) error {
						ticks <- r.At
						return nil
					})
					return k.Add("job", true, schedule.Cron(jump.rule, jump.zone))
				})
			}()
			h := history{t, ctx, url, connect(t, ctx, url)}
			h.eventually("it is declared", "SELECT count(*) = 1 FROM pgleases.schedules")
			setClock(fmt.Sprintf("statement_timestamp() + %d * interval '1 second'", int64(time.Until(before).Seconds())))
			select {
			case tick := <-ticks:
				if !tick.Equal(at) {
					t.Errorf("it ran for %v, not for %v", tick, at)
				}
			case <-ctx.Done():
				t.Error("it did not run")
			}
			h.eventually("it is done", "SELECT count(*) = 1 FROM pgleases.history WHERE fate = 'done'")
			h.check("the next is later", "SELECT due > $1::timestamptz + interval '12 hours' FROM pgleases.schedules", at)
			end()
			if err := <-ended; err != nil || len(ticks) > 0 {
				t.Errorf("it ran %d times more, and ended with %v", len(ticks), err)
			}
		})
	}
}

// What is to run once a day does so on each day of the year, also on those on which clocks are set forward or back.
func TestWhatIsDailyRunsOnceADayInTheseZones(t *testing.T) {
	t.Parallel()
	for _, jump := range jumps {
		rule, location := schedule.Cron(jump.rule, jump.zone), must(time.LoadLocation(jump.zone))
		perDay := 1
		if strings.Contains(jump.rule, "/") {
			perDay = 4
		}
		days := make(map[string]int)
		last := schedule.Tick{At: time.Date(2026, 1, 1, 0, 0, 0, -1, location)}
		for {
			next, ok := rule.Next(time.Time{}, last)
			if !ok || next.Local.Year() > 2026 {
				break
			}
			days[next.Local.Format(time.DateOnly)]++
			last = next
		}
		for day := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC); day.Year() == 2026; day = day.AddDate(0, 0, 1) {
			want := perDay
			if perDay == 4 && day.Equal(time.Date(2026, 3, 8, 0, 0, 0, 0, time.UTC)) {
				want = 3 // 1:00, 1:30, and 3:00 for 2:00 and 2:30
			}
			if n := days[day.Format(time.DateOnly)]; n != want {
				t.Errorf("%s in %s ticks %d times on %s, not %d times", jump.rule, jump.zone, n, day.Format(time.DateOnly), want)
			}
		}
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
