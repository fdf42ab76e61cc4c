// Command outbox shows package consumer at work, in less than a minute:
//
//	go run ./examples/outbox
//
// Three processes publish the rows of an outbox to a broker, while writers insert them. One process
// is killed, and one is frozen for longer than its TTL. The broker is away for ten seconds, and
// always refuses one row. The exit status is 1 if, at the end, the broker has a row twice, misses
// one, or has those of a customer out of order.
//
// It uses the PostgreSQL server of DATABASE_URL; without DATABASE_URL it starts a server, which ends
// with it. It creates a database and drops it at the end.
//
// The file to copy is outbox.go. This file has the broker, the writers and the events.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/consumer"
	"github.com/pgleases/pgleases/examples/internal/show"
	"github.com/pgleases/pgleases/internal/pgtest"
)

const (
	envURL, envBroker = "PGLEASES_OUTBOX_URL", "PGLEASES_OUTBOX_BROKER" // of the three processes

	// Each order of a customer has the next number.
	tables = `
CREATE TABLE customers (name text PRIMARY KEY, orders int NOT NULL DEFAULT 0);
INSERT INTO customers SELECT 'customer-' || n FROM generate_series(1, 100) AS n;
CREATE TABLE received (n bigint GENERATED ALWAYS AS IDENTITY, customer text NOT NULL, number int NOT NULL)`
	summary = `
SELECT (SELECT sum(orders) FROM customers), count(*), count(*) - count(DISTINCT (customer, number)), count(*) FILTER (WHERE late),
	(SELECT count(*) FROM pgleases.consumer_dead_letters), (SELECT count(*) FROM outbox)
FROM (SELECT *, number < lag(number) OVER (PARTITION BY customer ORDER BY n) AS late FROM received) AS r`
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	var err error
	url := os.Getenv(envURL)
	if url != "" {
		ctx, stop = show.Told()
		err = run(ctx, url, os.Getenv(envBroker), pgleases.WithTTL(2*time.Second))
	} else {
		err = demonstrate(ctx, time.Second)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "outbox:", err)
		os.Exit(1)
	}
}

// demonstrate runs the demonstration, with events at multiples of a time.
func demonstrate(ctx context.Context, pace time.Duration) (err error) {
	began := time.Now()
	databaseURL, drop, err := pgtest.NewDatabase(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, drop()) }()
	pool, err := pgxpool.New(ctx, databaseURL)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := consumer.Migrate(ctx, pool); err != nil {
		return err
	}
	ddl := consumer.TableSQL("outbox", "", queue) + tables
	if _, err := pool.Exec(ctx, ddl, pgx.QueryExecModeSimpleProtocol); err != nil {
		return err
	}
	b := &broker{pool: pool, epochs: make(map[int]int64), seen: make(map[string]bool)}
	server := httptest.NewServer(b)
	defer server.Close()

	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	screen := show.Screen{Began: began}
	env := func(string) []string { return []string{envURL + "=" + databaseURL, envBroker + "=" + server.URL} }
	crew := &show.Crew{Fail: fail, Env: env}
	defer crew.KillAll()
	var processes []*show.Worker
	for _, id := range []string{"one", "two", "three"} {
		p, err := crew.Start(id)
		if err != nil {
			return err
		}
		processes = append(processes, p)
	}
	var writing sync.WaitGroup
	writers, finish := context.WithCancel(ctx)
	defer finish()
	for range 4 {
		writing.Go(func() {
			for ; writers.Err() == nil; time.Sleep(10 * time.Millisecond) {
				if err := order(ctx, pool, fmt.Sprintf("customer-%d", 1+rand.N(100))); err != nil {
					fail(err)
				}
			}
		})
	}
	wait := func(until time.Duration) {
		select {
		case <-time.After(time.Until(began.Add(until))):
		case <-ctx.Done():
		}
	}
	for _, event := range []struct {
		at   time.Duration
		what string
		do   func() error
	}{
		{0, "three processes publish, four writers insert", func() error { return nil }},
		{3, "process one is killed", func() error { processes[0].Kill(); return nil }},
		{6, "process two is frozen", func() error { processes[1].Set(show.Frozen); return processes[1].Freeze() }},
		{11, "process two continues", func() error { processes[1].Set(show.Working); return processes[1].Thaw() }},
		{13, "the broker is away", func() error { b.set(true); return nil }},
		{23, "the broker is back", func() error { b.set(false); return nil }},
		{26, "the writers end", func() error { finish(); writing.Wait(); return nil }},
	} {
		wait(event.at * pace)
		screen.Event("%s", event.what)
		err := event.do()
		if err != nil && show.CanFreeze {
			return err
		}
	}
	var written, received, twice, late, dead int
	for left := 1; left > 0 && err == nil; wait(time.Since(began) + 100*time.Millisecond) {
		err = pool.QueryRow(ctx, summary).Scan(&written, &received, &twice, &late, &dead, &left)
	}
	closed := crew.CloseAll(ctx, 20*time.Second, func(_ *show.Worker, failure string) { fail(errors.New(failure)) })
	err = errors.Join(err, closed, context.Cause(ctx))
	if err != nil {
		crew.PrintLogs(os.Stderr)
		return err
	}
	missing := written - dead - (received - twice)
	screen.Event("%d rows written, %d received, %d dead letter; "+
		"the broker dropped %d copies, and %d rows of lower epochs", written, received, dead, b.copies, b.lower)
	screen.Event("%d twice, %d missing, %d out of order", twice, missing, late)
	if twice != 0 || missing != 0 || late != 0 || dead != 1 {
		return errors.New("not as promised")
	}
	return nil
}

// order is a transaction of the application. It locks the customer's row before it inserts, so the
// IDs of a customer's rows have the order of the commits.
func order(ctx context.Context, pool *pgxpool.Pool, customer string) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		var number int
		const next = "UPDATE customers SET orders = orders + 1 WHERE name = $1 RETURNING orders"
		err := tx.QueryRow(ctx, next, customer).Scan(&number)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, "INSERT INTO outbox (customer, payload) VALUES ($1, to_jsonb($2::int))", customer, number)
		return err
	})
}

// A broker is the receiver. It stores what it takes in the database, to be counted.
type broker struct {
	pool          *pgxpool.Pool
	mu            sync.Mutex // guards the rest
	away          bool
	epochs        map[int]int64 // the highest of each partition
	seen          map[string]bool
	copies, lower int
}

func (b *broker) set(away bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.away = away
}

func (b *broker) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var messages []message
	err := json.NewDecoder(r.Body).Decode(&messages)
	defer time.Sleep(20 * time.Millisecond) // the answer takes a while
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil || b.away {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	for i, m := range messages {
		switch {
		case m.Epoch < b.epochs[m.Partition]:
			b.lower++
			continue
		case b.seen[m.UID]:
			b.copies++
			continue
		case m.Customer == "customer-7" && string(m.Payload) == "3": // the poisoned row
			w.WriteHeader(http.StatusUnprocessableEntity)
			fmt.Fprint(w, i)
			return
		}
		const insert = "INSERT INTO received (customer, number) VALUES ($1, $2::text::int)"
		ctx := context.WithoutCancel(r.Context())
		if _, err := b.pool.Exec(ctx, insert, m.Customer, string(m.Payload)); err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		b.epochs[m.Partition], b.seen[m.UID] = m.Epoch, true
	}
}
