// Command schedule shows what package schedule is for, with one command and, unless the machine is busy, in less than a minute:
//
//	go run ./examples/schedule
//
// Four processes run 200 schedules of each second, and some of each minute in zones of their own. While they do, one is closed, one is
// frozen for longer than the TTL and thawed, and one is killed. You see all the time what ran last, what is next, how late
// it was, and what became of it. At the end it counts, in the database, the ticks that there were, their fates, and what
// the handlers wrote; the exit status is 1 if a tick has no fate, or two, or if anything else is not as it should be.
//
// It uses the PostgreSQL server that DATABASE_URL points to, else it starts one for the time of the run. It works in a
// database of its own, which it drops again, unless it is itself killed. Ctrl-C ends it early.
//
// What an application would write is in worker.go. The rest is the show: story.go has the events, screen.go what is shown, and
// summary.go the figures; the processes and the display are in examples/internal/show.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/examples/internal/show"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/schedule"
)

// maxTTL is what all events fit into a minute with.
const maxTTL = 6 * time.Second

func main() {
	worker()
	ttl := flag.Duration("ttl", 2*time.Second, "after how long without a heartbeat the schedules of a process are taken over")
	verbose := flag.Bool("v", false, "show what the processes log")
	flag.Parse()
	if *ttl < time.Second || *ttl > maxTTL {
		fmt.Fprintf(os.Stderr, "schedule: the TTL %v is out of range here: 1s to %v\n", *ttl, maxTTL)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once; its workers follow it

	problems, err := run(ctx, size{TTL: *ttl, Schedules: 200, between: 5 * time.Second, steps: all}, *verbose)
	switch {
	case ctx.Err() != nil:
		fmt.Fprintln(os.Stderr, "schedule: interrupted")
		os.Exit(130)
	case err != nil:
		fmt.Fprintln(os.Stderr, "schedule:", err)
		os.Exit(1)
	case len(problems) > 0:
		os.Exit(1)
	}
}

// A size is how much of a show it is.
type size struct {
	TTL       time.Duration
	Schedules int           // of each second
	between   time.Duration // from one event to the next; two seconds or more
	steps     []func(*story, context.Context) error
}

// run does the whole show, and returns what was not as it should be.
func run(ctx context.Context, z size, verbose bool) (problems []string, err error) {
	began := time.Now()
	url, drop, err := pgtest.NewDatabase(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, drop()) }()
	fmt.Printf("TTL %v, %d schedules of each second, %d of each minute in other zones\n", z.TTL, z.Schedules, len(zones))

	pool, err := connect(ctx, url)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	if err := prepare(ctx, pool); err != nil {
		return nil, err
	}

	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	screen := show.NewScreen(os.Stdout, began, verbose)
	crew := &show.Crew{Screen: screen, Fail: fail, Env: func(id string) []string { return environment(id, url, z) }}
	defer crew.KillAll()
	s := &story{size: z, pool: pool, screen: screen, crew: crew}
	if err := s.tell(ctx); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause // the error is but that the context ended
		}
		return nil, err
	}

	f, err := count(ctx, pool, s.until, s.calm)
	if err != nil {
		return nil, err
	}
	problems = verdict(f, s.events)
	fmt.Print(summary(f, s.events, problems, z.TTL, time.Since(began)))
	if len(problems) > 0 {
		crew.PrintLogs(os.Stderr)
	}
	return problems, nil
}

// prepare makes the tables.
func prepare(ctx context.Context, pool *pgxpool.Pool) error {
	if err := schedule.Migrate(ctx, pool); err != nil {
		return err
	}
	_, err := pool.Exec(ctx, ticksTable, pgx.QueryExecModeSimpleProtocol)
	return err
}

// connect opens a small pool: all processes share what the server grants.
func connect(ctx context.Context, url string) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = maxRunning + 2
	// Without prepared statements, which a pooler in transaction mode loses. The clients of pgleases see to that by themselves.
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	return pgxpool.NewWithConfig(ctx, config)
}
