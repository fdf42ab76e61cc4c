package pgleases_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
)

// Changed is a closed channel after a lease's end: a loop that waits only for it would use a whole
// processor. These are the loops of README.md, in examples that TestPagesShowCompiledCode compares
// with it.
func TestThePrintedLoopsEndWithTheirLease(t *testing.T) {
	t.Parallel()
	loops := map[string]func(context.Context, *pgxpool.Pool, *pgleases.Lease){
		"Values": func(ctx context.Context, _ *pgxpool.Pool, lease *pgleases.Lease) {
			shipOwned(ctx, lease, func(context.Context, int) {})
		},
		"Hold": shipHeld,
		"Run":  func(ctx context.Context, pool *pgxpool.Pool, lease *pgleases.Lease) { _ = shipEach(ctx, pool, lease) },
	}
	ends := map[string]func(*testing.T, *pgxpool.Pool, *pgleases.Client, *pgleases.Lease){
		"the client is closed": func(t *testing.T, _ *pgxpool.Pool, c *pgleases.Client, _ *pgleases.Lease) { shut(t, c) },
		"the lease is left": func(t *testing.T, _ *pgxpool.Pool, _ *pgleases.Client, l *pgleases.Lease) {
			if err := l.Leave(t.Context()); err != nil {
				t.Error(err)
			}
		},
		"the ID is taken over": func(t *testing.T, pool *pgxpool.Pool, c *pgleases.Client, _ *pgleases.Lease) {
			newClient(t, pool, pgleases.WithClientID(c.ID()))
		},
	}
	url := pgtest.MigratedDatabase(t)
	pool := testkit.Pool(t, url)
	testkit.OK(t, pgleases.Migrate(t.Context(), pool))
	testkit.Execute(t, pool, orders, pgx.QueryExecModeSimpleProtocol)
	for way, loop := range loops {
		for what, end := range ends {
			t.Run(way+", "+what, func(t *testing.T) {
				t.Parallel()
				client := newClient(t, pool, pgleases.WithTTL(30*time.Second), pgleases.WithHeartbeat(50*time.Millisecond))
				lease := joined(t, client, t.Name(), 4, pgleases.WithHandoffDelay(0))
				if lease.Err() != nil {
					t.Errorf("a living lease has the error %v", lease.Err())
				}
				ctx := &countedContext{Context: t.Context()}
				done := make(chan error, 1)
				go func() {
					loop(ctx, pool, lease)
					done <- nil
				}()
				testkit.OK(t, lease.Wait(t.Context()))
				end(t, pool, client, lease)
				testkit.Receive(t, "the lease ends", lease.Done())
				before := ctx.looks.Load()
				testkit.Receive(t, "the loop ends", done)
				if passes := ctx.looks.Load() - before; passes > 2 {
					t.Errorf("%d passes after the end of the lease", passes)
				}
				if lease.Err() == nil {
					t.Error("a lease that ended has no error")
				}
			})
		}
	}
}

// A countedContext counts how often it is asked whether it has ended, which each pass of a loop
// does.
type countedContext struct {
	context.Context
	looks atomic.Int64
}

func (c *countedContext) Err() error {
	c.looks.Add(1)
	return c.Context.Err()
}
