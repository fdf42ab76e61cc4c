package engine_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgleases/pgleases/leader"
)

// A candidate leads for a time, gives up, and stands again after a pause, until its ctx ends.
func (p *proc) stands(ctx context.Context, leads, pause time.Duration, terms *atomic.Int64) {
	for ctx.Err() == nil {
		term, cancel := context.WithCancel(ctx)
		_ = leader.Run(term, p.c, "only", leader.Callbacks{OnStartedLeading: func(ctx context.Context) {
			terms.Add(1)
			select {
			case <-time.After(leads):
			case <-ctx.Done():
			}
			cancel()
		}})
		cancel()
		time.Sleep(pause)
	}
}

// Candidates that stand again and again take turns, whatever their IDs.
func TestCandidatesTakeTurns(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		ctx, cancel := context.WithCancel(context.Background())
		var terms [3]atomic.Int64
		for i, id := range []string{"a", "b", "c"} {
			go w.start(id).stands(ctx, 5*time.Millisecond, 0, &terms[i])
		}
		time.Sleep(30 * time.Second)
		cancel()
		var all []int64
		for i := range terms {
			all = append(all, terms[i].Load())
		}
		if most, least := slices.Max(all), slices.Min(all); least < 50 || most-least > most/5 {
			t.Errorf("terms are %v", all)
		}
	})
}

// Two candidates that fail as leaders keep no healthy one from leading, whatever the IDs are.
func TestHealthyCandidateLeadsSoon(t *testing.T) {
	for _, healthy := range []string{"a", "m", "z"} {
		t.Run(healthy, func(t *testing.T) {
			inWorld(t, func(_ *testing.T, w *world) {
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				var failing, good atomic.Int64
				for _, id := range []string{"k", "s"} {
					go w.start(id).stands(ctx, 300*time.Millisecond, 100*time.Millisecond, &failing)
				}
				time.Sleep(3 * time.Second)
				go w.start(healthy).stands(ctx, time.Hour, 0, &good)
				w.within(2*time.Second, "the healthy candidate leads", func() bool { return good.Load() == 1 })
				before := failing.Load()
				time.Sleep(time.Minute)
				if failing.Load() != before {
					w.failf("another one leads beside it")
				}
			})
		})
	}
}

// A candidate that joins after the server's clock has stepped back waits behind those that joined
// before.
func TestCandidatesTakeTurnsAfterClockStep(t *testing.T) {
	inWorld(t, func(_ *testing.T, w *world) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		var failing, good atomic.Int64
		for _, id := range []string{"k", "s"} {
			go w.start(id).stands(ctx, 300*time.Millisecond, 100*time.Millisecond, &failing)
		}
		time.Sleep(3 * time.Second)
		w.db.Step(-time.Hour)
		go w.start("z").stands(ctx, 300*time.Millisecond, 100*time.Millisecond, &good)
		time.Sleep(10 * time.Second)
		w.db.Step(-time.Hour)
		time.Sleep(10 * time.Second)
		before := good.Load()
		time.Sleep(10 * time.Second)
		if terms := good.Load() - before; terms < 5 {
			w.failf("it led %d times within 10 s", terms)
		}
	})
}

// A candidate that has waited since before the step is not passed over.
func TestWaitingCandidateLeadsAfterClockStep(t *testing.T) {
	inWorld(t, func(_ *testing.T, w *world) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		var failing, good atomic.Int64
		for _, id := range []string{"a", "b"} {
			go w.start(id).stands(ctx, time.Second, 100*time.Millisecond, &failing)
		}
		time.Sleep(3 * time.Second)
		w.within(5*time.Second, "one leads", func() bool { return failing.Load() > 2 })
		go w.start("z").stands(ctx, time.Hour, 0, &good)
		time.Sleep(100 * time.Millisecond)
		w.db.Step(-time.Hour)
		w.within(15*time.Second, "the one that has waited leads", func() bool { return good.Load() == 1 })
	})
}
