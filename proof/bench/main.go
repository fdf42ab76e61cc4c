// Command bench measures what the library costs and how fast it is. Each figure is beside a lower
// bound or a competitor, which is measured in the same run:
//
//	go run ./bench [-run REGEXP] [-o FILE] [-clients N] [-leases N] [-partitions N] [-ttl D]
//
// It starts a PostgreSQL server and a PgBouncer (see package pgserver), and prints tables in
// Markdown. With -o it also writes a page with the tables, the machine and the versions. A figure
// is reported even if it missed its goal. The exit status is 0 if everything could be measured. A
// full run takes a quarter of an hour on an idle machine.
//
// Each part of the page has a file: values.go, heartbeat.go, guard.go, events.go, plan.go, large.go,
// owners.go, wide.go, tenants.go, latency.go, deploy.go, start.go, clients.go, locks.go, jobs.go,
// schedules.go, consumers.go, inserts.go, ill.go, backlog.go. They share measure.go (samples, rounds,
// tables), lab.go (servers and their usage), group.go (clients and their partitions) and worker.go
// (clients in processes that can be killed).
package main

import (
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"time"
)

// parts are measured in this order.
var parts = []struct {
	name, title string
	measure     func(context.Context, *lab, *part)
}{
	{"values", "Reading what is owned", measureValues},
	{"heartbeat", "Heartbeats", measureHeartbeats},
	{"guard", "Guard", measureGuard},
	{"events", "What events cost", measureEvents},
	{"plan", "The plan", measurePlans},
	{"large", "Large leases", measureLarge},
	{"owners", "Looking up owners", measureOwners},
	{"wide", "Many leases and partitions of others", measureWide},
	{"tenants", "A lease for each of many tenants", measureTenants},
	{"listen", "Join, Close and kill, with notifications", measureListening},
	{"poll", "Join, Close and kill, polling through PgBouncer", measurePolling},
	{"deploy", "A rolling deploy", measureDeploy},
	{"start", "A start of many clients", measureStart},
	{"clients", "Many clients", measureClients},
	{"locks", "Named locks", measureLocks},
	{"jobs", "Jobs", measureJobs},
	{"schedules", "Schedules", measureSchedules},
	{"consumers", "Consumers of a queue table", measureConsumers},
	{"inserts", "Inserts into a queue table", measureInserts},
	{"ill", "Healthy work beside ill work", measureIll},
	{"backlogs", "Backlogs", measureBacklogs},
}

const introduction = `# Figures

This page says what the library costs and how fast it is. If you only want to know how large your fleet may be, read
[how far one PostgreSQL goes](sizing.md#how-far-one-postgresql-goes).

A figure alone says little, so each one stands beside something that was measured in the same run. That is either
a lower bound, which any implementation has to pay, or a competitor. The factor behind it compares the two, so 0.9x
beside 1,000/s means that our figure is about 900/s. The last column has the goal that we set ourselves, and says
whether it was met. Figures are medians. The clients, the harness and the database share the processors.

Two sides that are measured in turns have the median of the ratios of all rounds. Behind it stands how well that
median is known: with a probability of 95 %, it is not farther off than this share of it. We measure until that is
below 5 %, and at most 15 s for each group of sides. So a share above 5 % says that the time was up.

`

// notes end the page: where the time goes, and what was measured apart.
//
//go:embed notes.md
var notes string

// highlights are the rows that the page begins with, by their first words.
var highlights = []string{
	"`Values()`, goroutines: 1",
	"heartbeats of 16 sessions, 1 x 16 ",
	"a transaction of one `UPDATE`, with `Guard`",
	"from `Client.Lease` to even shares",
	"from `Close` until all are owned",
	"from the expiry after kill -9 until all are owned again |",
	"server's processor time for 1,000 clients",
	"`TryAcquire` and `Release`",
	"one-off jobs",
	"how late runs are",
}

// summary repeats the highlights, each beside the first thing of its row.
func summary(tables string) string {
	var b strings.Builder
	for _, words := range highlights {
		if _, rest, found := strings.Cut(tables, "\n| "+words); found {
			line, _, _ := strings.Cut(rest, "\n")
			cells := strings.Split(words+line, " | ")
			beside, _, _ := strings.Cut(cells[2], "<br>")
			fmt.Fprintf(&b, "- %s: **%s** (%s)\n", cells[0], cells[1], beside)
		}
	}
	return b.String() + "\n"
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

// run is main without the process's arguments and output, for the test.
func run(ctx context.Context, args []string, out, progress io.Writer) error {
	var names []string
	for _, p := range parts {
		names = append(names, p.name)
	}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(progress)
	l := &lab{}
	flags.IntVar(&l.clients, "clients", 1000, "clients of the part named clients")
	flags.IntVar(&l.leases, "leases", 1, "leases that those clients share")
	flags.IntVar(&l.partitions, "partitions", 10_000, "partitions of those leases together")
	flags.DurationVar(&l.ttl, "ttl", 6*time.Second, "TTL of those clients")
	only := flags.String("run", "", "measure only the parts that match this `regexp`: "+strings.Join(names, ", "))
	file := flags.String("o", "", "write a page to this `file`")
	if err := flags.Parse(args); err != nil {
		return err
	}
	wanted, err := regexp.Compile(*only)
	if err != nil {
		return fmt.Errorf("-run: %w", err)
	}
	began := time.Now()
	err = attempt(func() { l.start(ctx) })
	if err != nil {
		return errors.Join(err, l.close())
	}
	var tables []string
	system := l.describe()
	for _, each := range parts {
		if err != nil || !wanted.MatchString(each.name) {
			continue
		}
		p, from := &part{name: each.name, title: each.title}, time.Now()
		// What was measured before an error is written too.
		err = attempt(func() { each.measure(ctx, l, p) })
		if err != nil {
			err = fmt.Errorf("%s: %w", each.name, err)
		}
		tables = append(tables, p.String())
		fmt.Fprintln(out, p)
		fmt.Fprintf(progress, "bench: %s: %.1f s\n", each.name, time.Since(from).Seconds())
	}
	err = errors.Join(err, l.close())
	if len(tables) == 0 {
		return errors.Join(err, fmt.Errorf("-run %s matches none of %s", *only, strings.Join(names, ", ")))
	}
	if *file == "" {
		return err
	}
	page := strings.Join(tables, "\n")
	command := fmt.Sprintf("Measured by `go -C proof run ./bench %s` in %s, on %s. "+
		"To repeat one table, give `-run` the name that stands in its first cell.\n\n",
		strings.Join(args, " "), time.Since(began).Round(time.Second), system)
	return errors.Join(err, os.WriteFile(*file, []byte(introduction+summary(page)+command+page+notes), 0o644))
}
