package engine_test

import (
	"context"
	"testing"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/lock"
)

func TestCloseNamesWhatIsLeftInOneLine(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.start("a")
		l := a.owning("x", 2)
		defer l.Hold(context.Background()).Release()
		_, err := lock.New(a.c, nil).TryAcquire(context.Background(), "report")
		w.ok(err)
		closed := a.close(time.Second, 5*time.Second)
		const want = `pgleases: close: partitions 0-1 of lease "x" still in work, lock "report" not released: ` +
			`context deadline exceeded; the session keeps what is left until it expires`
		if closed == nil || closed.Error() != want {
			t.Errorf("got  %v\nwant %s", closed, want)
		}
	})
}

// A client that has closed does not try again what its end has canceled.
func TestCloseLogsNothingThatItCancels(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.start("a")
		begun := make(chan struct{}, 1)
		w.inject(func(_, op string) (fault, bool) {
			if op != "register" {
				return fault{}, false
			}
			select {
			case begun <- struct{}{}:
			default:
			}
			return fault{before: time.Hour}, true
		})
		w.evict("a")
		<-begun
		w.ok(a.close(time.Minute, 5*time.Second))
		if lines := w.linesWith("will be tried again"); len(lines) > 0 {
			t.Errorf("it is logged that it will be tried again: %q", lines)
		}
	})
}

// The work on the partitions of a lease ends one after the other.
func TestLeaseThatIsLeftIsLoggedInOneLine(t *testing.T) {
	for name, end := range map[string]func(a *proc, l *pgleases.Lease) error{
		"the client closes": func(a *proc, _ *pgleases.Lease) error { return a.close(time.Minute, time.Minute) },
		"the lease is left": func(_ *proc, l *pgleases.Lease) error { return l.Leave(context.Background()) },
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				a := w.start("a")
				l := a.owning("x", 50)
				go func() {
					_ = l.Run(context.Background(), func(ctx context.Context, p pgleases.Partition) error {
						<-ctx.Done()
						time.Sleep(time.Duration(p.Number) * 100 * time.Millisecond)
						return nil
					})
				}()
				time.Sleep(time.Second)
				w.ok(end(a, l))
				time.Sleep(time.Second) // of simulated time: the log has its own goroutine
				const line = "pgleases: partitions handed over"
				want := line + " lease=x count=50 partitions=[0-49] cause=closed"
				if all, whole := len(w.linesWith(line)), len(w.linesWith(want)); all != 1 || whole != 1 {
					t.Errorf("it is logged in %d lines, %d of which say all: %q", all, whole, w.linesWith(line))
				}
			})
		})
	}
}
