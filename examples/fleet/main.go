// Command fleet shows what pgleases does, with one command, in less than a minute unless the
// machine is busy:
//
//	go run ./examples/fleet
//
// Four worker processes share 6,000 jobs over 128 partitions, and 40 schedules of each second.
// While they work, a fifth worker is added, one is closed, one is frozen for longer than the TTL
// and thawed, and one is killed. It prints the owners each second. At the end, fleet counts
// in the database how often each job and each tick ran, and prints how long each change of owners
// took. The exit status is 1 if a figure is wrong.
//
// It prints the URL of its database, for the command pgleases in another terminal.
//
// It uses the PostgreSQL server of DATABASE_URL; without DATABASE_URL it starts a server, which
// ends with it. It creates a database and drops it at the end. Ctrl-C ends it early.
//
// This is a demonstration. examples/README.md lists the programs to copy. worker.go is a worker,
// story.go has the events, observe.go reads the tables of pgleases, screen.go prints the owners, and
// summary.go counts; the processes are in examples/internal/show.
package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/examples/internal/show"
	"github.com/pgleases/pgleases/internal/pgtest"
)

const (
	jobCount      = 6_000
	customerCount = 500

	// limit is the time for all jobs. An idle machine needs half a minute, a busy one several times
	// as long.
	limit = 5 * time.Minute
)

func main() {
	id := os.Getenv(envWorker)
	if id != "" {
		if err := work(id); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once; its workers follow it

	problems, err := run(ctx)
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
	pool   *pgxpool.Pool
	screen show.Screen
	crew   *show.Crew

	events []event // the story's only
	frozen *handoff
	probe  probe
}

// run runs the demonstration, and returns what was wrong.
func run(ctx context.Context) (problems []string, err error) {
	began := time.Now()
	databaseURL, drop, err := pgtest.NewDatabase(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, drop()) }()
	fmt.Printf("TTL %v, %d partitions, %s jobs of %d customers, %d schedules of each second\n",
		ttl, partitions, show.Thousands(jobCount), customerCount, schedules)
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
	env := func(id string) []string { return []string{envWorker + "=" + id, envURL + "=" + databaseURL} }
	crew := &show.Crew{Fail: fail, Env: env}
	f := &fleet{pool: pool, screen: show.Screen{Began: began}, crew: crew}
	defer f.crew.KillAll()

	var showing sync.WaitGroup
	shown, hide := context.WithCancel(ctx)
	showing.Go(func() { f.show(shown) })
	err = f.story(ctx, began.Add(limit))
	hide()
	showing.Wait()
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
	fmt.Print(summary(figures, f.events, f.probe, problems, time.Since(began)))
	if len(problems) > 0 {
		f.crew.PrintLogs(os.Stderr)
	}
	return problems, nil
}

// shownURL is the database's URL, without the password if DATABASE_URL has named the server.
func shownURL(databaseURL string) string {
	u, err := url.Parse(databaseURL)
	if err == nil && os.Getenv("DATABASE_URL") != "" {
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
