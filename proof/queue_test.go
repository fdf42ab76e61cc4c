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

	"github.com/pgleases/pgleases/consumer"
	"github.com/pgleases/pgleases/proof/faults"
	"github.com/pgleases/pgleases/proof/pgserver"
	"github.com/pgleases/pgleases/proof/timeguard"
)

var (
	queueSeed   = flag.Uint64("queue-seed", 0, "seed of these faults; 0: random")
	queueOutage = flag.Duration("queue-outage", 10*time.Second, "how long all rows of a queue fail")
)

// A queueFleet is a fleet that works through a queue.
type queueFleet struct {
	*faults.Fleet
	t              *timeguard.Try
	config         faults.Config
	database       *faults.Database
	pool, receiver *pgxpool.Pool
	killed         time.Time // the first primary
}

// newQueueFleet starts three workers. url leads to the database, in some cases through a pooler.
func newQueueFleet(t *timeguard.Try, url string, database *faults.Database, partitions int, queue faults.Queue, outside bool) *queueFleet {
	t.Helper()
	q := newQueue(t, url, database, partitions, queue, outside)
	seed := *queueSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d", seed)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var err error
	q.Fleet, err = faults.NewFleet(ctx, q.config, t.TempDir(), 3, seed)
	t.Cleanup(func() { endFleet(t, q.Fleet, 60) })
	if err != nil {
		t.Fatal(err)
	}
	// The fault "many clients" needs too many connections.
	q.Faults = slices.DeleteFunc(slices.Clone(q.Faults), func(f faults.Fault) bool { return f.Name == "many clients" })
	return q
}

// newQueue creates the tables of a fleet without workers.
func newQueue(t *timeguard.Try, url string, database *faults.Database, partitions int, queue faults.Queue, outside bool) *queueFleet {
	t.Helper()
	q := &queueFleet{t: t, database: database, pool: newPool(t, database.URL, size(2))}
	if err := consumer.Migrate(t.Context(), q.pool); err != nil {
		t.Fatal(err)
	}
	execute(t, q.pool, faults.QueueTables(partitions))
	if outside {
		queue.Receiver = pgserver.EmptyDatabase(t)
		q.receiver = newPool(t, queue.Receiver, size(2))
		execute(t, q.receiver, faults.HandledTable)
	}
	queue.Outage = filepath.Join(t.TempDir(), "outage")
	q.config = faults.Config{
		URL: url, Pooled: database.Bouncer != nil, DirectURL: database.URL, Lease: "l", Partitions: partitions, TTL: time.Second, Queue: &queue,
		Patience: patience, ProbeURL: probeURL(t),
	}
	return q
}

// produce lets the application use a number of keys until halt is called.
func (q *queueFleet) produce(keys int) (halt func()) {
	ctx, cancel := context.WithCancel(q.t.Context())
	const writers = 6
	pool := newPool(q.t, q.database.URL, size(writers))
	var wait sync.WaitGroup
	for range writers {
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
	if err := os.WriteFile(q.config.Queue.Outage, nil, 0o644); err != nil {
		q.t.Fatal(err)
	}
	return func() {
		if err := os.Remove(q.config.Queue.Outage); err != nil {
			q.t.Error(err)
		}
	}
}

// ownDatabase returns the URL of a new database on a server.
func ownDatabase(t testing.TB, server *pgserver.Server) string {
	t.Helper()
	url, drop, err := pgserver.CreateDatabase(t.Context(), server.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := drop(); err != nil {
			t.Error(err)
		}
	})
	return url
}

// handled waits until a number of rows more are handled.
func (q *queueFleet) handled(more int) {
	q.t.Helper()
	pool := q.pool
	if q.receiver != nil {
		pool = q.receiver
	}
	count := func() int { return value[int](q.t, pool, "SELECT count(*) FROM handled") }
	n := count()
	waitFor(q.t, patience, fmt.Sprintf("%d more rows are handled", more), func() bool { return count() >= n+more })
}

// due selects the first blocked row of each key, if it has another attempt.
const due = ` FROM (SELECT DISTINCT ON (key) * FROM pgleases.consumer_blocked ORDER BY key, id) AS b WHERE next_at < 'infinity'`

// replace starts a worker for each that a row has killed.
func (q *queueFleet) replace() {
	q.t.Helper()
	if q.Fleet == nil {
		return
	}
	if err := q.Replace(); err != nil {
		q.t.Fatal(err)
	}
}

// drained waits until the queue has only rows that must stay, and no attempt is left to any.
func (q *queueFleet) drained() {
	q.t.Helper()
	n, since := -1, time.Now()
	for time.Since(since) < patience {
		q.replace()
		l := readQueue(q.t, q.pool, q.receiver)
		now := len(l.problems()[remains]) + value[int](q.t, q.pool, "SELECT count(*)"+due)
		if now == 0 {
			return
		}
		if now != n {
			n, since = now, time.Now()
		}
		pause(q.t.Context(), 200*time.Millisecond)
	}
	q.t.Errorf("nothing has changed for %v, but it is not over: rows without a reason to stay: %q; rows with another attempt: %q", patience,
		readQueue(q.t, q.pool, q.receiver).problems()[remains], structs[struct{ Line string }](q.t, q.pool, "SELECT b::text"+due))
}

// report ends the fleet, and fails the test if the ledger has problems.
func (q *queueFleet) report(attempts int) *queueLedger {
	q.t.Helper()
	ctx, cancel := context.WithTimeout(q.t.Context(), patience)
	defer cancel()
	if q.Fleet != nil {
		if err := q.Close(ctx); err != nil {
			q.t.Error(err)
		}
	}
	l := readQueue(q.t, q.pool, q.receiver)
	l.attempts, l.promoted, l.killed = attempts, attempts == 0, q.killed
	l.report(q.t)
	return l
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
		"an owner without a guard":               {loop: owner, attack: true, finds: []string{twice, zombie, outdated, deleted}},
		"an owner that never looks back":         {loop: owner, finds: []string{remains}},
		"an owner that continues after failures": {loop: owner, poison: []string{faults.FailsThrice, faults.FailsAlways}, finds: []string{disorder, overtaken}},
		"an owner that counts each failure":      {loop: owner, outage: true, finds: []string{charged}},
		"an owner with effects outside":          {loop: owner, outside: true, attack: true, finds: []string{outdated, remains}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			timeguard.Run(t, func(t *timeguard.Try) {
				url := ownDatabase(t, server)
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

// eachConsumer runs a scenario with each handler of package consumer.
func eachConsumer(t *testing.T, scenario func(t *timeguard.Try, loop string, outside bool)) {
	t.Parallel()
	if testing.Short() {
		t.Skip("has servers of its own")
	}
	for i, loop := range faults.Consumers {
		t.Run(loop, func(t *testing.T) {
			timeguard.Run(t, func(t *timeguard.Try) { scenario(t, loop, i == len(faults.Consumers)-1) })
		})
	}
}

// If all rows fail for a while, no key is blocked. There are more keys than partitions, or fewer.
func TestQueueAfterAnOutage(t *testing.T) {
	for keys, partitions := range map[int]int{10_000: 16, 50: 256} {
		t.Run(fmt.Sprint(keys, " keys"), func(t *testing.T) {
			eachConsumer(t, func(t *timeguard.Try, loop string, outside bool) {
				url := ownDatabase(t, pgserver.Private(t, committing))
				q := newQueueFleet(t, url, &faults.Database{URL: url}, partitions, faults.Queue{Loop: loop, DeadLetters: true}, outside)
				over := q.outage()
				q.enqueue(func(tx pgx.Tx) error { return faults.Enqueue(t.Context(), tx, faults.Good, numbers(keys)...) })
				pause(t.Context(), *queueOutage)
				over()
				q.drained()
				q.report(faults.QueueAttempts - 1)
			})
		})
	}
}

// numbers returns the numbers from 0 as keys.
func numbers(n int) (keys []string) {
	for i := range n {
		keys = append(keys, fmt.Sprint(i))
	}
	return keys
}

// A standby is promoted that missed the last rows. What it knows is handled there, once.
func TestAPromotedStandbyHandlesItsQueueInOrder(t *testing.T) {
	eachConsumer(t, func(t *timeguard.Try, loop string, outside bool) {
		c := newCluster(t, 2, committing)
		old, next := c.servers[0], c.servers[1]
		q := newQueue(t, c.url(t, c.doors...), &faults.Database{URL: old.URL()}, 16, faults.Queue{Loop: loop}, outside)
		var workers []*faults.Process
		for i := range 3 {
			q.config.ID = fmt.Sprint("worker-", i)
			q.config.Log = filepath.Join(t.TempDir(), q.config.ID+".log")
			workers = append(workers, startWorker(t, q.config))
			hasJoined(t, workers[i])
		}
		halt := q.produce(20)
		q.handled(200)
		caughtUp(t, old, next)
		c.pipes[0].Freeze()
		q.handled(200)
		halt()
		q.pool.Close()
		if err := old.Kill(); err != nil {
			t.Fatal(err)
		}
		q.killed = time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if err := next.Promote(ctx); err != nil {
			t.Fatal(err)
		}
		q.database.URL = next.URL()
		q.pool = newPool(t, next.URL(), size(2))
		halt = q.produce(20)
		q.handled(200)
		halt()
		q.drained()
		for _, w := range workers {
			if _, err := w.Close(ctx); err != nil {
				t.Error(err)
			}
		}
		q.report(0)
	})
}
