// Command fleet shows what pgleases does, with one command, in less than a minute unless the
// machine is busy:
//
//	go run ./examples/fleet
//
// Four worker processes share 6,000 jobs over 128 partitions, and 40 schedules of each second.
// While they work, a fifth worker is added, one is closed, one is frozen for longer than the TTL
// and thawed, and one is killed. The screen shows the owners all the time. At the end, fleet counts
// in the database how often each job and each tick ran, and prints how long each change of owners
// took. The exit status is 1 if a figure is wrong.
//
// It prints the URL of its database, for the command pgleases in another terminal.
//
// It uses the PostgreSQL server of DATABASE_URL; without DATABASE_URL it starts a server, which
// ends with it. It creates a database and drops it at the end. Ctrl-C ends it early.
//
// This is a demonstration. The programs to copy are examples/worker, examples/leader and
// examples/cron. worker.go is a worker, with the jobs of examples/internal/jobs. story.go has the
// events, observe.go reads the tables of pgleases, screen.go draws, and summary.go counts; the
// processes and the display are in examples/internal/show.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/examples/internal/jobs"
	"github.com/pgleases/pgleases/examples/internal/show"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/schedule"
)

const (
	jobCount      = 6_000
	customerCount = 500

	// limit is the time for all jobs. An idle machine needs half a minute, a busy one several times
	// as long.
	limit = 5 * time.Minute
	// maxTTL is the TTL with which all events fit into a minute.
	maxTTL = 10 * time.Second
)

func main() {
	ttl := flag.Duration("ttl", 2*time.Second, "time without a heartbeat after which a worker's partitions are taken over")
	verbose := flag.Bool("v", false, "show what the workers log")
	flag.Parse()

	if id := os.Getenv(envWorker); id != "" {
		if err := work(id, *ttl); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}

	if *ttl < time.Second || *ttl > maxTTL {
		fmt.Fprintf(os.Stderr, "fleet: the TTL %v is out of range here: 1s to %v\n", *ttl, maxTTL)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once; its workers follow it

	problems, err := run(ctx, *ttl, *verbose)
	switch {
	case ctx.Err() != nil:
		fmt.Fprintln(os.Stderr, "fleet: interrupted")
		os.Exit(130)
	case err != nil:
		fmt.Fprintln(os.Stderr, "fleet:", err)
		os.Exit(1)
	case len(problems) > 0:
		os.Exit(1)
	}
}

// A fleet is the workers, and what is needed to watch them.
type fleet struct {
	ttl    time.Duration
	pool   *pgxpool.Pool
	screen *show.Screen
	crew   *show.Crew

	events []event // the story's only
	frozen *handoff
	probe  probe
}

// run runs the demonstration, and returns what was wrong.
func run(ctx context.Context, ttl time.Duration, verbose bool) (problems []string, err error) {
	began := time.Now()
	databaseURL, drop, err := pgtest.NewDatabase(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, drop()) }()
	fmt.Printf("TTL %v, %d partitions, %s jobs of %d customers, %d schedules of each second\n", ttl, jobs.Partitions, show.Thousands(jobCount), customerCount, schedules)
	fmt.Printf("to look at it from another terminal: export DATABASE_URL='%s'\n", shownURL(databaseURL))

	pool, err := connect(ctx, databaseURL)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	if err := prepare(ctx, pool, jobCount, customerCount); err != nil {
		return nil, err
	}

	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	screen := show.NewScreen(os.Stdout, began, verbose)
	crew := &show.Crew{Screen: screen, Fail: fail, Env: func(id string) []string { return []string{envWorker + "=" + id, envURL + "=" + databaseURL} }}
	f := &fleet{ttl: ttl, pool: pool, screen: screen, crew: crew}
	defer f.crew.KillAll()

	var showing sync.WaitGroup
	shown, hide := context.WithCancel(ctx)
	showing.Go(func() { f.show(shown) })
	err = f.story(ctx, began.Add(limit))
	hide()
	showing.Wait()
	f.screen.Clear()
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause // the error is but that the context ended
		}
		return nil, err
	}

	figures, err := count(ctx, pool, f.frozen)
	if err != nil {
		return nil, err
	}
	problems = verdict(figures, f.events, f.probe)
	fmt.Print(summary(figures, f.events, f.probe, problems, ttl, time.Since(began)))
	if len(problems) > 0 {
		f.crew.PrintLogs(os.Stderr)
	}
	return problems, nil
}

// prepare creates the tables, with so many jobs of so many customers.
func prepare(ctx context.Context, pool *pgxpool.Pool, jobCount, customers int) error {
	if err := schedule.Migrate(ctx, pool); err != nil {
		return err
	}
	if err := jobs.Create(ctx, pool, jobCount, customers); err != nil {
		return err
	}
	_, err := pool.Exec(ctx, showTables, pgx.QueryExecModeSimpleProtocol)
	return err
}

// shownURL is the database's URL, without the password if DATABASE_URL has named the server.
func shownURL(databaseURL string) string {
	if u, err := url.Parse(databaseURL); err == nil && os.Getenv("DATABASE_URL") != "" {
		return u.Redacted()
	}
	return databaseURL
}

// connect opens a small pool: seven processes share what the server grants.
func connect(ctx context.Context, url string) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = maxRunning + 2
	// Without prepared statements, which a pooler in transaction mode loses. Clients of pgleases do
	// the same.
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	return pgxpool.NewWithConfig(ctx, config)
}
