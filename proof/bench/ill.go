package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/consumer"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/schedule"
)

const (
	illOnes     = 100                   // keys or jobs
	healthyPace = 50.                   // rows or jobs a second
	healthyTime = 20 * time.Millisecond // of a handler
	illTimeout  = time.Second           // of a handler
)

// The kinds of ill work.
const (
	hangs    = "whose handler hangs"
	vanished = "whose handler is in a statement when its server vanishes"
	locked   = "that a transaction keeps locked"
	unknown  = "of a kind that the process does not know"
)

// measureIll measures how much healthy work is done beside work that is ill: rows and jobs whose
// handler hangs until its timeout, by itself or in a statement that is never answered, or that a
// transaction of the application keeps locked, and jobs that the process does not know.
func measureIll(ctx context.Context, l *lab, out *part) {
	for _, work := range []struct {
		of     string
		kinds  []string
		beside func(context.Context, *lab, string) calm
	}{
		{"rows of a consumer", []string{hangs, vanished, locked}, healthyRows},
		{"jobs", []string{hangs, vanished, locked, unknown}, healthyJobs},
	} {
		alone := work.beside(ctx, l, "")
		for _, kind := range work.kinds {
			ill := work.beside(ctx, l, kind)
			share := ill.pace / alone.pace
			out.figure(fmt.Sprintf("%s beside %d %s", work.of, l.pick(10, illOnes), kind), ill.String()).
				than("alone", alone.String(), significant(share)+"x").
				goal(">= 0.9x, p99 <= 1 s", share >= 0.9 && ill.p99 <= time.Second)
		}
	}
	out.note("One process runs 4 handlers at once, and each takes %v. There are %v pieces of healthy work a second. "+
		"Ill handlers end by a timeout of %v, and are tried again.", healthyTime, healthyPace, illTimeout)
}

// A calm is what healthy work got in a time: how much of it was done, and how long it waited.
type calm struct {
	pace float64 // a second
	p99  time.Duration
}

func (c calm) String() string {
	return fmt.Sprintf("%s, p99 of the wait %s", perSecond(c.pace), duration(c.p99))
}

// A meter counts what healthy handlers have done. All methods are safe for concurrent use.
type meter struct {
	mu    sync.Mutex // guards the rest
	since time.Time  // what was made before does not count
	waits []time.Duration
}

// did records a handler that has begun now, for work that was made at a time.
func (m *meter) did(made time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.since.IsZero() || made.Before(m.since) {
		return
	}
	m.waits = append(m.waits, time.Since(made))
}

// during runs work for a time, and returns what was done until its end.
func (m *meter) during(span time.Duration, work func()) calm {
	m.mu.Lock()
	m.since = time.Now()
	m.mu.Unlock()
	work()
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.waits) == 0 {
		return calm{0, span}
	}
	return calm{float64(len(m.waits)) / span.Seconds(), quantile(m.waits, 0.99)}
}

// busy does what a healthy handler does.
func busy(ctx context.Context) error {
	select {
	case <-time.After(healthyTime):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// hang waits for the handler's timeout.
func hang(ctx context.Context) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

// unanswered is a statement that gets no answer over the connections of silent, as if the server of
// its connection had vanished.
const unanswered = "SELECT 'unanswered'"

// silent makes a pool open such connections.
func silent(config *pgxpool.Config) {
	wire := new(testkit.Wire)
	wire.MuteEach(unanswered)
	config.ConnConfig.DialFunc = wire.Dial
}

// fail does what an ill handler does.
func fail(ctx context.Context, tx pgx.Tx, ill string) error {
	if ill == vanished {
		_, err := tx.Exec(ctx, unanswered)
		return err
	}
	return hang(ctx)
}

// lockedBy keeps rows locked until the function that it returns is called.
func (d *database) lockedBy(ctx context.Context, query string) (release func()) {
	conn, end := connect(ctx, d.url)
	must(conn.Exec(ctx, "BEGIN; "+query, pgx.QueryExecModeSimpleProtocol))
	return end
}

// healthyRows measures healthy rows of a consumer beside ill ones.
func healthyRows(ctx context.Context, l *lab, ill string) calm {
	c := newConsumption(ctx, l)
	defer c.end()
	ones, span := l.pick(10, illOnes), time.Duration(l.pick(1, 10))*time.Second
	if ill != "" {
		must(c.Exec(ctx, `INSERT INTO public.orders (customer, payload)
SELECT 'ill ' || n, '{}' FROM generate_series(1, $1::int) AS n`, ones))
	}
	if ill == locked {
		defer c.lockedBy(ctx, "SELECT FROM public.orders FOR UPDATE")()
	}
	m := &meter{}
	running, stop := context.WithCancel(context.Background())
	c.stop = stop
	client, pool := c.process(ctx, 2*consumerWorkers+4, silent)
	handler := consumer.Each(func(ctx context.Context, tx pgx.Tx, row consumer.Row[order]) error {
		if strings.HasPrefix(row.Key, "ill") {
			return fail(ctx, tx, ill)
		}
		m.did(row.Value.Made)
		return busy(ctx)
	})
	of := must(consumer.New(ctx, client, pool, "orders", queueOfOrders, handler,
		consumer.WithLogger(quiet),
		consumer.WithMaxRunning(consumerWorkers),
		consumer.WithTimeout(illTimeout),
		consumer.WithMaxAttempts(1000, consumer.Backoff(time.Second, time.Second))))
	c.running.Go(func() { _ = of.Run(running) })
	insert := func() { c.insertAt(ctx, healthyPace, span) }
	c.insertAt(ctx, healthyPace, l.warm())
	if ill == hangs || ill == vanished { // while each hangs for the first time, its partition's other rows wait
		const blocked = "SELECT count(*) FROM pgleases.consumer_blocked"
		for began := time.Now(); one[int](ctx, c.database, blocked) < ones; insert() {
			if time.Since(began) > patience {
				check(fmt.Errorf("not all of %d ill rows have failed within %v", ones, patience))
			}
		}
	}
	return m.during(span, insert)
}

// warm is how long ill work has been there at least before healthy work is measured.
func (l *lab) warm() time.Duration { return time.Duration(l.pick(1, 30)) * time.Second }

// made is what a healthy job has for its arguments.
type made struct{ Made time.Time }

// healthyJobs measures healthy jobs beside ill ones.
func healthyJobs(ctx context.Context, l *lab, ill string) calm {
	s := newScheduling(ctx, l, 0)
	defer s.end()
	ones, span := l.pick(10, illOnes), time.Duration(l.pick(1, 10))*time.Second
	r := newRunner(ctx, s.url, "jobs", 0, runsAtOnce, silent)
	s.runners = append(s.runners, r)
	m := &meter{}
	healthy := schedule.InTx(r.Scheduler, "healthy", func(ctx context.Context, _ pgx.Tx, run schedule.Run[made]) error {
		m.did(run.Args.Made)
		return busy(ctx)
	})
	hanging := schedule.InTx(r.Scheduler, "ill", func(ctx context.Context, tx pgx.Tx, _ schedule.Run[struct{}]) error {
		if ill == locked {
			return nil // its end waits for the lock
		}
		return fail(ctx, tx, ill)
	}, schedule.WithTimeout(illTimeout), schedule.WithMaxAttempts(1000, schedule.Backoff(time.Second, time.Second)))
	if ill != "" {
		must(hanging.EnqueueMany(ctx, make([]struct{}, ones)))
	}
	switch {
	case ill == locked:
		defer s.lockedBy(ctx, "SELECT FROM pgleases.jobs FOR UPDATE")()
	case ill == unknown:
		s.all(ctx, "UPDATE pgleases.jobs SET kind = 'unknown'")
	}
	r.run()
	s.shared(ctx, 1)
	enqueue := func(span time.Duration) {
		for began, n := time.Now(), 0; time.Since(began) < span; n++ {
			time.Sleep(time.Until(began.Add(time.Duration(float64(n) / healthyPace * float64(time.Second)))))
			must(healthy.Enqueue(ctx, made{time.Now()}))
		}
	}
	enqueue(l.warm())
	return m.during(span, func() { enqueue(span) })
}
