package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/proof/pgserver"
)

// quiet is the logger of what is measured.
var quiet = slog.New(slog.DiscardHandler)

// A lab holds what the parts are measured with.
type lab struct {
	quick                       bool
	clients, leases, partitions int // of part clients
	ttl                         time.Duration

	durable *pgserver.Server  // commits wait for the disk, as in production
	fast    *pgserver.Server  // commits do not wait: for figures that do not depend on the disk
	bouncer *pgserver.Bouncer // nil if PgBouncer is not installed
}

const serverConnections = 20 // PgBouncer's connections to the server

// start starts the servers: one in a quick run, otherwise two.
func (l *lab) start(ctx context.Context) {
	settings := pgserver.WithSettings(map[string]string{
		"checkpoint_timeout": "1h", "max_wal_size": "4GB", // only a measurement starts checkpoints
		"shared_preload_libraries": "pg_stat_statements", "pg_stat_statements.track": "none", "compute_query_id": "off",
	})
	l.fast = must(pgserver.Start(ctx, settings))
	l.durable = l.fast
	if !l.quick {
		l.durable = must(pgserver.Start(ctx, settings, pgserver.WithDurable()))
	}
	bouncer, err := pgserver.PgBouncer(ctx, l.durable.URL(), pgserver.WithPoolSize(serverConnections),
		pgserver.WithBouncerSettings(map[string]string{"max_client_conn": fmt.Sprint(l.clients + 1000)}))
	if lacks := (pgserver.NotInstalled{}); !errors.As(err, &lacks) {
		check(err)
		l.bouncer = bouncer
	}
}

func (l *lab) close() (err error) {
	if l.bouncer != nil {
		err = l.bouncer.Stop()
	}
	for _, server := range []*pgserver.Server{l.fast, l.durable} {
		if server != nil {
			err = errors.Join(err, server.Stop()) // idempotent
		}
	}
	return err
}

// pick returns quick in a quick run, otherwise full.
func (l *lab) pick(quick, full int) int {
	if l.quick {
		return quick
	}
	return full
}

// describe returns a description of the machine and the versions.
func (l *lab) describe() string {
	machine, _, _ := strings.Cut(runtime.GOARCH+"\n", "\n")
	text, _ := os.ReadFile("/proc/cpuinfo") // missing on other systems
	if _, after, found := strings.Cut(string(text), "model name"); found {
		machine, _, _ = strings.Cut(strings.TrimLeft(after, " \t:"), "\n")
	}
	release, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	load, _ := os.ReadFile("/proc/loadavg")
	average, _, _ := strings.Cut(string(load), " ")
	pgx := "of unknown version"
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			if dep.Path == "github.com/jackc/pgx/v5" {
				pgx = strings.TrimPrefix(dep.Version, "v")
			}
		}
	}
	server, _, _ := strings.Cut(l.durable.Describe(), " from ")
	bouncer := "no PgBouncer"
	if l.bouncer != nil {
		bouncer, _, _ = strings.Cut(l.bouncer.Describe(), " from ")
	}
	return fmt.Sprintf("%s, %d cores, %s %s, load average before: %s; Go %s, pgx %s, %s with fsync, %s",
		machine, runtime.NumCPU(), runtime.GOOS, strings.TrimSpace(string(release)), average,
		strings.TrimPrefix(runtime.Version(), "go"), pgx, server, bouncer)
}

// A database is a database that only one measurement uses.
type database struct {
	*pgxpool.Pool
	url        string
	postmaster int
	drop       func() error
}

// newDatabase creates a database whose statements are counted, with a pool for the harness.
func (l *lab) newDatabase(ctx context.Context, server *pgserver.Server, connections int) *database {
	const count = `CREATE EXTENSION pg_stat_statements;
DO $$
BEGIN
    EXECUTE format('ALTER DATABASE %I SET pg_stat_statements.track = top', current_database());
    EXECUTE format('ALTER DATABASE %I SET compute_query_id = on', current_database());
END $$`
	url, drop, err := pgserver.CreateDatabase(ctx, server.URL())
	check(err)
	d := &database{Pool: newPool(ctx, url, connections), url: url, drop: drop}
	d.all(ctx, count)
	d.Reset() // only new sessions are counted
	d.postmaster = one[int](ctx, d, "SELECT split_part(pg_read_file('postmaster.pid'), E'\\n', 1)::int")
	return d
}

// end drops the database. It ignores errors, because the database ends with the server.
func (d *database) end() {
	d.Close()
	_ = d.drop()
}

func newPool(ctx context.Context, url string, connections int, configure ...func(*pgxpool.Config)) *pgxpool.Pool {
	config := must(pgxpool.ParseConfig(url))
	config.MaxConns = int32(connections)
	for _, f := range configure {
		f(config)
	}
	return must(pgxpool.NewWithConfig(ctx, config))
}

// connect returns a connection, and a function that closes it.
func connect(ctx context.Context, url string) (conn *pgx.Conn, end func()) {
	conn = must(pgx.Connect(ctx, url))
	return conn, func() { _ = conn.Close(context.Background()) }
}

// one returns the only value of a query.
func one[T any](ctx context.Context, d *database, query string, args ...any) (value T) {
	check(d.QueryRow(ctx, query, args...).Scan(&value))
	return value
}

// ask returns the only row of a query as a struct, by position.
func ask[T any](ctx context.Context, d *database, query string, args ...any) T {
	rows, _ := d.Query(ctx, query, args...) // CollectExactlyOneRow returns the error
	return must(pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[T]))
}

// all runs statements one after the other.
func (d *database) all(ctx context.Context, statements ...string) {
	for _, s := range statements {
		must(d.Exec(ctx, s, pgx.QueryExecModeSimpleProtocol))
	}
}

// patience is the longest wait of a measurement.
const patience = 2 * time.Minute

// until polls a query until it returns true, because there is no notification of a change.
func (d *database) until(ctx context.Context, what, query string, args ...any) {
	began, again := time.Now(), time.NewTicker(5*time.Millisecond)
	defer again.Stop()
	for !one[bool](ctx, d, query, args...) {
		<-again.C
		if time.Since(began) > patience {
			check(fmt.Errorf("not within %v: %s", patience, what))
		}
	}
}

// reaches polls a counter until it has reached n.
func reaches(n int, what string, counter func() int) {
	for began := time.Now(); counter() < n; time.Sleep(5 * time.Millisecond) {
		if time.Since(began) > patience {
			check(fmt.Errorf("%d of %d %s within %v", counter(), n, what, patience))
		}
	}
}

// A usage is what was used during a time. An unknown value is 0.
type usage struct {
	span time.Duration
	processors
	wal                 float64 // bytes
	statements          int
	heartbeats, lockers int // of the statements: heartbeats, and polls of locks
}

// statementCounts leaves out the harness's own statements.
const statementCounts = `SELECT coalesce(sum(calls), 0)::int,
    coalesce(sum(calls) FILTER (WHERE query LIKE '%.heartbeat(%'), 0)::int,
    coalesce(sum(calls) FILTER (WHERE query LIKE '%.lock_look(%'), 0)::int
FROM pg_stat_statements WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND query NOT LIKE '%pg_stat_statements%' AND query NOT LIKE '%pg_current_wal%' AND query NOT LIKE '%public.%'`

// used returns the usage until now.
func (d *database) used(ctx context.Context) (u usage) {
	u.processors = processorTimes(d.postmaster)
	u.wal = one[float64](ctx, d, "SELECT (pg_current_wal_insert_lsn() - '0/0')::float8")
	check(d.QueryRow(ctx, statementCounts).Scan(&u.statements, &u.heartbeats, &u.lockers))
	return u
}

// during returns the usage while do runs.
func (d *database) during(ctx context.Context, do func()) usage {
	before, began := d.used(ctx), time.Now()
	do()
	span, after := time.Since(began), d.used(ctx)
	return usage{
		span: span,
		processors: processors{
			server:  after.server - before.server,
			pooler:  after.pooler - before.pooler,
			workers: after.workers - before.workers,
			bench:   after.bench - before.bench,
		},
		wal:        after.wal - before.wal,
		statements: after.statements - before.statements,
		heartbeats: after.heartbeats - before.heartbeats,
		lockers:    after.lockers - before.lockers,
	}
}

// calm returns the usage while the harness is idle.
func (d *database) calm(ctx context.Context, span time.Duration) usage {
	return d.during(ctx, func() { pause(ctx, span) })
}

// pause waits for a while.
func pause(ctx context.Context, span time.Duration) {
	select {
	case <-time.After(span):
	case <-ctx.Done():
		check(context.Cause(ctx))
	}
}

// processors are processor times: of a server's processes, including those that have ended, and of
// this process, its poolers and its workers.
type processors struct{ server, pooler, workers, bench time.Duration }

func (p processors) String() string {
	return fmt.Sprintf("server %s, clients %s, PgBouncer %s, the bench %s",
		duration(p.server), duration(p.workers), duration(p.pooler), duration(p.bench))
}

// A process is what /proc says about one.
type process struct {
	id, name, parent string
	own, ended       time.Duration // processor time: its own, and that of its children that have ended
}

// processes returns all processes. It returns none on a system without /proc.
func processes() (all []process) {
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range files {
		text, _ := os.ReadFile(file) // the process may have ended
		before, rest, _ := strings.Cut(string(text), ") ")
		_, name, _ := strings.Cut(before, " (")
		fields := strings.Fields(rest)
		if len(fields) < 15 {
			continue
		}
		ticks := func(of []string) (sum time.Duration) {
			for _, field := range of {
				n, _ := strconv.Atoi(field)
				sum += time.Duration(n) * 10 * time.Millisecond
			}
			return sum
		}
		all = append(all, process{
			id:     filepath.Base(filepath.Dir(file)),
			name:   name,
			parent: fields[1],
			own:    ticks(fields[11:13]),
			ended:  ticks(fields[13:15]),
		})
	}
	return all
}

// exact returns the processor time of a process with one thread. In the file that processes reads, it
// is rounded to 10 ms.
func (p process) exact() time.Duration {
	text, _ := os.ReadFile("/proc/" + p.id + "/schedstat")
	ran, _, _ := strings.Cut(string(text), " ")
	ns, err := strconv.ParseInt(ran, 10, 64)
	if err != nil { // the kernel does not count it, or the process has ended
		return p.own
	}
	return time.Duration(ns)
}

// processorTimes returns the processor times until now.
func processorTimes(postmaster int) (times processors) {
	server, bench := strconv.Itoa(postmaster), strconv.Itoa(os.Getpid())
	for _, p := range processes() {
		switch {
		case p.id == server:
			times.server += p.exact() + p.ended
		case p.parent == server:
			times.server += p.exact()
		case p.id == bench:
			times.bench = p.own
		case p.parent == bench && p.name == "pgbouncer":
			times.pooler += p.own
		case p.parent == bench:
			times.workers += p.own
		}
	}
	return times
}
