// Command cron is a process of an application that runs jobs at fixed times, each tick once over
// all processes. Start it in several terminals, with the same DATABASE_URL, and see how they share
// the jobs; stop one with Ctrl-C or kill -9, and the others run its jobs:
//
//	DATABASE_URL=postgres://localhost/postgres go run ./examples/cron
//
// Copy it, and write your jobs into timetable. README.md in this directory says which jobs run
// exactly once, and what to do about the others. Behind PgBouncer in transaction mode, add
// default_query_exec_mode=exec to DATABASE_URL. To see the outcomes, and to remove everything:
//
//	DATABASE_URL=postgres://localhost/postgres go run ./cmd/pgleases schedules history cron minute
//	psql postgres://localhost/postgres -c 'DROP SCHEMA pgleases CASCADE'
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"
	_ "time/tzdata" // for jobs in a zone, where the system has no time zones

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/schedule"
)

func main() {
	// Kubernetes and systemd stop a process with SIGTERM.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once

	if err := run(ctx, os.Getenv("DATABASE_URL"), timetable); err != nil {
		log.Fatal(err)
	}
}

// timetable declares jobs that print a text.
func timetable(s *schedule.Scheduler) error {
	say := schedule.InTx(s, "say", func(_ context.Context, _ pgx.Tx, r schedule.Run[string]) error {
		fmt.Printf("%s: %s\n", r.At.Format(time.RFC3339), r.Args)
		return nil
	}, schedule.WithMaxAttempts(5, schedule.Backoff(time.Second, time.Minute)))
	return errors.Join(
		say.Add("poll", "every quarter of a minute", schedule.Every(15*time.Second),
			schedule.WithMissed(schedule.MissedAll)),
		say.Add("minute", "every minute", schedule.Cron("* * * * *", "UTC")),
		say.Add("night", "at night in Berlin", schedule.Cron("30 2 * * *", "Europe/Berlin"),
			schedule.WithGrace(6*time.Hour)),
		say.Add("week", "on the first of the month, and on Mondays", schedule.Cron("0 6 1 * MON", "UTC")),
	)
}

// run runs the jobs until ctx ends.
func run(ctx context.Context, url string, declare func(*schedule.Scheduler) error) error {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return fmt.Errorf("DATABASE_URL: %w", err)
	}
	defer pool.Close()
	return pgleases.Run(ctx, pool, func(ctx context.Context, client *pgleases.Client) error {
		s, err := schedule.New(ctx, client, pool, "cron")
		if err != nil {
			return err
		}
		if err := declare(s); err != nil {
			return err
		}
		return s.Run(ctx)
	})
}
