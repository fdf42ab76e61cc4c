package engine_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/health"
	"github.com/pgleases/pgleases/internal/liveness"
	"github.com/pgleases/pgleases/lock"
)

// pause stops a client with fast failover for so long that its readers wait for the server, which
// does not answer until the caller calls resume.
func (w *world) pause(p *proc) (resume func()) {
	var silent atomic.Bool
	silent.Store(true)
	w.inject(func(client, op string) (fault, bool) {
		return fault{before: time.Second / 10, survives: true, err: errLocked}, silent.Load() && client == p.name
	})
	p.engine().Freeze(liveness.StoppedFor + liveness.PulseEvery)
	return func() { silent.Store(false) }
}

// A client that waits for the server has not lost what it owns, so Run calls each partition again.
func TestRunCallsAgainAfterAPause(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.start("a", pgleases.WithFastFailover())
		l := a.owning("x", 2)
		var calls [2]atomic.Int64
		callback := func(ctx context.Context, p pgleases.Partition) error {
			calls[p.Number].Add(1)
			select {
			case <-time.After(150 * time.Millisecond):
			case <-ctx.Done():
			}
			return errors.New("the mail server does not answer")
		}
		go func() { _ = l.Run(context.Background(), callback) }()
		time.Sleep(time.Second)
		resume := w.pause(a)
		time.Sleep(time.Second)
		before := []int64{calls[0].Load(), calls[1].Load()}
		time.Sleep(time.Second)
		if calls[0].Load() != before[0] || calls[1].Load() != before[1] || len(shown(l)) > 0 {
			t.Errorf("while readers wait, Run calls, or Values shows %s", shows(l))
		}
		resume()
		w.within(5*time.Second, "Run calls both again", func() bool {
			return calls[0].Load() > before[0] && calls[1].Load() > before[1]
		})
	})
}

func TestRunThatBeginsInAPauseCalls(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.start("a", pgleases.WithFastFailover())
		l := a.owning("x", 2)
		resume := w.pause(a)
		calls := make(chan pgleases.Partition, 2)
		go func() {
			_ = l.Run(context.Background(), func(ctx context.Context, p pgleases.Partition) error {
				calls <- p
				<-ctx.Done()
				return nil
			})
		}()
		time.Sleep(time.Second)
		if len(calls) > 0 {
			t.Error("Run calls while readers wait")
		}
		resume()
		w.within(5*time.Second, "Run calls both", func() bool { return len(calls) == 2 })
	})
}

// The end of an ownership ends the wait for a call, and the next ownership is called.
func TestTrustThatEndsInAPauseIsAnEnd(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.start("a", pgleases.WithFastFailover())
		l := a.owning("x", 1)
		resume := w.pause(a)
		var calls atomic.Int64
		go func() {
			_ = l.Run(context.Background(), func(ctx context.Context, _ pgleases.Partition) error {
				calls.Add(1)
				<-ctx.Done()
				return nil
			})
		}()
		time.Sleep(2 * a.engine().TTL())
		if calls.Load() > 0 || !l.TrustDeadline().IsZero() {
			t.Errorf("%d calls, and trust until %v", calls.Load(), l.TrustDeadline())
		}
		resume()
		w.within(20*time.Second, "Run calls", func() bool { return calls.Load() == 1 })
	})
}

func TestHoldTakenInAPauseWaits(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.start("a", pgleases.WithFastFailover())
		l := a.owning("x", 2)
		resume := w.pause(a)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if h := l.Hold(ctx); len(h.Values()) > 0 || h.Context().Err() == nil {
			t.Errorf("while readers wait, a hold has %v", h.Values())
		}
		holds := make(chan *pgleases.Hold, 1)
		go func() { holds <- l.Hold(context.Background()) }()
		time.Sleep(time.Second)
		if len(holds) > 0 {
			t.Errorf("while readers wait, a hold has %v", (<-holds).Values())
		}
		resume()
		w.within(5*time.Second, "there is a hold", func() bool { return len(holds) == 1 })
		h := <-holds
		defer h.Release()
		if len(h.Values()) != 2 || h.Context().Err() != nil {
			t.Errorf("the hold has %v: %v", h.Values(), context.Cause(h.Context()))
		}
		end := w.pause(a)
		defer end()
		time.Sleep(2 * a.engine().TTL())
		if h := l.Hold(context.Background()); len(h.Values()) > 0 {
			t.Errorf("without trust, a hold has %v", h.Values())
		}
	})
}

// In a pause the database decides: nothing was lost, and its answer is the truth.
func TestGuardInAPauseAsksTheDatabase(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.start("a", pgleases.WithFastFailover())
		l := a.owning("x", 1)
		p, _ := l.Partition(0)
		resume := w.pause(a)
		defer resume()
		if err := l.Guard(t.Context(), nil, p); err != nil {
			t.Errorf("the owner is refused: %v", err)
		}
		old := p
		old.Epoch--
		err := l.Guard(t.Context(), nil, old)
		if !errors.Is(err, pgleases.ErrNotOwner) || errors.Is(err, pgleases.ErrTrustLost) {
			t.Errorf("under an old epoch: %v", err)
		}
		time.Sleep(2 * a.engine().TTL())
		if err := l.Guard(t.Context(), nil, p); !errors.Is(err, pgleases.ErrTrustLost) {
			t.Errorf("without trust: %v", err)
		}
	})
}

func TestLocksAcquiredInAPauseWait(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.start("a", pgleases.WithFastFailover())
		locks := lock.New(a.c, nil)
		resume := w.pause(a)
		ran := make(chan error, 2)
		work := func(ctx context.Context) error { return context.Cause(ctx) }
		go func() {
			_, err := locks.TryDo(context.Background(), "tried", work)
			ran <- err
		}()
		go func() { ran <- locks.Do(context.Background(), "awaited", work) }()
		time.Sleep(time.Second)
		if len(ran) > 0 {
			t.Errorf("it does not wait: %v", <-ran)
		}
		resume()
		w.within(5*time.Second, "both ran", func() bool { return len(ran) == 2 })
		w.ok(<-ran)
		w.ok(<-ran)
	})
}

func TestReadinessInAPauseNamesIt(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.start("a", pgleases.WithFastFailover())
		a.owning("x", 1)
		defer w.pause(a)()
		response := httptest.NewRecorder()
		health.Readiness(a.c).ServeHTTP(response, httptest.NewRequest(http.MethodGet, "/", nil))
		body := response.Body.String()
		if response.Code != http.StatusServiceUnavailable || !strings.Contains(body, "process was stopped") {
			t.Errorf("%d %q", response.Code, body)
		}
	})
}
