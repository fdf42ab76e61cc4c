package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/consumer"
)

const (
	consumerProcesses  = 3 // in this bench, clients of one process
	consumerWorkers    = 4 // of each
	consumerPartitions = 1024
)

// An order is a row of the queue.
type order struct {
	ID      int64
	Made    time.Time
	Payload []byte
}

// insertEffect is what a handler writes for a row, if it writes.
const insertEffect = "INSERT INTO public.effects VALUES ($1)"

var queueOfOrders = consumer.Queue{Table: "public.orders", Key: "customer", Time: "made"}

// A consumption is a database with a queue, and the processes that work through it.
type consumption struct {
	*database
	pools   []*pgxpool.Pool
	clients []*pgleases.Client
	stop    context.CancelFunc
	running sync.WaitGroup

	writes  bool // the handler inserts a row
	handled atomic.Int64
	mu      sync.Mutex
	late    []time.Duration // from the insert to the handler; nil: not measured
}

func newConsumption(ctx context.Context, l *lab) *consumption {
	c := &consumption{database: l.newDatabase(ctx, l.durable, consumerProcesses*consumerWorkers+4)}
	check(consumer.Migrate(ctx, c.Pool))
	c.all(ctx, consumer.TableSQL("orders", "", queueOfOrders), "CREATE TABLE public.effects (id bigint)")
	return c
}

// start starts processes whose handler counts, and writes if it is to.
func (c *consumption) start(ctx context.Context, n int, opts ...consumer.Option) {
	running, stop := context.WithCancel(context.Background())
	c.stop = stop
	opts = append([]consumer.Option{consumer.WithLogger(quiet), consumer.WithMaxRunning(consumerWorkers)}, opts...)
	h := consumer.Each(func(ctx context.Context, tx pgx.Tx, row consumer.Row[order]) error {
		if c.writes {
			if _, err := tx.Exec(ctx, insertEffect, row.ID); err != nil {
				return err
			}
		}
		if c.handled.Add(1); c.late != nil {
			late := time.Since(row.Value.Made)
			c.mu.Lock()
			c.late = append(c.late, late)
			c.mu.Unlock()
		}
		return nil
	})
	for range n {
		client, pool := c.process(ctx, consumerWorkers+4)
		of := must(consumer.New(ctx, client, pool, "orders", queueOfOrders, h, opts...))
		c.running.Go(func() { _ = of.Run(running) })
	}
	c.until(ctx, "all is owned", "SELECT count(*) > 0 AND count(*) = count(owner) AND count(DISTINCT owner) = $1 AND count(*) FILTER (WHERE moving_to IS NOT NULL) = 0 FROM pgleases.status WHERE lease = 'consumer/orders'", n)
	c.until(ctx, "all has begun", "SELECT count(*) = count(c.begun) FROM pgleases.partitions AS p LEFT JOIN pgleases.consumer_owners AS c ON c.consumer = 'orders' AND c.partition = p.partition AND c.begun = p.epoch WHERE p.lease = 'consumer/orders'")
}

// process returns the client and the pool of another process, which halt closes.
func (c *consumption) process(
	ctx context.Context, connections int, configure ...func(*pgxpool.Config),
) (*pgleases.Client, *pgxpool.Pool) {
	pool := newPool(ctx, c.url, connections, configure...)
	client := must(pgleases.NewClient(ctx, pool, pgleases.WithClientID(fmt.Sprintf("process-%d", len(c.clients))), pgleases.WithLogger(quiet)))
	c.pools, c.clients = append(c.pools, pool), append(c.clients, client)
	return client, pool
}

func (c *consumption) halt() {
	if c.stop == nil {
		return
	}
	c.stop()
	c.running.Wait()
	for i, client := range c.clients {
		closeClient(client)
		c.pools[i].Close()
	}
	c.clients, c.pools, c.stop = nil, nil, nil
}

func (c *consumption) end() {
	c.halt()
	c.database.end()
}

// fill inserts rows of so many customers.
func (c *consumption) fill(ctx context.Context, rows, customers int) {
	must(c.Exec(ctx, "INSERT INTO public.orders (customer, payload) SELECT 'customer ' || i % $2, '{}' FROM generate_series(1, $1::int) AS i", rows, customers))
}

// prepare makes a backlog of rows that waits for wake.
func (c *consumption) prepare(ctx context.Context, rows int) {
	c.pause(ctx)
	c.fill(ctx, rows, 10_000)
	c.all(ctx, "TRUNCATE public.effects", "VACUUM ANALYZE public.orders", "CHECKPOINT")
}

// pause lets the consumers take nothing, because a change of owners lets them look, too.
func (c *consumption) pause(ctx context.Context) {
	must(c.Exec(ctx, "UPDATE pgleases.consumers SET paused_at = clock_timestamp()"))
}

// wake lets the consumers begin.
func (c *consumption) wake(ctx context.Context) {
	c.all(ctx, "UPDATE pgleases.consumers SET paused_at = NULL", "INSERT INTO public.orders (customer, payload) VALUES ('last', '{}')")
}

func (c *consumption) emptied(ctx context.Context) {
	c.until(ctx, "the queue is empty", "SELECT NOT EXISTS (SELECT FROM public.orders)")
}

// naive is the loop that people write, without an order: it locks so many rows, calls the handler, and
// deletes them, all in one transaction.
func (c *consumption) naive(ctx context.Context, limit int) {
	together(consumerProcesses*consumerWorkers, func(int) {
		for {
			n := 0
			check(pgx.BeginFunc(ctx, c.Pool, func(tx pgx.Tx) error {
				rows, err := tx.Query(ctx, "SELECT id, made, payload FROM public.orders ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED", limit)
				if err != nil {
					return err
				}
				orders, err := pgx.CollectRows(rows, pgx.RowToStructByName[order])
				if err != nil {
					return err
				}
				ids := make([]int64, len(orders))
				for i, o := range orders {
					ids[i] = o.ID
				}
				n = len(ids)
				_, err = tx.Exec(ctx, "DELETE FROM public.orders WHERE id = ANY ($1)", ids)
				return err
			}))
			if n == 0 {
				return
			}
		}
	})
}

// bare handles rows as a program would that knows them: each in a transaction with a guard, an
// insert and a DELETE, or as one that first reads the partition's next row. A process without a
// consumer owns the partitions.
func (c *consumption) bare(ctx context.Context, rows int, reads bool) float64 {
	client, _ := c.process(ctx, 1)
	c.stop = func() {}
	defer c.halt()
	must(client.Lease(ctx, "bare", consumerPartitions))
	const owned = "FROM pgleases.partitions WHERE lease = 'bare' AND owner IS NOT NULL"
	c.until(ctx, "all is owned", "SELECT count(*) = $1 "+owned, consumerPartitions)
	c.prepare(ctx, rows)
	type known struct {
		ID        int64
		Partition int32
		Epoch     int64
	}
	read, _ := c.Query(ctx, "SELECT o.id, p.partition, p.epoch FROM public.orders AS o JOIN (SELECT partition, epoch "+owned+") AS p USING (partition) ORDER BY o.id")
	todo := must(pgx.CollectRows(read, pgx.RowToStructByPos[known]))
	const sessions = consumerProcesses * consumerWorkers
	began := time.Now()
	together(sessions, func(session int) {
		for i := session; i < len(todo); i += sessions {
			check(pgx.BeginFunc(ctx, c.Pool, func(tx pgx.Tx) error {
				of := todo[i]
				_, err := tx.Exec(ctx, "SELECT pgleases.guard('bare', $1, $2)", of.Partition, of.Epoch)
				if err == nil && reads {
					const next = "SELECT id, made, payload FROM public.orders WHERE partition = $1 ORDER BY id LIMIT 1 FOR UPDATE"
					err = tx.QueryRow(ctx, next, of.Partition).Scan(&of.ID, new(time.Time), new([]byte))
				}
				if err == nil {
					_, err = tx.Exec(ctx, insertEffect, of.ID)
				}
				if err == nil {
					_, err = tx.Exec(ctx, "DELETE FROM public.orders WHERE id = $1", of.ID)
				}
				return err
			}))
		}
	})
	return float64(rows) / time.Since(began).Seconds()
}

func measureConsumers(ctx context.Context, l *lab, out *part) {
	measureBacklog(ctx, l, out)
	measureSteady(ctx, l, out)
	measureWakeUps(ctx, l, out)
	measureIdleConsumers(ctx, l, out)
	measureShapes(ctx, l, out)
	out.note("%d clients of one process have %d workers each, and %s partitions. The handler of `Each` does nothing. "+
		"A commit waits for the disk.",
		consumerProcesses, consumerWorkers, grouped(consumerPartitions))
}

// measureBacklog works through a backlog, in turns with the loop that people write.
func measureBacklog(ctx context.Context, l *lab, out *part) {
	c := newConsumption(ctx, l)
	defer c.end()
	work := func(rows int, opts ...consumer.Option) float64 {
		c.start(ctx, consumerProcesses, append(opts, consumer.WithPoll(time.Hour))...)
		defer c.halt()
		c.prepare(ctx, rows)
		began := time.Now()
		c.wake(ctx)
		c.emptied(ctx)
		return float64(rows) / time.Since(began).Seconds()
	}
	loop := func(rows, limit int) float64 {
		c.prepare(ctx, rows)
		began := time.Now()
		c.naive(ctx, limit)
		return float64(rows) / time.Since(began).Seconds()
	}
	many, few := l.pick(2_000, 100_000), l.pick(500, 10_000)
	paces := l.alternate(3,
		side{"", perSecond, func() float64 { return work(many) }},
		side{"`FOR UPDATE SKIP LOCKED LIMIT 100`, without an order", perSecond, func() float64 { return loop(many, 100) }},
		side{"`SKIP LOCKED LIMIT 400`, as many rows as our batches have", perSecond, func() float64 { return loop(many, 400) }},
	)
	c.writes = true
	single := l.alternate(5,
		side{"", perSecond, func() float64 { return work(few, consumer.WithBatch(1, 1<<20)) }},
		side{"guard, insert, `DELETE` by hand, the IDs known", perSecond, func() float64 { return c.bare(ctx, few, false) }},
		side{"by hand too, reading the row", perSecond, func() float64 { return c.bare(ctx, few, true) }},
	)
	out.compare(fmt.Sprintf("rows from a backlog of %s, 10,000 keys", grouped(many)), paces[0], paces[1:]...).goal(">= 0.8x", paces[0].over(paces[1]) >= 0.8)
	out.compare("one row for each transaction, with an insert by the handler", single[0], single[1:]...).
		goal(">= 0.85x of the one that reads", single[0].over(single[2]) >= 0.85)
}

// insertAt inserts rows at a pace for a while, each in its own transaction, and returns how many.
// Enough sessions share the work that commits do not delay it.
func (c *consumption) insertAt(ctx context.Context, pace float64, span time.Duration) (n int) {
	var count atomic.Int64
	began, sessions := time.Now(), int(1+pace/250)
	together(sessions, func(session int) {
		for i := session; time.Since(began) < span; i += sessions {
			time.Sleep(time.Until(began.Add(time.Duration(float64(i) / pace * float64(time.Second)))))
			must(c.Exec(ctx, "INSERT INTO public.orders (customer, made, payload) VALUES ($1, clock_timestamp(), '{}')", fmt.Sprint("customer ", i%10_000)))
			count.Add(1)
		}
	})
	return int(count.Load())
}

// measureSteady measures how late rows are that come at a pace.
func measureSteady(ctx context.Context, l *lab, out *part) {
	for _, pace := range []float64{1, 100, 1000, 3000} {
		c := newConsumption(ctx, l)
		span := time.Duration(l.pick(1, 10)) * time.Second
		alone := c.during(ctx, func() { c.insertAt(ctx, pace, span) })
		c.start(ctx, consumerProcesses)
		c.emptied(ctx)
		c.mu.Lock()
		c.late = []time.Duration{}
		c.mu.Unlock()
		n := 0
		used := c.during(ctx, func() { n = c.insertAt(ctx, pace, span) })
		c.emptied(ctx)
		c.halt()
		both, inserts := share(used.server, used.span), share(alone.server, alone.span)
		r := out.figure(fmt.Sprintf("commit to handler, %s inserts per second: median, p99", grouped(int(float64(n)/span.Seconds()))),
			fmt.Sprintf("%s, %s", duration(median(c.late)), duration(quantile(c.late, 0.99)))).
			than("processor time of the server", percent(both), "").than("for the inserts alone", percent(inserts), "")
		switch pace {
		case 1:
			r.goal("median <= 5 ms", median(c.late) <= 5*time.Millisecond)
		case 3000:
			r.goal("p99 <= 100 ms, <= 1 core besides the inserts", quantile(c.late, 0.99) <= 100*time.Millisecond && both-inserts <= 1)
		}
		c.end()
	}
}

// measureWakeUps measures what the trigger costs those who insert.
func measureWakeUps(ctx context.Context, l *lab, out *part) {
	c := newConsumption(ctx, l)
	defer c.end()
	n := l.pick(100, 4000)
	inserts := func() float64 {
		began := time.Now()
		together(8, func(int) {
			for range n / 8 {
				must(c.Exec(ctx, "INSERT INTO public.orders (customer, payload) VALUES ('c', '{}')"))
			}
		})
		return float64(n) / time.Since(began).Seconds()
	}
	paces := l.alternate(5, side{"", perSecond, func() float64 {
		must(c.Exec(ctx, "ALTER TABLE public.orders ENABLE TRIGGER consumer_inserted"))
		return inserts()
	}}, side{"without the trigger", perSecond, func() float64 {
		must(c.Exec(ctx, "ALTER TABLE public.orders DISABLE TRIGGER consumer_inserted"))
		return inserts()
	}})
	out.compare("inserts of 8 sessions, each in a transaction, with the trigger", paces[0], paces[1]).
		goal(">= 0.95x", paces[0].over(paces[1]) >= 0.95)
}

// measureIdleConsumers measures what processes cost whose queues are empty.
func measureIdleConsumers(ctx context.Context, l *lab, out *part) {
	c := newConsumption(ctx, l)
	defer c.end()
	consumers := l.pick(2, 10)
	running, stop := context.WithCancel(context.Background())
	c.stop = stop
	for i := range consumerProcesses {
		client, pool := c.process(ctx, consumers+4)
		for n := range consumers {
			q, name := queueOfOrders, fmt.Sprintf("orders%d", n)
			q.Table = "public." + name
			if i == 0 {
				c.all(ctx, consumer.TableSQL(name, "", q))
			}
			of := must(consumer.New(ctx, client, pool, name, q, consumer.Each(func(context.Context, pgx.Tx, consumer.Row[order]) error { return nil }), consumer.WithLogger(quiet), consumer.WithMaxRunning(1)))
			c.running.Go(func() { _ = of.Run(running) })
		}
	}
	c.until(ctx, "all is owned", "SELECT count(*) = $2 AND count(*) = count(owner) AND count(DISTINCT owner) = $1 AND count(*) FILTER (WHERE moving_to IS NOT NULL) = 0 FROM pgleases.status",
		consumerProcesses, consumers*consumerPartitions)
	c.until(ctx, "all has begun", "SELECT count(*) >= $1 FROM pgleases.consumer_owners", consumers*consumerPartitions)
	c.all(ctx, "VACUUM ANALYZE", "CHECKPOINT")
	c.calm(ctx, time.Duration(l.pick(1, 15))*time.Second) // after a notification they poll more often for 10 s
	span := time.Duration(l.pick(1, 10)) * time.Second
	used := c.calm(ctx, span)
	of := share(used.server, used.span)
	c.halt()
	bare := c.during(ctx, func() {
		together(consumers*consumerProcesses, func(int) {
			conn, end := connect(ctx, c.url)
			defer end()
			for began, again := time.Now(), time.NewTicker(time.Second); time.Since(began) < span; <-again.C {
				must(conn.Exec(ctx, "SELECT 1"))
			}
		})
	})
	out.figure(fmt.Sprintf("%d idle consumers of %s partitions in %d processes, processor time of the server", consumers, grouped(consumerPartitions), consumerProcesses), percent(of)).
		than("as many sessions with a `SELECT 1` each second", percent(share(bare.server, bare.span)), "").goal("<= 1 % of a core", of <= 0.01)
}

// measureShapes works through queues of other shapes than many rows of many keys.
func measureShapes(ctx context.Context, l *lab, out *part) {
	rows := l.pick(2_000, 100_000)
	pace := func(prepare func(c *consumption)) float64 {
		c := newConsumption(ctx, l)
		defer c.end()
		c.start(ctx, consumerProcesses, consumer.WithPoll(time.Hour))
		c.pause(ctx)
		prepare(c)
		c.all(ctx, "VACUUM ANALYZE public.orders", "CHECKPOINT")
		began := time.Now()
		c.wake(ctx)
		c.until(ctx, "all is handled", "SELECT NOT EXISTS (SELECT FROM public.orders AS o WHERE customer NOT IN (SELECT key FROM pgleases.consumer_blocked))")
		return float64(rows) / time.Since(began).Seconds()
	}
	block := func(c *consumption, customers int) {
		must(c.Exec(ctx, `INSERT INTO pgleases.consumer_blocked (consumer, partition, id, key, version, attempts, next_at)
			SELECT DISTINCT ON (customer) 'orders', partition, id, customer, xmin::text, 1, 'infinity'::timestamptz FROM public.orders WHERE customer LIKE 'blocked %' ORDER BY customer, id LIMIT $1`, customers))
	}
	end := func() {}
	defer func() { end() }()
	var sides []side
	for _, shape := range []struct {
		name    string
		prepare func(c *consumption)
	}{
		{"", func(c *consumption) { c.fill(ctx, rows, 10_000) }},
		{"all in one key", func(c *consumption) { c.fill(ctx, rows, 1) }},
		{"a key for each row", func(c *consumption) { c.fill(ctx, rows, rows) }},
		{"1,000 blocked keys", func(c *consumption) {
			must(c.Exec(ctx, "INSERT INTO public.orders (customer, payload) SELECT 'blocked ' || i % 1000, '{}' FROM generate_series(1, 2000) AS i"))
			block(c, 1000)
			c.fill(ctx, rows, 10_000)
		}},
		{"a blocked key with 100,000 rows", func(c *consumption) {
			must(c.Exec(ctx, "INSERT INTO public.orders (customer, payload) SELECT 'blocked 0', '{}' FROM generate_series(1, $1::int)", l.pick(1000, 100_000)))
			block(c, 1)
			c.fill(ctx, rows, 10_000)
		}},
		{"beside a transaction with an old snapshot", func(c *consumption) {
			end()
			var old *pgx.Conn
			old, end = connect(ctx, c.url)
			must(old.Exec(ctx, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM public.orders", pgx.QueryExecModeSimpleProtocol))
			c.fill(ctx, rows, 10_000)
		}},
	} {
		sides = append(sides, side{shape.name, perSecond, func() float64 { return pace(shape.prepare) }})
	}
	all := l.alternate(1, sides...)
	r := out.figure(fmt.Sprintf("%s rows of 10,000 keys, and queues of other shapes", grouped(rows)), all[0].String())
	for _, s := range all[1:] {
		r.than(s.name, s.String(), s.ratio(all[0]))
	}
}
