package pgleases_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/lock"
	"github.com/pgleases/pgleases/schedule"
)

// README.md and docs show lines of these examples; TestPagesShowCompiledCode compares them.

func Example() {
	x := begin()
	defer x.end()
	ctx, stop, pool := x.ctx, x.stop, x.pool
	var shipped int
	ship := func(_ context.Context, partition int) {
		if shipped++; shipped == 128 {
			fmt.Println("shipped the orders of 128 partitions")
			stop()
		}
	}

	client, err := pgleases.NewClient(ctx, pool)
	if err != nil {
		log.Fatal(err)
	}
	lease, err := client.Lease(ctx, "orders", 128)
	if err != nil {
		log.Fatal(err)
	}

	shipOwned(ctx, lease, ship)

	// ctx has ended, so Close waits for nothing: it hands over what is free, and leaves.
	if err := client.Close(ctx); err != nil {
		log.Print(err)
	}
	// Output: shipped the orders of 128 partitions
}

func shipOwned(ctx context.Context, lease *pgleases.Lease, ship func(context.Context, int)) {
	for ctx.Err() == nil && lease.Err() == nil {
		changed := lease.Changed() // taken before Values: a change in between closes it
		for _, partition := range lease.Values() {
			ship(ctx, partition)
		}
		select {
		case <-changed: // also at the end of the lease
		case <-time.After(time.Second): // look for new orders
		case <-ctx.Done():
		}
	}
}

func ExampleLease_Hold() {
	x := begin()
	defer x.end()
	ctx, client, pool := x.ctx, x.client(), x.pool
	lease, err := client.Lease(ctx, "orders", 128)
	if err != nil {
		log.Fatal(err)
	}
	go x.stopOnceShipped()

	shipHeld(ctx, pool, lease)
	fmt.Println("orders left:", x.ordersLeft())
	// Output: orders left: 0
}

func shipHeld(ctx context.Context, pool *pgxpool.Pool, lease *pgleases.Lease) {
	for ctx.Err() == nil && lease.Err() == nil {
		changed := lease.Changed()
		hold := lease.Hold(ctx)
		for _, partition := range hold.Partitions() {
			if err := shipGuarded(hold.Context(), pool, lease, partition); err != nil {
				log.Print(err) // another process owns it now, or the database is away: not shipped
			}
		}
		hold.Release()
		select {
		case <-changed:
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
}

func shipGuarded(ctx context.Context, pool *pgxpool.Pool, lease *pgleases.Lease, partition pgleases.Partition) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if err := lease.Guard(ctx, tx, partition); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "UPDATE orders SET shipped = true WHERE partition = $1 AND NOT shipped", partition.Number)
		return err
	})
}

func ExampleLease_Guard() {
	x := begin()
	defer x.end()
	ctx, client, pool := x.ctx, x.client(), x.pool
	lease, err := client.Lease(ctx, "orders", 128)
	if err != nil {
		log.Fatal(err)
	}
	if err := lease.Wait(ctx); err != nil {
		log.Fatal(err)
	}
	partition, owned := lease.Partition(lease.PartitionFor("customer-42"))
	if !owned {
		return // another process has it
	}
	ship := func() error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if err := lease.Guard(ctx, tx, partition); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, "UPDATE orders SET shipped = true WHERE customer = 'customer-42'")
			return err
		})
	}
	fmt.Println("while it is owned:", ship())

	// Afterwards the same code is refused, also in a process that has not noticed.
	partition.Epoch--
	fmt.Println("under an older epoch:", errors.Is(ship(), pgleases.ErrNotOwner))
	// Output:
	// while it is owned: <nil>
	// under an older epoch: true
}

func ExampleLease_Run() {
	x := begin()
	defer x.end()
	ctx, client, pool := x.ctx, x.client(), x.pool
	lease, err := client.Lease(ctx, "orders", 128)
	if err != nil {
		log.Fatal(err)
	}
	go x.stopOnceShipped()

	err = shipEach(ctx, pool, lease)
	fmt.Println("stopped:", errors.Is(err, context.Canceled))
	// Output: stopped: true
}

func shipEach(ctx context.Context, pool *pgxpool.Pool, lease *pgleases.Lease) error {
	err := lease.Run(ctx, func(ctx context.Context, p pgleases.Partition) error {
		for ctx.Err() == nil { // ended: the partition is wanted elsewhere, or the lease has ended
			if err := shipGuarded(p.Context(), pool, lease, p); err != nil {
				return err // logged, and called again a little later
			}
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
			}
		}
		return nil
	})
	return err
}

func ExampleClient_leader() {
	x := begin()
	defer x.end()
	ctx, stop, client := x.ctx, x.stop, x.client()
	lead := func(ctx context.Context, _ pgleases.Partition) error {
		fmt.Println("this process leads")
		stop()
		<-ctx.Done()
		return nil
	}

	lease, err := client.Lease(ctx, "leader", 1)
	if err == nil {
		err = lease.Run(ctx, lead) // calls lead while this process leads; lead returns when its ctx ends
	}
	fmt.Println("stopped:", errors.Is(err, context.Canceled))
	// Output:
	// this process leads
	// stopped: true
}

func Example_schedule() {
	x := begin()
	defer x.end()
	client, pool := x.client(), x.pool
	_, err := pool.Exec(x.ctx, "CREATE TABLE reports (title text PRIMARY KEY, orders bigint NOT NULL)")
	x.Check(err)
	type Report struct{ Title string }
	registered := make(chan *schedule.Kind[Report], 1)
	run := func(ctx context.Context) error {
		s, err := schedule.New(ctx, client, pool, "reports")
		if err != nil {
			return err
		}
		report := schedule.InTx(s, "report", func(ctx context.Context, tx pgx.Tx, r schedule.Run[Report]) error {
			_, err := tx.Exec(ctx, "INSERT INTO reports SELECT $1, count(*) FROM orders", r.Args.Title)
			return err // what the handler wrote commits with the outcome of its run, or not at all
		})
		registered <- report
		if err := report.Add("nightly", Report{"nightly"}, schedule.Cron("0 2 * * *", "Europe/Berlin")); err != nil {
			return err
		}
		return s.Run(ctx) // in each process, until ctx ends
	}
	ended := make(chan error, 1)
	go func() { ended <- run(x.ctx) }()
	report := <-registered
	x.Check(pgx.BeginFunc(x.ctx, pool, func(tx pgx.Tx) error {
		ctx := x.ctx
		_, err := report.EnqueueTx(ctx, tx, Report{"on demand"})
		return err
	}))
	for n := 0; n == 0; time.Sleep(10 * time.Millisecond) {
		x.Check(pool.QueryRow(x.ctx, "SELECT count(*) FROM reports WHERE orders = 300").Scan(&n))
	}
	x.stop()
	fmt.Println("stopped:", errors.Is(<-ended, context.Canceled))
	// Output: stopped: true
}

func Example_lock() {
	x := begin()
	defer x.end()
	ctx, client, pool := x.ctx, x.client(), x.pool
	makeReport := func(context.Context) error { return nil }

	locks := lock.New(client, pool)
	ran, err := locks.TryDo(ctx, "daily-report", makeReport) // false if another process holds the lock
	fmt.Println(ran, err)
	// Output: true <nil>
}

func ExampleWithConnConfig() {
	x := begin()
	defer x.end()
	ctx, pool := x.ctx, x.pool
	directURL, _ := pgtest.DirectURL(x.url)

	direct, err := pgx.ParseConfig(directURL) // past the pooler, where notifications arrive
	if err != nil {
		log.Fatal(err)
	}
	client, err := pgleases.NewClient(ctx, pool, pgleases.WithConnConfig(direct))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(client.Close(ctx))
	// Output: <nil>
}

func ExampleLease_PartitionFor() {
	x := begin()
	defer x.end()
	ctx, client, pool := x.ctx, x.client(), x.pool
	lease, err := client.Lease(ctx, "orders", 128)
	if err != nil {
		log.Fatal(err)
	}
	for _, key := range []string{"customer-1", "customer-42", "Grüße"} {
		var inSQL int
		if err := pool.QueryRow(ctx, "SELECT pgleases.partition_for($1, 128)", key).Scan(&inSQL); err != nil {
			log.Fatal(err)
		}
		fmt.Println(key, lease.PartitionFor(key), inSQL)
	}
	// Output:
	// customer-1 71 71
	// customer-42 53 53
	// Grüße 58 58
}

const orders = `
CREATE TABLE orders (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer  text NOT NULL,
    shipped   boolean NOT NULL DEFAULT false,
    partition int NOT NULL GENERATED ALWAYS AS (pgleases.partition_for(customer, 128)) STORED
);
INSERT INTO orders (customer) SELECT 'customer-' || n FROM generate_series(1, 300) AS n`

// exampleURL is the URL of a database with orders in it.
func exampleURL() string { return pgtest.ExampleURL(orders) }

// An example is what an Example runs with: a database with orders in it, a pool, and a context that stop ends. It is a
// pgtest.TB, so that the examples share the server of the tests.
type example struct {
	pgtest.Example
	ctx  context.Context
	stop context.CancelFunc
	url  string
	pool *pgxpool.Pool
}

func begin() *example {
	x := &example{}
	x.ctx, x.stop = context.WithTimeout(context.Background(), testkit.Patience)
	x.url = pgtest.Database(x)
	var err error
	x.pool, err = pgtest.NewPool(x.ctx, x.url)
	x.Check(err)
	x.Cleanup(x.pool.Close)
	x.Check(pgleases.Migrate(x.ctx, x.pool))
	_, err = x.pool.Exec(x.ctx, orders, pgx.QueryExecModeSimpleProtocol)
	x.Check(err)
	return x
}

func (x *example) client() *pgleases.Client {
	client, err := pgleases.NewClient(x.ctx, x.pool, pgleases.WithTTL(calmTTL), pgleases.WithHeartbeat(calmHeartbeat))
	x.Check(err)
	x.Cleanup(func() { x.Check(client.Close(context.WithoutCancel(x.ctx))) })
	return client
}

// stopOnceShipped ends the example's context when no order is left.
func (x *example) stopOnceShipped() {
	defer x.stop()
	for x.ctx.Err() == nil && x.ordersLeft() > 0 {
		time.Sleep(10 * time.Millisecond)
	}
}

func (x *example) ordersLeft() (n int) {
	err := x.pool.QueryRow(context.Background(), "SELECT count(*) FROM orders WHERE NOT shipped").Scan(&n)
	x.Check(err)
	return n
}

func (x *example) end() {
	x.stop()
	x.End()
}
