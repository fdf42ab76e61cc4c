//go:build unix

package faults

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/timeguard"
	"github.com/pgleases/pgleases/proof/oracle"
	"github.com/pgleases/pgleases/proof/oracle/leases"
	"github.com/pgleases/pgleases/proof/oracle/writes"
)

// envWorker makes a process that calls Main a worker. It holds the Config as JSON.
const envWorker = "PGLEASES_FAULTS_WORKER"

// Config is the configuration of a worker process, which opens clients that join the lease, and
// watches their Values.
type Config struct {
	URL    string
	Pooled bool   // URL leads through PgBouncer
	ID     string // of the client; if there are several clients, "-0" and so on are appended
	// Log is the path of the oracle's log, which requires that the process has exactly one client.
	// Empty: Values is not watched. The clients' log messages are in Log + ".txt".
	Log        string
	Lease      string // empty: no lease
	Partitions int
	TTL        time.Duration
	Clients    int           // 0 means 1
	Locks      int           // the number of locks to take, with the first client; requires Log
	Effects    bool          // write under Guard
	Schedules  bool          // run Schedules, with the first client
	Kinds      []string      // only these kinds of schedules; empty: all
	Orders     bool          // enqueue jobs, and operate schedules
	Queue      *Queue        // work through the queue, with the first client; nil: no queue
	DirectURL  string        // for the writes of Effects; empty: URL
	FenceURL   string        // a database with a fence, for the writes of Effects; empty: Guard is called at DirectURL
	Env        []string      // additional environment variables
	Patience   time.Duration // how long to retry an unreachable database at the start
	Fast       bool          // with fast failover
	Delay      time.Duration // the rebalance delay of the lease
	Grace      time.Duration // the restart grace of the lease
	// A database without faults, for the worker's probe; empty: the probe measures only the
	// process.
	ProbeURL string
}

const (
	// LocksName is the lease name of writes under locks in the table of Effects.
	LocksName = "locks"
	// FenceSchema is the schema of the fence at FenceURL.
	FenceSchema = "pgleases"
)

// LockName returns the name of a lock, by number.
func LockName(number int) string { return fmt.Sprintf("lock-%d", number) }

// An Event is a message from a worker about its clients.
type Event struct {
	// "joined": all clients; "ended": the first client; "probe": the probe's findings.
	Kind       string
	Error      string // why the first client ended
	Superseded bool   // Error is pgleases.ErrSuperseded or ErrEvicted
	Left       string // the error of Close

	Until  oracle.Instant    // the end of the probe's report
	Spells []timeguard.Spell // the times when the process was late
}

// Fast is the environment variable that gives all clients of the attacks fast failover, if their
// connections allow it.
const Fast = "PGLEASES_PROOF_FAST"

// Opened opens a client with these options, and with fast failover if Fast is set.
func Opened(
	open func(...pgleases.Option) (*pgleases.Client, error), opts ...pgleases.Option,
) (*pgleases.Client, error) {
	if os.Getenv(Fast) != "" {
		c, err := open(append(opts[:len(opts):len(opts)], fastFailover()...)...)
		// It is refused behind a pooler, and on PostgreSQL 14.
		if err == nil || !strings.Contains(err.Error(), "WithFastFailover") {
			return c, err
		}
	}
	return open(opts...)
}

// Main makes this process a worker, and does not return, if Start started it. Otherwise it returns
// at once. A program that calls Start must call Main first. A test binary does so in an init
// function, before package testing parses flags.
func Main() {
	text := os.Getenv(envWorker)
	if text == "" {
		return
	}
	var config Config
	err := json.Unmarshal([]byte(text), &config)
	if err == nil {
		err = work(config, os.Stdin, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "faults:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// work runs until its first client ends or the parent asks it to end. A line on the input closes
// the clients; the end of the input ends the process at once.
func work(config Config, input io.Reader, output io.Writer) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	lines := make(chan struct{})
	go func() {
		r := bufio.NewReader(input)
		if _, err := r.ReadString('\n'); err != nil {
			os.Exit(0)
		}
		close(lines)
		_, _ = io.Copy(io.Discard, r)
		os.Exit(0)
	}()
	// One write per event, because several goroutines write.
	tell := func(e Event) error { return json.NewEncoder(output).Encode(e) }
	go timeguard.Probe(context.Background(), config.ProbeURL, func(until oracle.Instant, spells []timeguard.Spell) {
		// An error is ignored: without a parent, the process ends.
		_ = tell(Event{Kind: "probe", Until: until, Spells: spells})
	})
	log := slog.New(slog.DiscardHandler)
	if config.Log != "" {
		f, err := os.OpenFile(config.Log+".txt", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			return err
		}
		log = slog.New(slog.NewTextHandler(f, nil))
	}
	clients := make([]*pgleases.Client, max(1, config.Clients))
	joined := make([]*pgleases.Lease, len(clients))
	for i := range clients {
		id := config.ID
		if config.Clients > 0 {
			id = fmt.Sprintf("%s-%d", id, i)
		}
		var err error
		for began := time.Now(); ; pause(ctx, 50*time.Millisecond) {
			opts := []pgleases.Option{pgleases.WithClientID(id), pgleases.WithTTL(config.TTL), pgleases.WithLogger(log)}
			if config.Fast {
				opts = append(opts, fastFailover()...)
			}
			clients[i], err = Opened(func(opts ...pgleases.Option) (*pgleases.Client, error) {
				return pgleases.Open(ctx, config.URL, opts...)
			}, opts...)
			if err == nil || time.Since(began) >= config.Patience {
				break
			}
		}
		if err != nil {
			return err
		}
		if config.Lease == "" {
			continue
		}
		for began := time.Now(); ; pause(ctx, 50*time.Millisecond) {
			joined[i], err = clients[i].Lease(ctx, config.Lease, config.Partitions, pgleases.WithHandoffDelay(0),
				pgleases.WithRebalanceDelay(config.Delay), pgleases.WithRestartGrace(config.Grace))
			if !lacksRights(err) || time.Since(began) >= config.Patience {
				break
			}
		}
		if err != nil && clients[i].Err() == nil {
			return err
		}
	}
	watched, err := watch(ctx, config, joined[0])
	if err != nil {
		return err
	}
	locked, err := takeLocks(ctx, config, clients[0])
	if err != nil {
		return err
	}
	scheduled, err := runSchedules(config, clients[0], log)
	if err != nil {
		return err
	}
	queued, err := runQueue(config, clients[0], joined[0], log)
	if err != nil {
		return err
	}
	if err := tell(Event{Kind: "joined"}); err != nil {
		return err
	}
	first := clients[0]
	select {
	case <-lines:
	case <-first.Done():
	}
	if err := errors.Join(scheduled(), queued()); err != nil {
		return err
	}
	closing, stop := context.WithTimeout(ctx, 10*time.Second)
	defer stop()
	var left []error
	for _, c := range clients {
		left = append(left, c.Close(closing))
	}
	// Only now, because Values is watched while the client closes too.
	cancel()
	if err := errors.Join(watched(), locked()); err != nil {
		return err
	}
	why := first.Err()
	ended := Event{
		Kind:       "ended",
		Error:      why.Error(),
		Superseded: errors.Is(why, pgleases.ErrSuperseded) || errors.Is(why, pgleases.ErrEvicted),
	}
	if err := errors.Join(left...); err != nil {
		ended.Left = err.Error()
	}
	return tell(ended)
}

// lacksRights reports whether an error says that the role lacks rights, which a fault takes away.
func lacksRights(err error) bool {
	var refused *pgconn.PgError
	return errors.As(err, &refused) && refused.Code == "42501"
}

// watch starts goroutines that watch the lease, and write under it, until ctx ends. The function
// that it returns waits for their end.
func watch(ctx context.Context, config Config, lease *pgleases.Lease) (func() error, error) {
	if lease == nil || config.Log == "" {
		return func() error { return nil }, nil
	}
	var wg sync.WaitGroup
	var watched error
	recorder, err := leases.Create(config.Log)
	if err != nil {
		return nil, err
	}
	wg.Go(func() { watched = errors.Join(recorder.Watch(ctx, lease), recorder.Close()) })
	effects, shut, err := openEffects(ctx, config, config.Log, config.Lease, effectsWriters)
	if err != nil {
		return nil, err
	}
	if effects != nil {
		for range effectsWriters {
			wg.Go(func() { effects.Write(ctx, lease, config.ID) })
		}
	}
	return func() error { wg.Wait(); shut(); return watched }, nil
}

const effectsWriters = 2

// openEffects opens the writes of a lease, for a number of writers, and a file beside the log for
// the times when they return. It returns nil if the worker does not write. The server ends
// transactions that are idle for longer than a TTL. Otherwise the transactions of a paused worker
// would keep their partitions, because the guard in SQL, which zombies use, sets no limit.
func openEffects(
	ctx context.Context, config Config, log, lease string, writers int32,
) (effects *Effects, shut func(), err error) {
	if !config.Effects {
		return nil, func() {}, nil
	}
	writing, err := pgxpool.ParseConfig(cmp.Or(config.FenceURL, config.DirectURL, config.URL))
	if err != nil {
		return nil, nil, err
	}
	writing.MaxConns = writers
	writing.ConnConfig.DefaultQueryExecMode = pooled
	if config.FenceURL == "" { // a fence has a limit of its own
		writing.ConnConfig.RuntimeParams["idle_in_transaction_session_timeout"] = fmt.Sprint(config.TTL.Milliseconds())
	}
	pool, err := pgxpool.NewWithConfig(ctx, writing)
	if err != nil {
		return nil, nil, err
	}
	returns, err := os.OpenFile(log+writes.Suffix, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, nil, err
	}
	effects = NewEffects(pool, lease)
	effects.Returns = returns
	if config.FenceURL != "" {
		effects.Fence = FenceSchema
	}
	return effects, func() { pool.Close(); _ = returns.Close() }, nil
}
