package lock_test

import (
	"context"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/testkit/clients"
	"github.com/pgleases/pgleases/lock"
)

// A tracer calls a function of the application before and after statements with a text.
type tracer struct{ before, after atomic.Pointer[traced] }

type traced struct {
	text string
	does func()
}

type textKey struct{}

func (t *tracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	if of := t.before.Load(); of != nil && strings.Contains(d.SQL, of.text) {
		of.does()
	}
	return context.WithValue(ctx, textKey{}, d.SQL)
}

func (t *tracer) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) {
	text, _ := ctx.Value(textKey{}).(string) // pgx calls it for the statements of a batch too, without a start
	if of := t.after.Load(); of != nil && strings.Contains(text, of.text) {
		of.does()
	}
}

// A tracer of the pool that panics, ends its goroutine or hangs costs the call that it traces, and
// keeps nobody from the lock for longer.
func TestTracersMayNotReturn(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	url := newDatabase(t)
	other := newWorker(t, url)
	for name, of := range map[string]func(over <-chan struct{}){
		"panic":  func(<-chan struct{}) { panic("a fault of the application") },
		"Goexit": func(<-chan struct{}) { runtime.Goexit() },
		"hang":   func(over <-chan struct{}) { <-over },
	} {
		for _, when := range []string{"before", "after"} {
			t.Run(name+" "+when, func(t *testing.T) {
				t.Parallel()
				var traces tracer
				pool := testkit.Pool(t, url, func(c *pgxpool.Config) { c.ConnConfig.Tracer, c.MaxConns = &traces, 8 })
				client := clients.New(t, pool)
				locks, key := lock.New(client, pool), t.Name()
				over := make(chan struct{})
				t.Cleanup(func() { close(over) }) // before the pool is closed
				does := func() { of(over) }
				arm := map[string]*atomic.Pointer[traced]{"before": &traces.before, "after": &traces.after}[when]

				arm.Store(&traced{"lock_acquire(", does})
				ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
				defer cancel()
				began := time.Now()
				if _, err := locks.Acquire(ctx, key); err == nil || ctx.Err() != nil {
					t.Fatalf("Acquire returned %v after %v", err, time.Since(began))
				}
				arm.Store(nil)
				h := testkit.Must(locks.Acquire(ctx, key))(t)

				arm.Store(&traced{"lock_release(", does})
				release(t, h)
				arm.Store(nil)
				release(t, other.held(other.Acquire, key))
			})
		}
	}
}

// When another server has refused, a call asks a connection of the pool why.
func TestTracersMayNotReturnAfterRefusals(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	a, other := newWorker(t, newDatabase(t)), newDatabase(t)
	for name, of := range map[string]func(giveUp func(), over <-chan struct{}){
		"panic":  func(func(), <-chan struct{}) { panic("a fault of the application") },
		"Goexit": func(func(), <-chan struct{}) { runtime.Goexit() },
		"hang":   func(giveUp func(), over <-chan struct{}) { giveUp(); <-over },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var traces tracer
			pool := testkit.Pool(t, other, func(c *pgxpool.Config) { c.ConnConfig.Tracer, c.MaxConns = &traces, 8 })
			over := make(chan struct{})
			t.Cleanup(func() { close(over) }) // before the pool is closed
			locks := lock.New(a.client, pool)
			type acquire = func(context.Context, string) (*lock.Held, error)
			for _, acquire := range []acquire{locks.Acquire, locks.TryAcquire} {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				traces.before.Store(&traced{"current_database()", func() { of(cancel, over) }})
				result := make(chan error, 1)
				go func() {
					_, err := acquire(ctx, t.Name())
					result <- err
				}()
				select {
				case err := <-result:
					t.Logf("%v", err)
				case <-time.After(testkit.Patience):
					t.Error("the call does not return")
				}
			}
		})
	}
}
