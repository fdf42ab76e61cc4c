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

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/proof/oracle"
	"github.com/pgleases/pgleases/proof/timeguard"
)

const (
	// envWorker makes a process that calls Main a worker; it holds the Config as JSON.
	envWorker = "PGLEASES_FAULTS_WORKER"
	// envProxies makes it a process full of proxies.
	envProxies = "PGLEASES_FAULTS_PROXIES"
)

// Config is what a worker process does: it opens clients, each of which joins the lease, and watches their Values.
type Config struct {
	URL    string
	Pooled bool   // it leads through PgBouncer
	ID     string // of the client; where there are several, "-0" and so on are added
	// Log is the path of the oracle's log, for which a process has exactly one client; empty: Values is not watched. What
	// the clients log is beside it, in Log + ".txt".
	Log        string
	Lease      string // empty: none is joined
	Partitions int
	TTL        time.Duration
	Handoff    time.Duration // the hand-off delay; 0 is none, not the default
	Clients    int           // 0 is one
	Locks      int           // take so many locks too, of the first client; Log is not empty then
	Effects    bool          // write under Guard
	Schedules  bool          // run Schedules too, with the first client
	Kinds      []string      // only those of these kinds; empty: all
	Orders     bool          // put jobs, and do what operators do to schedules
	DirectURL  string        // for the writes of Effects; empty: URL
	Env        []string      // added to the worker's environment
	Program    string        // that is the worker; empty: this one
	Patience   time.Duration // with a database that cannot be reached at the start
	Fast       bool          // with fast failover
	ProbeURL   string        // of a database that nothing befalls, for the worker's probe; empty: that measures the process alone
}

const (
	// LocksName is the name under which guarded writes under locks stand in the table of Effects.
	LocksName = "locks"
	// LocksSuffix is what the oracle's logs of a worker's locks end with.
	LocksSuffix = ".locks"
)

// LockName is the name of a lock, by number.
func LockName(number int) string { return fmt.Sprintf("lock-%d", number) }

// An Event is what a worker tells about its clients.
type Event struct {
	Kind       string // "joined": all have; "ended": the first one has; "probe": how late the machine was
	Error      string // why it ended
	Superseded bool   // that is pgleases.ErrSuperseded or ErrEvicted
	Left       string // what Close returned

	Until  oracle.Instant    // what a probe tells of
	Spells []timeguard.Spell // in which it was late
}

// Fast is the environment variable that gives all clients of the attacks fast failover, where their connections allow it.
const Fast = "PGLEASES_PROOF_FAST"

// Opened opens a client with these options, and with fast failover where Fast is set.
func Opened(open func(...pgleases.Option) (*pgleases.Client, error), opts ...pgleases.Option) (*pgleases.Client, error) {
	if os.Getenv(Fast) != "" {
		c, err := open(append(opts[:len(opts):len(opts)], fastFailover()...)...)
		if err == nil || !strings.Contains(err.Error(), "WithFastFailover") { // refused behind a pooler, and on PostgreSQL 14
			return c, err
		}
	}
	return open(opts...)
}

// Main makes this process a worker, or one of proxies, and does not return, if Start or StartProxies started it; else it
// returns at once. Programs that call these call it first; a test binary does so in an init function, before package
// testing looks at any flag.
func Main() {
	var err error
	switch text := os.Getenv(envWorker); {
	case os.Getenv(envProxies) != "":
		err = serveProxies(os.Stdin, os.Stdout)
	case text != "":
		var config Config
		if err = json.Unmarshal([]byte(text), &config); err == nil {
			err = work(config, os.Stdin, os.Stdout)
		}
	default:
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "faults:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// work runs until a client ends, or the parent says so: a line closes the clients, the end of the input ends all at once.
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
	tell := func(e Event) error { return json.NewEncoder(output).Encode(e) } // one write each, by several goroutines
	go timeguard.Probe(context.Background(), config.ProbeURL, func(until oracle.Instant, spells []timeguard.Spell) {
		_ = tell(Event{Kind: "probe", Until: until, Spells: spells}) // without a parent, the process ends
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
	leases := make([]*pgleases.Lease, len(clients))
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
		leases[i], err = clients[i].Lease(ctx, config.Lease, config.Partitions, pgleases.WithHandoffDelay(config.Handoff))
		if err != nil && clients[i].Err() == nil {
			return err
		}
	}
	watched, err := watch(ctx, config, leases[0])
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
	if err := tell(Event{Kind: "joined"}); err != nil {
		return err
	}
	first := clients[0]
	select {
	case <-lines:
	case <-first.Done():
	}
	if err := scheduled(); err != nil {
		return err
	}
	closing, stop := context.WithTimeout(ctx, 10*time.Second)
	defer stop()
	var left []error
	for _, c := range clients {
		left = append(left, c.Close(closing))
	}
	// Until here: what Values shows while the client closes is watched too.
	cancel()
	if err := errors.Join(watched(), locked()); err != nil {
		return err
	}
	ended := Event{
		Kind: "ended", Error: first.Err().Error(), Superseded: errors.Is(first.Err(), pgleases.ErrSuperseded) || errors.Is(first.Err(), pgleases.ErrEvicted),
	}
	if err := errors.Join(left...); err != nil {
		ended.Left = err.Error()
	}
	return tell(ended)
}

// watch has the lease watched and written under until ctx ends. What it returns waits for the end of that.
func watch(ctx context.Context, config Config, lease *pgleases.Lease) (func() error, error) {
	if lease == nil || config.Log == "" {
		return func() error { return nil }, nil
	}
	var wg sync.WaitGroup
	var watched error
	recorder, err := oracle.Create(config.Log)
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

// openEffects opens the writes of a lease, by so many writers, and a file beside the log for when they return. They are nil where the
// worker does not write. The server ends transactions that idle for longer than a TTL: the guard in SQL, which
// zombies use, does not limit them, and those of a worker that is paused would keep their partitions.
func openEffects(ctx context.Context, config Config, log, lease string, writers int32) (effects *Effects, shut func(), err error) {
	if !config.Effects {
		return nil, func() {}, nil
	}
	writing, err := pgxpool.ParseConfig(cmp.Or(config.DirectURL, config.URL))
	if err != nil {
		return nil, nil, err
	}
	writing.MaxConns = writers
	writing.ConnConfig.DefaultQueryExecMode = pooled
	writing.ConnConfig.RuntimeParams["idle_in_transaction_session_timeout"] = fmt.Sprint(config.TTL.Milliseconds())
	pool, err := pgxpool.NewWithConfig(ctx, writing)
	if err != nil {
		return nil, nil, err
	}
	returns, err := os.OpenFile(log+returnsSuffix, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, nil, err
	}
	effects = NewEffects(pool, lease)
	effects.Returns = returns
	return effects, func() { pool.Close(); _ = returns.Close() }, nil
}
