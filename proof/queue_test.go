//go:build unix

package proof_test

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/proof/faults"
	"github.com/pgleases/pgleases/proof/pgserver"
	"github.com/pgleases/pgleases/proof/timeguard"
)

var queueSeed = flag.Uint64("queue-seed", 0, "seed of the faults of processes that work through a queue; 0: random")

// A queueFleet is a fleet that works through a queue.
type queueFleet struct {
	*faults.Fleet
	t              *timeguard.Try
	database       *faults.Database
	pool, receiver *pgxpool.Pool
}

// newQueueFleet starts three workers. url leads to the database, in some cases through a pooler.
func newQueueFleet(t *timeguard.Try, url string, database *faults.Database, partitions int, queue faults.Queue, outside bool) *queueFleet {
	t.Helper()
	seed := *queueSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d", seed)
	q := &queueFleet{t: t, database: database, pool: newPool(t, database.URL, size(2))}
	if err := pgleases.Migrate(t.Context(), q.pool); err != nil {
		t.Fatal(err)
	}
	execute(t, q.pool, faults.QueueTables(partitions))
	if outside {
		queue.Receiver = pgserver.EmptyDatabase(t)
		q.receiver = newPool(t, queue.Receiver, size(2))
		execute(t, q.receiver, faults.HandledTable)
	}
	dir := t.TempDir()
	queue.Outage = filepath.Join(dir, "outage")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var err error
	q.Fleet, err = faults.NewFleet(ctx, faults.Config{
		URL: url, Pooled: database.Bouncer != nil, DirectURL: database.URL, Lease: "l", Partitions: partitions, TTL: time.Second, Queue: &queue,
		Patience: patience, ProbeURL: probeURL(t),
	}, dir, 3, seed)
	t.Cleanup(func() { endFleet(t, q.Fleet, 60) })
	if err != nil {
		t.Fatal(err)
	}
	// The fault "many clients" needs too many connections.
	q.Faults = slices.DeleteFunc(slices.Clone(q.Faults), func(f faults.Fault) bool { return f.Name == "many clients" })
	return q
}

// produce lets the application use a number of keys until halt is called.
func (q *queueFleet) produce(keys int) (halt func()) {
	ctx, cancel := context.WithCancel(q.t.Context())
	pool := newPool(q.t, q.database.URL, size(2))
	var wait sync.WaitGroup
	for range 2 {
		wait.Go(func() { faults.Produce(ctx, pool, keys) })
	}
	halt = func() { cancel(); wait.Wait() }
	q.t.Cleanup(halt)
	return halt
}

// enqueue writes rows in one transaction.
func (q *queueFleet) enqueue(rows func(pgx.Tx) error) {
	q.t.Helper()
	if err := pgx.BeginFunc(q.t.Context(), q.pool, rows); err != nil {
		q.t.Fatal(err)
	}
}

// run injects faults until enough reports true, and returns the ledger.
func (q *queueFleet) run(within time.Duration, enough func() bool) {
	q.t.Helper()
	q.Enough = func(map[string]int) bool { return enough() }
	ctx, cancel := context.WithTimeout(q.t.Context(), within)
	defer cancel()
	if err := q.Run(ctx); err != nil {
		q.t.Fatal(err)
	}
}

// outage makes all rows fail until the function that it returns is called.
func (q *queueFleet) outage() (over func()) {
	q.t.Helper()
	if err := os.WriteFile(q.Config.Queue.Outage, nil, 0o644); err != nil {
		q.t.Fatal(err)
	}
	return func() {
		if err := os.Remove(q.Config.Queue.Outage); err != nil {
			q.t.Error(err)
		}
	}
}

// Loops that people write break each promise, and the ledger shows it.
func TestQueueOracleCatchesNaiveLoops(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("has a server of its own")
	}
	const skipLocked, owner = "skip locked", "owner"
	server := pgserver.Private(t, committing)
	for name, test := range map[string]struct {
		loop    string
		outside bool
		poison  []string // kinds of rows, each with rows of its key behind it
		outage  bool
		attack  bool // with faults of processes
		finds   []string
	}{
		"SKIP LOCKED has no order":               {loop: skipLocked, finds: []string{disorder, atOnce}},
		"SKIP LOCKED charges a failure to all":   {loop: skipLocked, poison: []string{faults.FailsAlways}, finds: []string{charged}},
		"SKIP LOCKED charges a pair":             {loop: skipLocked, poison: []string{faults.FailsTogether, faults.FailsTogether}, finds: []string{charged}},
		"SKIP LOCKED stops at a crash":           {loop: skipLocked, poison: []string{faults.KillsProcess}, finds: []string{remains}},
		"SKIP LOCKED continues after a COMMIT":   {loop: skipLocked, poison: []string{faults.CommitsItself, faults.FailsAlways}, finds: []string{halfDone, twice}},
		"an owner without a guard":               {loop: owner, attack: true, finds: []string{twice, zombie, outdated, deleted}},
		"an owner that never looks back":         {loop: owner, finds: []string{remains}},
		"an owner that continues after failures": {loop: owner, poison: []string{faults.FailsThrice, faults.FailsAlways}, finds: []string{disorder, overtaken}},
		"an owner that counts each failure":      {loop: owner, outage: true, finds: []string{charged}},
		"an owner with effects outside":          {loop: owner, outside: true, attack: true, finds: []string{outdated, remains}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			timeguard.Run(t, func(t *timeguard.Try) {
				url, drop, err := pgserver.CreateDatabase(t.Context(), server.URL())
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					if err := drop(); err != nil {
						t.Error(err)
					}
				})
				q := newQueueFleet(t, url, &faults.Database{URL: url}, 8, faults.Queue{Loop: test.loop}, test.outside)
				q.Faults = slices.DeleteFunc(q.Faults, func(f faults.Fault) bool { return !test.attack || f.Name != "pause" && f.Name != "ghost" })
				if test.outage {
					defer q.outage()()
				}
				var keys []string
				q.enqueue(func(tx pgx.Tx) error {
					for i, kind := range test.poison {
						keys = append(keys, fmt.Sprint("poison ", i))
						if err := faults.Enqueue(t.Context(), tx, kind, keys[i]); err != nil {
							return err
						}
					}
					return faults.Enqueue(t.Context(), tx, faults.Good, slices.Repeat(append(keys, "another"), 30)...)
				})
				halt := q.produce(20)
				var found map[string][]string
				q.run(2*time.Minute, func() bool {
					l := readQueue(t, q.pool, q.receiver)
					found = l.problems()
					return (test.poison != nil || test.outage || len(l.handled) > 1000) &&
						!slices.ContainsFunc(test.finds, func(kind string) bool { return kind != remains && found[kind] == nil })
				})
				halt()
				if slices.Contains(test.finds, remains) {
					pause(t.Context(), 2*time.Second) // a row that is left now stays
					found[remains] = readQueue(t, q.pool, q.receiver).problems()[remains]
				}
				for _, kind := range test.finds {
					if found[kind] == nil {
						t.Errorf("%q was not found, only %v", kind, slices.Sorted(maps.Keys(found)))
						continue
					}
					t.Logf("%s: %d, for example %s", kind, len(found[kind]), found[kind][0])
				}
			})
		})
	}
}
