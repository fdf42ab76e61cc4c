package engine_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/leader"
)

// After Ctrl-C, somebody waits at a terminal.
func TestSlowEndOfRunIsLoggedSoon(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.start("a")
		l := a.mustJoin("x", 2)
		w.within(5*time.Second, "it owns both", func() bool { return shows(l) == "0-1" })
		ctx, cancel := context.WithCancel(context.Background())
		ended, finish := make(chan error, 1), make(chan struct{})
		go func() {
			ended <- l.Run(ctx, func(_ context.Context, p pgleases.Partition) error {
				if p.Number == 1 {
					<-finish
				}
				return nil
			})
		}()
		time.Sleep(time.Second)
		cancel()
		const runs = "INFO pgleases: Run waits for work lease=x partitions=[1] for=1s"
		w.within(time.Second+soon, "the wait of Run is logged", func() bool { return w.logged(runs) == 1 })
		time.Sleep(time.Second)
		close(finish)
		<-ended
		time.Sleep(time.Second) // the log has a goroutine of its own
		if of := w.linesWith("INFO pgleases: Run no longer waits for work lease=x for=2"); len(of) != 1 {
			w.failf("its end is logged as %q", of)
		}
	})
}

// A process that was killed and started again owns nothing until its former self has expired.
func TestWaitForTheDeadIsLogged(t *testing.T) {
	for _, partitions := range []int{1, 3} {
		t.Run(fmt.Sprint(partitions), func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				old := w.start("a")
				owned := old.mustJoin("x", partitions)
				w.within(5*time.Second, "it owns all", func() bool { return len(owned.Values()) == partitions })
				old.kill()
				began := time.Now()
				again := w.start("b").mustJoin("x", partitions)
				ctx, cancel := context.WithCancel(context.Background())
				ended := make(chan error, 1)
				go func() {
					ended <- again.Run(ctx, func(ctx context.Context, _ pgleases.Partition) error {
						<-ctx.Done()
						return nil
					})
				}()
				const line = "INFO pgleases: standing by, other clients own all partitions " +
					"lease=x owners=a free_by_if_dead="
				w.within(1500*time.Millisecond, "it says for whom it waits", w.once(line))
				w.within(time.Minute, "it owns all", func() bool { return again.Stats().Owned == partitions })
				took, free := time.Since(began), began.Add(8*time.Second).Format(time.DateTime)
				if took > 8*time.Second || !w.once(line+free)() || !w.once("standing by")() {
					w.failf("after %v, not by %s: %q", took, free, w.linesWith("standing by"))
				}
				cancel()
				<-ended
			})
		})
	}
}

func TestEarlyReturnOfLeaderIsLogged(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		returns := make(chan struct{})
		a, stop, ended := w.start("a").elect(leader.Callbacks{OnStartedLeading: func(ctx context.Context) {
			select {
			case <-returns:
			case <-ctx.Done():
			}
		}})
		w.within(5*time.Second, "a leads", a.IsLeader)
		const line = "WARN pgleases: leader has no work, OnStartedLeading returned early lease=only epoch="
		if n := w.logged(line); n != 0 {
			w.failf("it is logged before it returned")
		}
		close(returns)
		w.within(time.Second, "it is logged", func() bool { return w.logged(line) == 1 })
		stop()
		<-ended
		b, stop, ended := w.start("b").elect(leader.Callbacks{
			OnStartedLeading: func(ctx context.Context) { <-ctx.Done() },
		})
		w.within(5*time.Second, "b leads", b.IsLeader)
		stop()
		<-ended
		if n := w.logged(line); n != 0 {
			w.failf("a leader whose work ended with its leadership is logged")
		}
	})
}
