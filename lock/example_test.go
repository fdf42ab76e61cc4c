package lock_test

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
	"github.com/pgleases/pgleases/internal/testkit/clients"
	"github.com/pgleases/pgleases/lock"
)

// docs/locks.md shows lines of these examples word for word; a test sees to that.

// A report that one process at a time makes. The others skip it.
func ExampleLocks_TryDo() {
	x := begin()
	defer x.end()
	ctx, locks, other := x.ctx, x.locks(), x.locks()
	report := func(context.Context) error { fmt.Println("made the report"); return nil }

	ran, err := locks.TryDo(ctx, "daily-report", func(ctx context.Context) error {
		ran, err := other.TryDo(ctx, "daily-report", report) // another process, meanwhile
		fmt.Println("the other ran it:", ran, err)
		return errors.Join(err, report(ctx))
	})
	if err != nil {
		log.Print(err)
	}
	fmt.Println("this one ran it:", ran)
	// Output:
	// the other ran it: false <nil>
	// made the report
	// this one ran it: true
}

// One lock for each webhook: a sender delivers some twice, and at once. A name costs nothing once it
// is not used.
func ExampleLocks_TryAcquire() {
	x := begin()
	defer x.end()
	x.exec("CREATE TABLE processed (webhook text PRIMARY KEY)")
	locks, pool := x.locks(), x.pool
	process := func(ctx context.Context, webhook string) error {
		held, err := locks.TryAcquire(ctx, "webhook-"+webhook)
		if errors.Is(err, lock.ErrHeld) {
			return nil // another process is at it
		}
		if err != nil {
			return err
		}
		defer func() {
			if err := held.Release(context.WithoutCancel(ctx)); err != nil {
				log.Print(err)
			}
		}()
		return pgx.BeginFunc(held.Context(), pool, func(tx pgx.Tx) error {
			if err := held.Guard(held.Context(), tx); err != nil {
				return err
			}
			_, err := tx.Exec(held.Context(), "INSERT INTO processed VALUES ($1) ON CONFLICT DO NOTHING", webhook)
			return err
		})
	}

	for _, webhook := range []string{"evt-1", "evt-2", "evt-1"} {
		x.Check(process(x.ctx, webhook))
	}
	fmt.Println(x.count("processed"), "processed,", x.count("pgleases.locks"), "locks left")
	// Output: 2 processed, 0 locks left
}

// A wait with an end.
func ExampleLocks_Acquire() {
	x := begin()
	defer x.end()
	locks, other := x.locks(), x.locks()
	taken, err := other.TryAcquire(x.ctx, "printer")
	x.Check(err)

	ctx, cancel := context.WithTimeout(x.ctx, 100*time.Millisecond)
	defer cancel()
	held, err := locks.Acquire(ctx, "printer")
	if errors.Is(err, context.DeadlineExceeded) {
		fmt.Println("somebody prints for longer than that")
	}

	x.Check(taken.Release(x.ctx))
	held, err = locks.Acquire(x.ctx, "printer")
	x.Check(err)
	fmt.Println("prints under a higher token:", held.Token() > taken.Token())
	x.Check(held.Release(x.ctx))
	// Output:
	// somebody prints for longer than that
	// prints under a higher token: true
}

// Readers share a lock; a writer has it alone, after those that came before it.
func ExampleLocks_AcquireShared() {
	x := begin()
	defer x.end()
	ctx, locks := x.ctx, x.locks()

	one, err := locks.AcquireShared(ctx, "catalogue")
	x.Check(err)
	two, err := x.locks().AcquireShared(ctx, "catalogue")
	x.Check(err)
	_, err = x.locks().TryAcquire(ctx, "catalogue")
	fmt.Println("a writer has to wait:", errors.Is(err, lock.ErrHeld))
	x.Check(errors.Join(one.Release(ctx), two.Release(ctx)))

	err = locks.Do(ctx, "catalogue", func(context.Context) error {
		fmt.Println("and writes")
		return nil
	})
	x.Check(err)
	// Output:
	// a writer has to wait: true
	// and writes
}

// A leader that keeps its lock for as long as it may. A lease with one partition does the same, and
// hands over when its client drains.
func ExampleHeld_Context() {
	x := begin()
	defer x.end()
	ctx, stop, locks := x.ctx, x.stop, x.locks()
	lead := func(_ context.Context, token int64) { fmt.Println("leads:", token > 0); stop() }

	for ctx.Err() == nil {
		held, err := locks.Acquire(ctx, "leader")
		if err != nil {
			break // ctx has ended, or the client has
		}
		under, cancel := context.WithCancel(ctx)
		context.AfterFunc(held.Context(), cancel) // the lock is lost, or the client closes
		lead(under, held.Token())
		cancel()
		if err := held.Release(context.WithoutCancel(ctx)); err != nil {
			log.Print(err) // it was lost, and another may lead
		}
	}
	// Output: leads: true
}

func exampleURL(ddl ...string) string { return pgtest.ExampleURL(ddl...) }

// An example is what an Example runs with.
type example struct {
	pgtest.Example
	ctx  context.Context
	stop context.CancelFunc
	pool *pgxpool.Pool
}

func begin() *example {
	x := &example{}
	x.ctx, x.stop = context.WithTimeout(context.Background(), testkit.Patience)
	var err error
	x.pool, err = pgtest.NewPool(x.ctx, pgtest.MigratedDatabase(x))
	x.Check(err)
	x.Cleanup(x.pool.Close)
	return x
}

func (x *example) end() {
	x.stop()
	x.End()
}

// locks are those of another process.
func (x *example) locks() *lock.Locks {
	client, err := pgleases.NewClient(
		x.ctx, x.pool, pgleases.WithTTL(clients.TTL), pgleases.WithHeartbeat(clients.Heartbeat),
	)
	x.Check(err)
	x.Cleanup(func() { x.Check(client.Close(context.WithoutCancel(x.ctx))) })
	return lock.New(client, x.pool)
}

func (x *example) exec(statement string) {
	_, err := x.pool.Exec(x.ctx, statement)
	x.Check(err)
}

func (x *example) count(table string) (n int) {
	x.Check(x.pool.QueryRow(x.ctx, "SELECT count(*) FROM "+table).Scan(&n))
	return n
}
