// Command cron is a process of an application that runs jobs at fixed times, each tick once over all processes. Start it in
// several terminals, with the same DATABASE_URL, and see how they share the jobs; stop one with Ctrl-C or kill -9 and see
// the others go on with its jobs:
//
//	DATABASE_URL=postgres://localhost/postgres go run ./examples/cron -id one
//	DATABASE_URL=postgres://localhost/postgres go run ./examples/cron -id two
//
// A lease has some partitions, and a job belongs to the one that its name hashes to, so that each process runs the jobs of
// the partitions that it owns. scheduler.go runs them, at the ticks of package schedule. README.md in this directory says
// which jobs are exactly once and what to do about the others. Behind PgBouncer in transaction mode, add
// default_query_exec_mode=exec to DATABASE_URL. To look, and to be rid of it all:
//
//	SELECT * FROM pgleases_cron.cron_runs ORDER BY tick DESC LIMIT 20;
//	DROP SCHEMA pgleases_cron, pgleases CASCADE;
package main

import (
	"context"
	"errors"
	"flag"
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

const (
	partitions   = 32
	closeTimeout = 10 * time.Second
)

func main() {
	id := flag.String("id", "", "client ID, unique among live processes; who comes back under it gets its partitions back")
	ttl := flag.Duration("ttl", 6*time.Second, "after how long without a heartbeat others take over")
	flag.Parse()
	url := os.Getenv("DATABASE_URL")
	if url == "" {
		log.Fatal("DATABASE_URL is not set: set it to a database's URL, such as postgres://localhost/postgres")
	}

	// SIGTERM is what Kubernetes and systemd stop a process with.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once

	options := []pgleases.Option{pgleases.WithTTL(*ttl)}
	if *id != "" {
		options = append(options, pgleases.WithClientID(*id))
	}
	if err := run(ctx, url, timetable(), options...); err != nil {
		log.Fatal(err)
	}
}

// timetable returns jobs that do nothing but say so.
func timetable() []Job {
	jobs := []Job{
		{Name: "every quarter of a minute", Schedule: schedule.Every(15 * time.Second), All: true},
		{Name: "every minute", Schedule: schedule.Cron("* * * * *", "UTC")},
		{Name: "every ten minutes", Schedule: schedule.Cron("*/10 * * * *", "UTC")},
		{Name: "at night in Berlin", Schedule: schedule.Cron("30 2 * * *", "Europe/Berlin")},
		{Name: "on the first of the month, and on Mondays", Schedule: schedule.Cron("0 6 1 * MON", "UTC")},
	}
	for i, job := range jobs {
		jobs[i].Do = func(_ context.Context, _ pgx.Tx, tick time.Time) error {
			fmt.Printf("%s: %s\n", tick.Format(time.RFC3339), job.Name)
			return nil
		}
	}
	return jobs
}

// run runs jobs until ctx ends.
func run(ctx context.Context, url string, jobs []Job, options ...pgleases.Option) (err error) {
	for _, job := range jobs {
		if err := job.Schedule.Err(); err != nil {
			return fmt.Errorf("job %q: %w", job.Name, err)
		}
	}
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return fmt.Errorf("DATABASE_URL: %w", err)
	}
	defer pool.Close()
	if err := pool.Ping(ctx); err != nil {
		return fmt.Errorf("DATABASE_URL must lead to a database that lets you in: %w", err)
	}
	if err := createTable(ctx, pool); err != nil {
		return err
	}

	client, err := pgleases.NewClient(ctx, pool, options...)
	if err != nil {
		return err
	}
	defer func() {
		// The jobs have ended by now, so that nothing is in work and Close hands everything over at once: no tick is late.
		// ctx has ended too, hence a context of its own.
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		err = errors.Join(err, client.Close(ctx))
	}()

	lease, err := client.Lease(ctx, "cron", partitions)
	if err != nil {
		return err
	}
	s := scheduler{pool: pool, lease: lease, jobs: jobs}
	err = lease.Run(ctx, s.own)
	if ctx.Err() != nil {
		return nil // it was asked to end
	}
	return err
}
