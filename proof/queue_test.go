//go:build unix

package proof_test

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/consumer"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/timeguard"
	"github.com/pgleases/pgleases/proof/faults"
	"github.com/pgleases/pgleases/proof/oracle/queues"
	"github.com/pgleases/pgleases/proof/pgserver"
	"github.com/pgleases/pgleases/proof/tally"
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
func newQueueFleet(
	t *timeguard.Try, url string, database *faults.Database, partitions int, queue faults.Queue, outside bool,
) *queueFleet {
	t.Helper()
	q := newQueue(t, url, database, partitions, queue, outside)
	q.Fleet = newFleet(t, q.config, 3, *queueSeed)
	// The fault "many clients" needs too many connections.
	q.Faults = without("many clients", q.Faults)
	return q
}

// newQueue creates the tables of a fleet without workers.
func newQueue(
	t *timeguard.Try, url string, database *faults.Database, partitions int, queue faults.Queue, outside bool,
) *queueFleet {
	t.Helper()
	q := &queueFleet{t: t, database: database, pool: testkit.Pool(t, database.URL, size(2))}
	testkit.OK(t, consumer.Migrate(t.Context(), q.pool))
	testkit.Execute(t, q.pool, faults.QueueTables(partitions))
	if outside {
		queue.Receiver = pgtest.EmptyDatabase(t)
		q.receiver = testkit.Pool(t, queue.Receiver, size(2))
		testkit.Execute(t, q.receiver, faults.HandledTable)
	}
	queue.Outage = filepath.Join(t.TempDir(), "outage")
	q.config = faults.Config{
		URL: url, Pooled: database.Bouncer != nil, DirectURL: database.URL, ProbeURL: probeURL,
		Lease: "l", Partitions: partitions, TTL: time.Second, Queue: &queue, Patience: patience,
	}
	return q
}

// produce lets the application use a number of keys until halt is called.
func (q *queueFleet) produce(keys int) (halt func()) {
	ctx, cancel := context.WithCancel(q.t.Context())
	const writers = 6
	pool := testkit.Pool(q.t, q.database.URL, size(writers))
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
	testkit.OK(q.t, pgx.BeginFunc(q.t.Context(), q.pool, rows))
}

// run injects faults until enough reports true, and returns the ledger.
func (q *queueFleet) run(within time.Duration, enough func() bool) {
	q.t.Helper()
	q.Enough = func(map[string]int) bool { return enough() }
	ctx, cancel := context.WithTimeout(q.t.Context(), within)
	defer cancel()
	testkit.OK(q.t, q.Run(ctx))
}

// outage makes all rows fail until the function that it returns is called.
func (q *queueFleet) outage() (over func()) {
	q.t.Helper()
	testkit.OK(q.t, os.WriteFile(q.config.Queue.Outage, nil, 0o644))
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
	testkit.OK(t, err)
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
	handled := func() int { return count(q.t, pool, "handled") }
	n := handled()
	waitFor(q.t, patience, fmt.Sprintf("%d more rows are handled", more), func() bool { return handled() >= n+more })
}

// due selects the first blocked row of each key, if it has another attempt.
const due = ` FROM (SELECT DISTINCT ON (key) * FROM pgleases.consumer_blocked ORDER BY key, id) AS b
	WHERE next_at < 'infinity'`

// replace starts a worker for each that a row has killed.
func (q *queueFleet) replace() {
	q.t.Helper()
	if q.Fleet == nil {
		return
	}
	testkit.OK(q.t, q.Replace())
}

// drained waits until the queue has only rows that must stay, and no attempt is left to any.
func (q *queueFleet) drained() {
	q.t.Helper()
	n, since := -1, time.Now()
	for time.Since(since) < patience {
		q.replace()
		l := q.read()
		now := len(l.Check()[queues.Remains]) + testkit.Value[int](q.t, q.pool, "SELECT count(*)"+due)
		if now == 0 {
			return
		}
		if now != n {
			n, since = now, time.Now()
		}
		pause(q.t.Context(), 200*time.Millisecond)
	}
	type line = struct{ Line string }
	again := testkit.Must(queues.Structs[line](q.t.Context(), q.pool, "SELECT b::text"+due))(q.t)
	q.t.Errorf("nothing has changed for %v, but it is not over: "+
		"rows without a reason to stay: %q; rows with another attempt: %q",
		patience, q.read().Check()[queues.Remains], again)
}

// report ends the fleet, and fails the test if the ledger has problems.
func (q *queueFleet) report(attempts int) *queues.Ledger {
	q.t.Helper()
	ctx, cancel := context.WithTimeout(q.t.Context(), patience)
	defer cancel()
	if q.Fleet != nil {
		if err := q.Close(ctx); err != nil {
			q.t.Error(err)
		}
	}
	l := q.read()
	l.Attempts, l.Promoted, l.Killed = attempts, attempts == 0, q.killed
	found := l.Check()
	tally.Checked(q.t, "rows", l.Rows())
	tally.Violations(q.t, "queues", 0)
	for _, kind := range slices.Sorted(maps.Keys(found)) {
		tally.Violations(q.t, "queues", len(found[kind]))
		q.t.Errorf("%s: %d\n%s", kind, len(found[kind]), found[kind][:min(5, len(found[kind]))])
	}
	if q.Fleet != nil {
		for _, v := range audited(q.t, q.pool) {
			q.t.Error(v)
		}
	}
	q.t.Log(l)
	return l
}

// read reads what became of the queue.
func (q *queueFleet) read() *queues.Ledger {
	q.t.Helper()
	return testkit.Must(queues.Read(q.t.Context(), q.pool, q.receiver))(q.t)
}

// eachConsumer runs a scenario with each handler of package consumer.
func eachConsumer(t *testing.T, scenario func(t *timeguard.Try, handler string, outside bool)) {
	t.Parallel()
	if testing.Short() {
		t.Skip("has servers of its own")
	}
	for i, name := range faults.Consumers {
		t.Run(name, func(t *testing.T) {
			timeguard.Run(t, func(t *timeguard.Try) { scenario(t, name, i == len(faults.Consumers)-1) })
		})
	}
}

// If all rows fail for a while, no key is blocked. There are more keys than partitions, or fewer.
func TestQueueAfterAnOutage(t *testing.T) {
	for keys, partitions := range map[int]int{10_000: 16, 50: 256} {
		t.Run(fmt.Sprint(keys, " keys"), func(t *testing.T) {
			eachConsumer(t, func(t *timeguard.Try, handler string, outside bool) {
				url := ownDatabase(t, pgserver.Private(t, committing))
				queue := faults.Queue{Handler: handler, DeadLetters: true}
				q := newQueueFleet(t, url, &faults.Database{URL: url}, partitions, queue, outside)
				over := q.outage()
				q.enqueue(func(tx pgx.Tx) error {
					return faults.Enqueue(t.Context(), tx, faults.Good, numbers(keys)...)
				})
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
	eachConsumer(t, func(t *timeguard.Try, handler string, outside bool) {
		c := newCluster(t, 2, committing)
		old, next := c.servers[0], c.servers[1]
		queue := faults.Queue{Handler: handler}
		q := newQueue(t, c.url(t, c.doors...), &faults.Database{URL: old.URL()}, 16, queue, outside)
		workers := startWorkers(t, q.config, t.TempDir(), 3)
		halt := q.produce(20)
		q.handled(200)
		caughtUp(t, old, next)
		c.pipes[0].Freeze()
		q.handled(200)
		halt()
		q.pool.Close()
		testkit.OK(t, old.Kill())
		q.killed = time.Now()
		testkit.OK(t, next.Promote(t.Context()))
		tally.Fault(t, "promotion that lost commits")
		q.database.URL = next.URL()
		q.pool = testkit.Pool(t, next.URL(), size(2))
		halt = q.produce(20)
		q.handled(200)
		halt()
		q.drained()
		closeWorkers(t, workers)
		q.report(0)
	})
}
