package pgleases_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
)

// hasLeft fails the test if the session of a client remains.
func hasLeft(t *testing.T, pool *pgxpool.Pool, id string) {
	t.Helper()
	if testkit.Value[bool](t, pool, "SELECT EXISTS (SELECT FROM pgleases.clients WHERE id = $1)", id) {
		t.Errorf("the session of client %q remains", id)
	}
}

// running returns a function for pgleases.Run that runs a lease of four partitions, and calls do when
// it owns them.
func running(t *testing.T, do func(*pgleases.Client)) func(context.Context, *pgleases.Client) error {
	return func(ctx context.Context, client *pgleases.Client) error {
		lease, err := client.Lease(ctx, t.Name(), 4)
		if err != nil {
			return err
		}
		testkit.OK(t, lease.Wait(ctx))
		do(client)
		return lease.Run(ctx, func(ctx context.Context, _ pgleases.Partition) error {
			<-ctx.Done()
			return nil
		})
	}
}

func TestRunEndsInOrderWithItsContext(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t, pgtest.MigratedDatabase(t))
	for what, stopped := range map[string]error{"no cause": nil, "a cause of its own": errors.New("terminated")} {
		ctx, stop := context.WithCancelCause(t.Context())
		stops := func(*pgleases.Client) { stop(stopped) }
		err := pgleases.Run(ctx, pool, running(t, stops), pgleases.WithClientID("orderly"))
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
		hasLeft(t, pool, "orderly")
	}
}

// A deadline is no order to end: what the function had to do may not be done.
func TestRunReturnsThatItsDeadlineHasPassed(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t, pgtest.MigratedDatabase(t))
	ctx, stop := context.WithTimeout(t.Context(), time.Second)
	defer stop()
	err := pgleases.Run(ctx, pool, func(ctx context.Context, _ *pgleases.Client) error {
		<-ctx.Done()
		return fmt.Errorf("rows are left: %w", context.Cause(ctx))
	}, pgleases.WithClientID("late"))
	wraps(t, "Run", err, context.DeadlineExceeded)
	hasLeft(t, pool, "late")
}

func TestRunReturnsTheErrorOfItsFunction(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t, pgtest.MigratedDatabase(t))
	failure := errors.New("out of paper")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	for _, before := range []func(){func() {}, stop} { // ctx ends, which is not why the function fails
		err := pgleases.Run(ctx, pool, func(context.Context, *pgleases.Client) error {
			before()
			return failure
		}, pgleases.WithClientID("failing"))
		wraps(t, "Run", err, failure)
		hasLeft(t, pool, "failing")
	}
}

func TestRunClosesItsClientInAPanic(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t, pgtest.MigratedDatabase(t))
	func() {
		defer func() {
			if got := recover(); got != "on purpose" {
				t.Errorf("the panic is %v", got)
			}
			hasLeft(t, pool, "panicking")
		}()
		err := pgleases.Run(t.Context(), pool, running(t, func(*pgleases.Client) { panic("on purpose") }),
			pgleases.WithClientID("panicking"))
		t.Errorf("Run returned %v", err)
	}()
}

func TestRunEndsWithItsClient(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t, pgtest.MigratedDatabase(t))
	takeOver := func(c *pgleases.Client) { newClient(t, pool, pgleases.WithClientID(c.ID())) }
	wraps(t, "Run", pgleases.Run(t.Context(), pool, running(t, takeOver)), pgleases.ErrSuperseded)
	// A function that says nothing about it.
	err := pgleases.Run(t.Context(), pool, func(ctx context.Context, client *pgleases.Client) error {
		takeOver(client)
		wraps(t, "the context", ended(t, "the context ends", ctx), pgleases.ErrSuperseded)
		return nil
	})
	wraps(t, "Run", err, pgleases.ErrSuperseded)
	// A function that has closed the client itself.
	err = pgleases.Run(t.Context(), pool, func(ctx context.Context, client *pgleases.Client) error {
		return client.Close(ctx)
	})
	testkit.OK(t, err)
}

func TestRunRefusesBadInput(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t, pgtest.MigratedDatabase(t))
	called := func(context.Context, *pgleases.Client) error { t.Error("the function was called"); return nil }
	refused(t, "no function", pgleases.Run(t.Context(), pool, nil), "pgleases: run: the function is nil")
	refused(t, "no pool", pgleases.Run(t.Context(), nil, called), "pool is nil")
	refused(t, "a wrong option", pgleases.Run(t.Context(), pool, called, pgleases.WithTTL(-1)), "TTL")
}
