//go:build unix

package proof_test

import (
	"context"
	"errors"
	"flag"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/consumer"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/timeguard"
	"github.com/pgleases/pgleases/proof/faults"
	"github.com/pgleases/pgleases/proof/pgserver"
	"github.com/pgleases/pgleases/proof/tally"
)

var queueFaults = flag.Int("queue-faults", 40, "number of faults of processes that work through a queue")

// Rows that are committed late, after rows with higher IDs were handled, keep the order of their key.
func TestQueueWithLateCommits(t *testing.T) {
	eachConsumer(t, func(t *timeguard.Try, handler string, outside bool) {
		url := ownDatabase(t, pgserver.Private(t, committing))
		q := newQueueFleet(t, url, &faults.Database{URL: url}, 4, faults.Queue{Handler: handler}, outside)
		halt := q.produce(50)
		q.handled(3000)
		halt()
		q.drained()
		q.report(1)
	})
}

// Every row is handled once, or at least once, in the order of its key, under faults of processes,
// networks and the database.
func TestQueueIsHandledInOrderUnderFaults(t *testing.T) {
	for name, pooled := range map[string]bool{"direct": false, "through PgBouncer": true} {
		t.Run(name, func(t *testing.T) {
			eachConsumer(t, func(t *timeguard.Try, handler string, outside bool) {
				began, server := time.Now(), pgserver.Private(t, committing)
				database := &faults.Database{Server: server, URL: server.URL()}
				url := server.URL()
				if pooled {
					url = behindPooler(t, database)
				}
				q := newQueueFleet(t, url, database, 16, faults.Queue{Handler: handler}, outside)
				database.Befall(q.Fleet)
				halt := q.produce(50)
				within := time.Duration(*queueFaults)*5*time.Second + patience
				q.run(within, func() bool { return sum(q.Counts) >= *queueFaults })
				halt()
				q.pool.Reset() // its connections may have ended with the server
				q.drained()
				l := q.report(0)
				tally.Faults(t, q.Counts)
				t.Logf("faults: %v", q.Counts)
				if least := 10 * int(time.Since(began).Seconds()); l.Handled() < least || sum(q.Counts) < *queueFaults {
					tooLittle(t, began, "%d rows handled, not at least %d, and %d faults",
						l.Handled(), least, sum(q.Counts))
				}
			})
		})
	}
}

// Rows that fail, alone or together, or kill their process, stop no other key. Of the others, each
// has one attempt.
func TestQueueWithPoisonedRows(t *testing.T) {
	server := sync.OnceValue(func() *pgserver.Server { return pgserver.Private(t, committing) })
	for name, dead := range map[string]bool{"blocked": false, "dead letters": true} {
		t.Run(name, func(t *testing.T) {
			eachConsumer(t, func(t *timeguard.Try, handler string, outside bool) {
				url := ownDatabase(t, server())
				queue := faults.Queue{Handler: handler, DeadLetters: dead}
				q := newQueueFleet(t, url, &faults.Database{URL: url}, 16, queue, outside)
				kinds := []string{
					faults.FailsAlways, faults.FailsThrice, faults.KillsProcess,
					faults.FailsTogether, faults.FailsTogether, faults.Idles,
				}
				if !outside {
					kinds = append(kinds, faults.CommitsItself)
				}
				keys := numbers(500)
				halt := q.produce(len(keys))
				q.enqueue(func(tx pgx.Tx) (err error) {
					for i := range 20 {
						if i == 5 {
							for i, kind := range kinds {
								err = errors.Join(err, faults.Enqueue(t.Context(), tx, kind, keys[i]))
							}
						}
						err = errors.Join(err, faults.Enqueue(t.Context(), tx, faults.Good, keys...))
					}
					return err
				})
				waitFor(t, patience, "half of the rows are handled", func() bool {
					q.replace()
					return count(t, q.pool, "app.outbox") < 5000
				})
				halt()
				q.drained()
				q.report(1)
				tally.Faults(t, q.Counts)
				if n := q.Counts[faults.SelfKill]; n == 0 || n > 6 {
					t.Errorf("%d processes were killed by a row, not 1 to 6", n)
				}
			})
		})
	}
}

// Rows that fail, one of each key, do not stop the keys behind them.
func TestQueueBehindFailingKeys(t *testing.T) {
	eachConsumer(t, func(t *timeguard.Try, handler string, outside bool) {
		url := ownDatabase(t, pgserver.Private(t, committing))
		q := newQueueFleet(t, url, &faults.Database{URL: url}, 1, faults.Queue{Handler: handler}, outside)
		q.enqueue(func(tx pgx.Tx) error {
			keys := numbers(100)
			fail := faults.Enqueue(t.Context(), tx, faults.FailsAlways, keys[:5]...)
			return errors.Join(fail, faults.Enqueue(t.Context(), tx, faults.Good, keys...))
		})
		q.drained()
		q.report(1)
	})
}

// AtLeastOnce publishes no row whose insert a crash of the server could lose.
func TestPublishedRowsAreDurable(t *testing.T) {
	t.Parallel()
	timeguard.Run(t, func(t *timeguard.Try) {
		server := quiet(t)
		q := newQueue(t, server.URL(), &faults.Database{URL: server.URL()}, 1, faults.Queue{}, false)
		testkit.Execute(t, q.pool, asynchronous)
		q.pool.Reset() // for new connections
		pool := testkit.Pool(t, server.URL(), size(4))
		client := testkit.Must(pgleases.NewClient(t.Context(), pool, quietly(t)))(t)
		defer func() { _ = client.Close(t.Context()) }()
		flushed := make(chan string, 1) // to where the log was on disk when a row was published
		publish := func(context.Context, []consumer.Row[map[string]any]) error {
			flushed <- testkit.Value[string](t, q.pool, "SELECT pg_current_wal_flush_lsn()::text")
			return nil
		}
		queue := consumer.Queue{Table: "app.outbox", Key: "customer"}
		c, err := consumer.New(t.Context(), client, pool, "orders", queue, consumer.AtLeastOnce(publish),
			consumer.WithPoll(10*time.Millisecond), consumer.WithBatch(1, 1))
		testkit.OK(t, err)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- c.Run(ctx) }()
		for i := range 10 {
			var inserted string
			q.enqueue(func(tx pgx.Tx) error {
				if err := faults.Enqueue(t.Context(), tx, faults.Good, "a"); err != nil {
					return err
				}
				return tx.QueryRow(t.Context(), "SELECT pg_current_wal_insert_lsn()::text").Scan(&inserted)
			})
			at := <-flushed
			// At first others flush it, too.
			if i > 0 && !testkit.Value[bool](t, q.pool, "SELECT $1::pg_lsn > $2::pg_lsn", at, inserted) {
				t.Errorf("row %d was published when the log was on disk to %s, and its insert was at %s",
					i+1, at, inserted)
			}
		}
		stop()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}
