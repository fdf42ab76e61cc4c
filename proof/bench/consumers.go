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
		c.handled.Add(1)
		if c.late != nil {
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
	c.shared(ctx, n, 1)
	c.until(ctx, "all has begun", `SELECT count(*) = count(c.begun) FROM pgleases.partitions AS p
LEFT JOIN pgleases.consumer_owners AS c
ON c.consumer = 'orders' AND c.partition = p.partition AND c.begun = p.epoch
WHERE p.lease = 'consumer/orders'`)
}

// shared waits until a number of processes own all partitions of a number of consumers.
func (c *consumption) shared(ctx context.Context, processes, consumers int) {
	c.until(ctx, "all is owned", `SELECT count(*) = $2 AND count(*) = count(owner) AND count(DISTINCT owner) = $1
    AND count(*) FILTER (WHERE moving_to IS NOT NULL) = 0
FROM pgleases.status WHERE lease LIKE 'consumer/%'`, processes, consumers*consumerPartitions)
}

// process returns the client and the pool of another process, which halt closes.
func (c *consumption) process(
	ctx context.Context, connections int, configure ...func(*pgxpool.Config),
) (*pgleases.Client, *pgxpool.Pool) {
	pool := newPool(ctx, c.url, connections, configure...)
	id := pgleases.WithClientID(fmt.Sprintf("process-%d", len(c.clients)))
	client := must(pgleases.NewClient(ctx, pool, id, pgleases.WithLogger(quiet)))
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
	c.clients, c.pools = nil, nil
	c.stop = nil
}

func (c *consumption) end() {
	c.halt()
	c.database.end()
}

// fill inserts rows of so many customers, whose names begin with a word.
func (c *consumption) fill(ctx context.Context, word string, rows, customers int) {
	must(c.Exec(ctx, `INSERT INTO public.orders (customer, payload)
SELECT $1 || ' ' || i % $3, '{}' FROM generate_series(1, $2::int) AS i`, word, rows, customers))
}

// prepare makes a backlog of rows that waits for wake.
func (c *consumption) prepare(ctx context.Context, rows int) {
	c.pause(ctx)
	c.fill(ctx, "customer", rows, 10_000)
	c.all(ctx, "TRUNCATE public.effects", "VACUUM ANALYZE public.orders", "CHECKPOINT")
}

// pause lets the consumers take nothing, because a change of owners lets them look, too.
func (c *consumption) pause(ctx context.Context) {
	must(c.Exec(ctx, "UPDATE pgleases.consumers SET paused_at = clock_timestamp()"))
}

// wake lets the consumers begin.
func (c *consumption) wake(ctx context.Context) {
	c.all(ctx,
		"UPDATE pgleases.consumers SET paused_at = NULL",
		"INSERT INTO public.orders (customer, payload) VALUES ('last', '{}')")
}

func (c *consumption) emptied(ctx context.Context) {
	c.until(ctx, "the queue is empty", "SELECT NOT EXISTS (SELECT FROM public.orders)")
}

// naive is the loop that people write, without an order: it locks so many rows, calls the handler, and
// deletes them, all in one transaction.
func (c *consumption) naive(ctx context.Context, limit int) {
	together(consumerProcesses*consumerWorkers, func(int) {
		for n := 1; n > 0; {
			check(pgx.BeginFunc(ctx, c.Pool, func(tx pgx.Tx) (err error) {
				n, err = naiveBatch(ctx, tx, limit)
				return err
			}))
		}
	})
}

// naiveBatch takes some rows, and returns how many.
func naiveBatch(ctx context.Context, tx pgx.Tx, limit int) (n int, err error) {
	const next = "SELECT id, made, payload FROM public.orders ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED"
	rows, _ := tx.Query(ctx, next, limit) // CollectRows returns the error
	orders, err := pgx.CollectRows(rows, pgx.RowToStructByName[order])
	if err != nil {
		return 0, err
	}
	ids := make([]int64, len(orders))
	for i, o := range orders {
		ids[i] = o.ID
	}
	_, err = tx.Exec(ctx, "DELETE FROM public.orders WHERE id = ANY ($1)", ids)
	return len(ids), err
}

// bare handles rows as a program would that knows them: each in a transaction with a guard, an
// insert and a DELETE, or as one that first reads the partition's next row. A process without a
// consumer owns the partitions.
func (c *consumption) bare(ctx context.Context, rows int, reads bool) float64 {
	client, _ := c.process(ctx, 1)
	c.stop = func() {}
	defer c.halt()
	must(client.Lease(ctx, "bare", consumerPartitions))
	const (
		owned = "FROM pgleases.partitions WHERE lease = 'bare' AND owner IS NOT NULL"
		each  = `SELECT o.id, p.partition, p.epoch
FROM public.orders AS o JOIN (SELECT partition, epoch ` + owned + `) AS p USING (partition) ORDER BY o.id`
		sessions = consumerProcesses * consumerWorkers
	)
	c.until(ctx, "all is owned", "SELECT count(*) = $1 "+owned, consumerPartitions)
	c.prepare(ctx, rows)
	read, _ := c.Query(ctx, each) // CollectRows returns the error
	todo := must(pgx.CollectRows(read, pgx.RowToStructByPos[bareRow]))
	began := time.Now()
	together(sessions, func(session int) {
		for i := session; i < len(todo); i += sessions {
			check(pgx.BeginFunc(ctx, c.Pool, func(tx pgx.Tx) error { return todo[i].handle(ctx, tx, reads) }))
		}
	})
	return float64(rows) / time.Since(began).Seconds()
}

// A bareRow is a row of the queue, and the ownership under which it is handled.
type bareRow struct {
	ID        int64
	Partition int32
	Epoch     int64
}

// handle handles the row, or the next one of its partition, which it reads.
func (r bareRow) handle(ctx context.Context, tx pgx.Tx, reads bool) error {
	const next = "SELECT id, made, payload FROM public.orders WHERE partition = $1 ORDER BY id LIMIT 1 FOR UPDATE"
	_, err := tx.Exec(ctx, "SELECT pgleases.guard('bare', $1, $2)", r.Partition, r.Epoch)
	if err == nil && reads {
		err = tx.QueryRow(ctx, next, r.Partition).Scan(&r.ID, new(time.Time), new([]byte))
	}
	if err == nil {
		_, err = tx.Exec(ctx, insertEffect, r.ID)
	}
	if err == nil {
		_, err = tx.Exec(ctx, "DELETE FROM public.orders WHERE id = $1", r.ID)
	}
	return err
}

func measureConsumers(ctx context.Context, l *lab, out *part) {
	measureBacklog(ctx, l, out)
	measureSteady(ctx, l, out)
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
	pace := func(name string, measure func() float64) side { return side{name, perSecond, measure} }
	many, few := l.pick(2_000, 100_000), l.pick(500, 10_000)
	paces := l.alternate(3,
		pace("", func() float64 { return work(many) }),
		pace("`FOR UPDATE SKIP LOCKED LIMIT 100`, without an order", func() float64 { return loop(many, 100) }),
		pace("`SKIP LOCKED LIMIT 400`, as many rows as our batches have", func() float64 { return loop(many, 400) }))
	c.writes = true
	single := l.alternate(5,
		pace("", func() float64 { return work(few, consumer.WithBatch(1, 1<<20)) }),
		pace("guard, insert, `DELETE` by hand, the IDs known", func() float64 { return c.bare(ctx, few, false) }),
		pace("by hand too, reading the row", func() float64 { return c.bare(ctx, few, true) }))
	backlog := fmt.Sprintf("rows from a backlog of %s, 10,000 keys", grouped(many))
	out.compare(backlog, paces[0], paces[1:]...).atLeast(0.8)
	out.compare("one row for each transaction, with an insert by the handler", single[0], single[1:]...).
		goal(">= 0.85x of the one that reads", single[0].over(single[2]) >= 0.85)
}

// insertAt inserts rows at a pace for a while, each in its own transaction, and returns how many.
// Enough sessions share the work that commits do not delay it.
func (c *consumption) insertAt(ctx context.Context, pace float64, span time.Duration) (n int) {
	const insert = "INSERT INTO public.orders (customer, made, payload) VALUES ($1, clock_timestamp(), '{}')"
	var count atomic.Int64
	began, sessions := time.Now(), int(1+pace/250)
	together(sessions, func(session int) {
		for i := session; time.Since(began) < span; i += sessions {
			time.Sleep(time.Until(began.Add(time.Duration(float64(i) / pace * float64(time.Second)))))
			must(c.Exec(ctx, insert, fmt.Sprint("customer ", i%10_000)))
			count.Add(1)
		}
	})
	return int(count.Load())
}

// measureSteady measures how late rows are that come at a pace.
func measureSteady(ctx context.Context, l *lab, out *part) {
	for _, pace := range []float64{1, 100, 1000, 3000} {
		s := steadyAt(ctx, l, pace)
		middle, p99 := median(s.late), quantile(s.late, 0.99)
		what := fmt.Sprintf("commit to handler, %s inserts per second: median, p99", grouped(int(s.pace)))
		r := out.figure(what, duration(middle)+", "+duration(p99)).
			than("processor time of the server", percent(s.both), "").
			than("for the inserts alone", percent(s.inserts), "")
		switch pace {
		case 1:
			r.goal("median <= 5 ms", middle <= 5*time.Millisecond)
		case 3000:
			inTime := p99 <= 100*time.Millisecond
			r.goal("p99 <= 100 ms, <= 1 core besides the inserts", inTime && s.both-s.inserts <= 1)
		}
	}
}

// A steady says how late rows were that came at a pace, and what share of a core the server used for
// the inserts with the consumers, and for the inserts alone.
type steady struct {
	pace          float64
	late          []time.Duration
	both, inserts float64
}

func steadyAt(ctx context.Context, l *lab, pace float64) (s steady) {
	c := newConsumption(ctx, l)
	defer c.end()
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
	return steady{
		pace:    float64(n) / span.Seconds(),
		late:    c.late,
		both:    share(used.server, used.span),
		inserts: share(alone.server, alone.span),
	}
}

// measureIdleConsumers measures what processes cost whose queues are empty.
func measureIdleConsumers(ctx context.Context, l *lab, out *part) {
	c := newConsumption(ctx, l)
	defer c.end()
	consumers := l.pick(2, 10)
	running, stop := context.WithCancel(context.Background())
	c.stop = stop
	handler := consumer.Each(func(context.Context, pgx.Tx, consumer.Row[order]) error { return nil })
	for i := range consumerProcesses {
		client, pool := c.process(ctx, consumers+4)
		for n := range consumers {
			q, name := queueOfOrders, fmt.Sprintf("orders%d", n)
			q.Table = "public." + name
			if i == 0 {
				c.all(ctx, consumer.TableSQL(name, "", q))
			}
			of := must(consumer.New(ctx, client, pool, name, q, handler,
				consumer.WithLogger(quiet), consumer.WithMaxRunning(1)))
			c.running.Go(func() { _ = of.Run(running) })
		}
	}
	c.shared(ctx, consumerProcesses, consumers)
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
	what := fmt.Sprintf("%d idle consumers of %s partitions in %d processes, processor time of the server",
		consumers, grouped(consumerPartitions), consumerProcesses)
	out.figure(what, percent(of)).
		than("as many sessions with a `SELECT 1` each second", percent(share(bare.server, bare.span)), "").
		goal("<= 1 % of a core", of <= 0.01)
}

// measureShapes works through queues of other shapes than many rows of many keys.
func measureShapes(ctx context.Context, l *lab, out *part) {
	rows := l.pick(2_000, 100_000)
	ordinary := func(c *consumption) { c.fill(ctx, "customer", rows, 10_000) }
	beside := func(blocked, keys int) func(*consumption) {
		return func(c *consumption) {
			c.fill(ctx, "blocked", blocked, keys)
			c.block(ctx)
			ordinary(c)
		}
	}
	end := func() {}
	defer func() { end() }()
	oldSnapshot := func(c *consumption) {
		const begin = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM public.orders"
		end()
		var old *pgx.Conn
		old, end = connect(ctx, c.url)
		must(old.Exec(ctx, begin, pgx.QueryExecModeSimpleProtocol))
		ordinary(c)
	}
	var sides []side
	for _, shape := range []struct {
		name    string
		prepare func(*consumption)
	}{
		{"", ordinary},
		{"all in one key", func(c *consumption) { c.fill(ctx, "customer", rows, 1) }},
		{"a key for each row", func(c *consumption) { c.fill(ctx, "customer", rows, rows) }},
		{"1,000 blocked keys", beside(2000, 1000)},
		{"a blocked key with 100,000 rows", beside(l.pick(1000, 100_000), 1)},
		{"beside a transaction with an old snapshot", oldSnapshot},
	} {
		sides = append(sides, side{shape.name, perSecond, func() float64 {
			return float64(rows) / shaped(ctx, l, shape.prepare).Seconds()
		}})
	}
	all := l.alternate(1, sides...)
	r := out.figure(fmt.Sprintf("%s rows of 10,000 keys, and queues of other shapes", grouped(rows)), all[0].String())
	for _, s := range all[1:] {
		r.than(s.name, s.String(), s.ratio(all[0]))
	}
}

// shaped returns how long consumers need for a queue until only rows of blocked keys are left.
func shaped(ctx context.Context, l *lab, prepare func(*consumption)) time.Duration {
	c := newConsumption(ctx, l)
	defer c.end()
	c.start(ctx, consumerProcesses, consumer.WithPoll(time.Hour))
	c.pause(ctx)
	prepare(c)
	c.all(ctx, "VACUUM ANALYZE public.orders", "CHECKPOINT")
	began := time.Now()
	c.wake(ctx)
	c.until(ctx, "all is handled", `SELECT NOT EXISTS (
    SELECT FROM public.orders AS o WHERE customer NOT IN (SELECT key FROM pgleases.consumer_blocked))`)
	return time.Since(began)
}

// block blocks the keys that begin with this word.
func (c *consumption) block(ctx context.Context) {
	c.all(ctx, `INSERT INTO pgleases.consumer_blocked (consumer, partition, id, key, version, attempts, next_at)
SELECT DISTINCT ON (customer) 'orders', partition, id, customer, xmin::text, 1, 'infinity'::timestamptz
FROM public.orders WHERE customer LIKE 'blocked %' ORDER BY customer, id`)
}
