// Command bench measures what the library costs and how fast it is, each figure beside its floor or its rival, which is
// measured in the same run:
//
//	go run ./bench [-quick] [-whole] [-run REGEXP] [-o FILE]
//
// It starts a PostgreSQL and a PgBouncer of its own (package pgserver says from which programs) and prints a table in Markdown. With -o it
// also writes a page with the table, the machine and the versions, and plots beside it. A figure says what was measured, also
// where it missed its goal; the exit status tells only whether it could be measured.
//
// One file for each part of the table: values.go, heartbeat.go, guard.go, moves.go, events.go, plan.go, large.go, latency.go, crowd.go,
// locks.go, viewers.go, jobs.go, schedules.go, multitude.go. The parts multitude, and names of locks.go, are measured only where -run names
// them: they take minutes.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pgleases/pgleases/proof/pgserver"
)

// parts are measured in this order.
var parts = []struct {
	name, title string
	measure     func(context.Context, *lab, *part) error
	named       bool // measured only where -run is given: it takes long
}{
	{"values", "Reading what is owned", measureValues, false},
	{"heartbeat", "Heartbeats", measureHeartbeats, false},
	{"guard", "Guard", measureGuard, false},
	{"moves", "Partitions moved", measureMoves, false},
	{"events", "What events cost", measureEvents, false},
	{"plan", "The plan", measurePlans, false},
	{"large", "Large leases", measureLarge, false},
	{"listen", "How fast, with notifications", measureListening, false},
	{"poll", "How fast, polling through PgBouncer", measurePolling, false},
	{"crowd", "A crowd of clients", measureCrowd, false},
	{"locks", "Named locks", measureLocks, false},
	{"viewers", "Looking at the dashboard", measureViewers, false},
	{"jobs", "Jobs", measureJobs, false},
	{"schedules", "Schedules", measureSchedules, false},
	{"multitude", "Ten thousand clients", measureMultitude, true},
	{"names", "A million names of locks", measureNames, true},
}

func main() {
	workIfAsked()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// run is main, for the test too.
func run(ctx context.Context, args []string, out, progress io.Writer) error {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(progress)
	quick := flags.Bool("quick", false, "small samples: shows that everything runs, not how fast")
	whole := flags.Bool("whole", false, "beside an old snapshot, work jobs for ten minutes and not for 20 s")
	only := flags.String("run", "", "measure only the parts that match this `regexp`: "+strings.Join(partNames(), ", "))
	file := flags.String("o", "", "write a page to this `file`, and plots beside it")
	if err := flags.Parse(args); err != nil {
		return err
	}
	wanted, err := regexp.Compile(*only)
	if err != nil {
		return fmt.Errorf("-run: %w", err)
	}
	if !slices.ContainsFunc(partNames(), wanted.MatchString) {
		return fmt.Errorf("-run %s matches none of %s", *only, strings.Join(partNames(), ", "))
	}
	began := time.Now()
	l, err := newLab(ctx, *quick)
	if err != nil {
		return err
	}
	l.whole = *whole
	page, err := l.measure(ctx, wanted, progress)
	err = errors.Join(err, l.close())
	page.command = commandLine(args)
	page.took = time.Since(began)
	fmt.Fprintln(out, page.tables())
	if *file != "" {
		err = errors.Join(err, page.write(*file)) // what was measured before an error too
	}
	return err
}

// commandLine returns what a shell takes for a run with these arguments.
func commandLine(args []string) string {
	line := "go run ./bench"
	for _, arg := range args {
		if strings.ContainsAny(arg, " |&;()<>*?[]$\"\\") {
			arg = "'" + arg + "'"
		}
		line += " " + arg
	}
	return line
}

func partNames() []string {
	names := make([]string, len(parts))
	for i, p := range parts {
		names[i] = p.name
	}
	return names
}

// A lab is what the parts are measured with.
type lab struct {
	quick   bool
	whole   bool              // what takes many minutes takes them
	durable *pgserver.Server  // commits wait for the disk, as they do in production
	fast    *pgserver.Server  // they do not: for what does not depend on it
	counts  bool              // the server counts statements, in databases that ask for it
	bouncer *pgserver.Bouncer // nil where PgBouncer is not installed
	late    *lateness
}

// settings of the server: a checkpoint comes where a measurement asks for it.
var settings = map[string]string{"checkpoint_timeout": "1h", "max_wal_size": "4GB"}

// counting are settings with which the server counts statements, which it does in no database yet.
var counting = map[string]string{
	"shared_preload_libraries": "pg_stat_statements", "pg_stat_statements.track": "none", "compute_query_id": "off",
}

// newLab starts the servers. In a hurry one has to do for both.
func newLab(ctx context.Context, quick bool) (_ *lab, err error) {
	l := &lab{quick: quick, late: watchMachine()}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.close())
		}
	}()
	start := func(more ...pgserver.Option) (*pgserver.Server, error) {
		return pgserver.Start(ctx, append(more, pgserver.WithSettings(settings))...)
	}
	if l.fast, err = start(pgserver.WithSettings(counting)); err == nil {
		l.counts = true
	} else if l.fast, err = start(); err != nil { // it may be without the extensions
		return l, err
	}
	l.durable = l.fast
	if !quick {
		more := []pgserver.Option{pgserver.WithDurable()}
		if l.counts {
			more = append(more, pgserver.WithSettings(counting))
		}
		if l.durable, err = start(more...); err != nil {
			return l, err
		}
	}
	l.bouncer, err = pgserver.PgBouncer(ctx, l.durable.URL())
	if errors.Is(err, pgserver.ErrNotInstalled) {
		err = nil
	}
	return l, err
}

func (l *lab) close() error {
	l.late.stop()
	var errs []error
	if l.bouncer != nil {
		errs = append(errs, l.bouncer.Stop())
	}
	for _, server := range []*pgserver.Server{l.fast, l.durable} {
		if server != nil {
			errs = append(errs, server.Stop()) // idempotent
		}
	}
	return errors.Join(errs...)
}

// measure measures the wanted parts, one after the other; in a hurry all at once. What was measured before an error is
// returned with it.
func (l *lab) measure(ctx context.Context, wanted *regexp.Regexp, progress io.Writer) (*page, error) {
	p := &page{system: describeSystem(l)}
	var steps []func() error
	var telling sync.Mutex // guards progress
	for _, each := range parts {
		if !wanted.MatchString(each.name) || each.named && wanted.String() == "" {
			continue
		}
		done := &part{name: each.name, title: each.title}
		p.parts = append(p.parts, done)
		steps = append(steps, func() error {
			began := time.Now()
			if err := each.measure(ctx, l, done); err != nil {
				return fmt.Errorf("%s: %w", each.name, err)
			}
			telling.Lock()
			defer telling.Unlock()
			fmt.Fprintf(progress, "bench: %s: %.1f s\n", each.name, time.Since(began).Seconds())
			return nil
		})
	}
	if l.quick {
		return p, together(len(steps), func(i int) error { return steps[i]() })
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return p, err
		}
	}
	return p, nil
}

// pick returns a sample's size.
func (l *lab) pick(quick, full int) int {
	if l.quick {
		return quick
	}
	return full
}

// newDatabase makes a database for one measurement. A drop that fails leaves it to the end of the server.
func newDatabase(ctx context.Context, server *pgserver.Server) (url string, drop func(), err error) {
	url, dropped, err := pgserver.CreateDatabase(ctx, server.URL())
	return url, func() { _ = dropped() }, err
}

// beside returns the path of a file in the same folder.
func beside(file, name string) string { return filepath.Join(filepath.Dir(file), name) }
