package pgleases_test

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
)

// Two goroutines pass a partition between them; whoever works on it holds an item in hand nearly all the time.
func TestNoItemIsInFlightAtAHandOver(t *testing.T) {
	t.Parallel()
	const partitions, clients, enough = 12, 4, 12
	pool := newPool(t, pgtest.MigratedDatabase(t))
	journal(t, pool)
	var working, inHand [partitions]atomic.Int32
	var epochs [partitions]atomic.Int64
	var items, asked, overlaps, cut, stale atomic.Int64
	work := func(ctx context.Context, p pgleases.Partition) error {
		n := p.Number
		if working[n].Add(1) != 1 || inHand[n].Load() != 0 {
			overlaps.Add(1)
		}
		defer working[n].Add(-1)
		if epochs[n].Swap(p.Epoch) >= p.Epoch {
			stale.Add(1)
		}
		for ctx.Err() == nil {
			inHand[n].Add(1)
			select {
			case <-time.After(rand.N(10 * time.Millisecond)): // what an item takes
				items.Add(1)
			case <-p.Context().Done():
				cut.Add(1)
			}
			inHand[n].Add(-1)
		}
		if errors.Is(context.Cause(ctx), pgleases.ErrHandover) {
			asked.Add(1)
		}
		return nil
	}
	quiet := pgleases.WithLogger(slog.New(slog.DiscardHandler))
	var all sync.WaitGroup
	for i := range clients {
		all.Go(func() {
			for round, late := 0, time.Now().Add(patience); round < 3 || asked.Load() < enough && time.Now().Before(late); round++ {
				c, err := pgleases.NewClient(t.Context(), pool, pgleases.WithClientID(string(rune('a'+i))),
					pgleases.WithTTL(calmTTL), pgleases.WithHeartbeat(calmHeartbeat), quiet)
				if err != nil {
					t.Error(err)
					return
				}
				l, err := c.Lease(t.Context(), "work", partitions)
				if err != nil {
					t.Error(err)
				} else {
					j := run(t, l, work)
					if err := l.Wait(t.Context()); err != nil {
						t.Error(err)
					}
					select {
					case <-time.After(rand.N(200 * time.Millisecond << min(round/3, 5))): // of work; longer where the machine is slow
					case <-t.Context().Done():
					}
					shut(t, c)
					wraps(t, "Run returned", <-j.done, pgleases.ErrClosed)
					continue
				}
				shut(t, c)
			}
		})
	}
	all.Wait()
	handed := value[int64](t, pool, `SELECT count(*) FROM public.journal WHERE old_owner <> owner`)
	t.Logf("%d hand-overs, of which %d were asked for, %d items", handed, asked.Load(), items.Load())
	if n := overlaps.Load(); n != 0 {
		t.Errorf("%d times a new owner began while the old one was at work", n)
	}
	if n := cut.Load(); n != 0 {
		t.Errorf("%d items in hand were cut off", n)
	}
	if n := stale.Load(); n != 0 {
		t.Errorf("%d times a partition was worked on under an epoch that was not new", n)
	}
	if handed < enough || asked.Load() < enough {
		t.Errorf("only %d hand-overs, %d of them asked for, not %d: this was no test", handed, asked.Load(), enough)
	}
}

func TestAHandOverFirstAsksAndTheOwnershipEndsLater(t *testing.T) {
	t.Parallel()
	pool := newPool(t, pgtest.MigratedDatabase(t))
	ca := newClient(t, pool, pgleases.WithClientID("a"), pgleases.WithHeartbeat(50*time.Millisecond))
	a := joined(t, ca, "work", 4)
	type call struct {
		ctx context.Context
		p   pgleases.Partition
	}
	calls, asked := make(chan call, 4), make(chan call, 4)
	finish := []chan struct{}{make(chan struct{}), make(chan struct{}), make(chan struct{}), make(chan struct{})}
	run(t, a, func(ctx context.Context, p pgleases.Partition) error {
		calls <- call{ctx, p}
		<-ctx.Done()
		if errors.Is(context.Cause(ctx), pgleases.ErrHandover) {
			asked <- call{ctx, p}
			<-finish[p.Number]
		}
		return nil
	})
	for range 4 {
		c := receive(t, "a callback for every partition", calls)
		if own, ok := a.Partition(c.p.Number); !ok || own != c.p {
			t.Errorf("called with %v, which is not what is owned: %v, %v", c.p, own, ok)
		}
	}

	cb := newClient(t, pool, pgleases.WithClientID("b"), pgleases.WithHeartbeat(50*time.Millisecond))
	b := joined(t, cb, "work", 4)
	began := make(chan pgleases.Partition, 4)
	run(t, b, func(ctx context.Context, p pgleases.Partition) error {
		began <- p
		return untilAsked(ctx, p)
	})
	for range 2 {
		c := receive(t, "two callbacks are asked to end", asked)
		if c.p.Context().Err() != nil {
			t.Errorf("the ownership of %v ended before its work: %v", c.p, context.Cause(c.p.Context()))
		}
		if _, ok := a.Partition(c.p.Number); ok || a.Owns(c.p.Number) || slices.Contains(a.Values(), c.p.Number) {
			t.Errorf("%v drains, and is still shown", c.p)
		}
		guarded(t, pool, a, c.p)
		beats(t, ca, 3)
		beats(t, cb, 3)
		if now := value[string](t, pool, `SELECT owner FROM pgleases.status WHERE partition = $1`, c.p.Number); now != "a" {
			t.Errorf("%v went to %s before its work had ended", c.p, now)
		}
		select {
		case p := <-began:
			t.Errorf("the new owner began on %v before the old one had ended", p)
		default:
		}
		close(finish[c.p.Number])
		if p := receive(t, "the new owner begins", began); p.Number != c.p.Number || p.Epoch <= c.p.Epoch {
			t.Errorf("%v was handed over, the new owner began on %v: not the same, or not under a higher epoch", c.p, p)
		}
		wraps(t, "the ownership ended with", ended(t, "the ownership ends", c.p.Context()), pgleases.ErrHandover)
	}
	until(t, "the stats tell of it", func() bool { return ca.Stats().Losses == (pgleases.Losses{Handover: 2}) })
}

func TestRunIsCalledAgainOnlyUnderANewEpochAfterNil(t *testing.T) {
	t.Parallel()
	pool := newPool(t, pgtest.MigratedDatabase(t))
	ca := newClient(t, pool, pgleases.WithClientID("a"), pgleases.WithHeartbeat(20*time.Millisecond))
	a := joined(t, ca, "work", 4)
	var mu sync.Mutex
	calls := make(map[int][]int64)
	number := func() (n int) {
		mu.Lock()
		defer mu.Unlock()
		for _, epochs := range calls {
			n += len(epochs)
		}
		return n
	}
	run(t, a, func(_ context.Context, p pgleases.Partition) error {
		mu.Lock()
		defer mu.Unlock()
		calls[p.Number] = append(calls[p.Number], p.Epoch)
		return nil
	})
	until(t, "every partition was called", func() bool { return number() == 4 }, a)
	beats(t, ca, 5)
	if n := number(); n != 4 {
		t.Errorf("%d calls for 4 ownerships", n)
	}
	b := joined(t, newClient(t, pool, pgleases.WithClientID("b")), "work", 4)
	until(t, "b owns half", func() bool { return value[int](t, pool, `SELECT count(*) FROM pgleases.status WHERE owner = 'b'`) == 2 }, b)
	if err := b.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	until(t, "what came back was called", func() bool { return number() == 6 }, a)
	beats(t, ca, 5)
	mu.Lock()
	defer mu.Unlock()
	for n, epochs := range calls {
		if !slices.IsSorted(epochs) || len(slices.Compact(slices.Clone(epochs))) != len(epochs) {
			t.Errorf("partition %d was called under the epochs %v, which do not rise", n, epochs)
		}
	}
	if n := len(slices.Concat(calls[0], calls[1], calls[2], calls[3])); n != 6 {
		t.Errorf("%d calls for 6 ownerships", n)
	}
}

func TestAFailedCallbackIsLoggedAndCalledAgainAfterAGrowingPause(t *testing.T) {
	t.Parallel()
	var book logbook
	l := joined(t, newClient(t, newPool(t, pgtest.MigratedDatabase(t)), book.option()), "work", 1)
	type moment struct{ begin, end time.Time }
	moments := make(chan moment, 10)
	var calls int
	run(t, l, func(context.Context, pgleases.Partition) error {
		calls++
		now := time.Now()
		defer func() { moments <- moment{now, time.Now()} }()
		if calls < 4 {
			return errors.New("the kettle is empty")
		}
		return nil
	})
	last := receive(t, "a first call", moments)
	for i, most := range []time.Duration{100, 200, 400} {
		most *= time.Millisecond
		m := receive(t, "a further call", moments)
		if pause := m.begin.Sub(last.end); pause < most/2 { // and at most twice as long, on a machine that keeps time
			t.Errorf("pause %d was %v, not %v at least", i+1, pause, most/2)
		}
		last = m
	}
	if lines := book.lines("ERROR", "callback failed", "the kettle is empty", "lease=work", "partition=0"); len(lines) != 3 {
		t.Errorf("3 failures were logged %d times: %q", len(lines), book.lines("callback"))
	}
}

func TestAPartitionLeavesBetweenFailedCalls(t *testing.T) {
	t.Parallel()
	pool := newPool(t, pgtest.MigratedDatabase(t))
	var book logbook
	ca := newClient(t, pool, pgleases.WithClientID("a"), pgleases.WithHeartbeat(20*time.Millisecond), book.option())
	a := joined(t, ca, "work", 2)
	called, calls := make(chan struct{}, 1000), make([]atomic.Int32, 2)
	run(t, a, func(_ context.Context, p pgleases.Partition) error {
		calls[p.Number].Add(1)
		called <- struct{}{}
		return errors.New("never")
	})
	for range 5 {
		receive(t, "calls", called)
	}
	b := joined(t, newClient(t, pool, pgleases.WithClientID("b")), "work", 2)
	until(t, "b owns one", func() bool { return len(b.Values()) == 1 }, b)
	n := b.Values()[0]
	before := calls[n].Load()
	beats(t, ca, 10)
	if again := calls[n].Load() - before; again != 0 {
		t.Errorf("the old owner was called %d times after the partition had left", again)
	}
}

func TestAnErrorAfterTheEndIsLoggedUnlessItIsTheContexts(t *testing.T) {
	t.Parallel()
	pool := newPool(t, pgtest.MigratedDatabase(t))
	var book logbook
	l := joined(t, newClient(t, pool, book.option()), "work", 4)
	begun := make(chan struct{}, 100)
	j := run(t, l, func(ctx context.Context, p pgleases.Partition) error {
		begun <- struct{}{}
		<-ctx.Done()
		switch p.Number {
		case 0:
			return ctx.Err()
		case 1:
			return context.Cause(ctx)
		case 2:
			return errors.Join(errors.New("reading the tray"), ctx.Err())
		}
		return errors.New("the tea is cold")
	})
	for range 4 {
		receive(t, "a callback for every partition", begun)
	}
	j.stop(errors.New("time to go"))
	if err := receive(t, "Run returns", j.done); err == nil || !strings.Contains(err.Error(), "time to go") {
		t.Errorf("Run returned %v, not its context's cause", err)
	}
	if all, own := book.lines("callback failed"), book.lines("callback failed", "the tea is cold"); len(all) != 1 || len(own) != 1 {
		t.Errorf("one error is not of the context, and these were logged: %q", all)
	}
}

func TestASecondConcurrentRunIsAnError(t *testing.T) {
	t.Parallel()
	l := joined(t, newClient(t, newPool(t, pgtest.MigratedDatabase(t))), "work", 1)
	began := make(chan struct{}, 2)
	fn := func(ctx context.Context, p pgleases.Partition) error {
		began <- struct{}{}
		return untilAsked(ctx, p)
	}
	first := run(t, l, fn)
	receive(t, "the first Run works", began)
	if err := receive(t, "the second Run returns", run(t, l, fn).done); err == nil || !strings.Contains(err.Error(), "work") {
		t.Errorf("a second Run returned %v, not an error that names the lease", err)
	}
	if len(began) != 0 {
		t.Error("a second Run called fn")
	}
	first.stop(nil)
	wraps(t, "Run returned", receive(t, "the first Run returns", first.done), context.Canceled)
	third := run(t, l, fn)
	receive(t, "a Run after the first works", began)
	third.stop(nil)
	receive(t, "it returns", third.done)
}

func TestRunReturnsTheCauseAfterAllCallbacksReturned(t *testing.T) {
	t.Parallel()
	why := errors.New("dinner")
	for name, test := range map[string]struct {
		end  func(t *testing.T, c *pgleases.Client, l *pgleases.Lease, stop context.CancelCauseFunc) (wait func())
		want error
	}{
		"context": {func(_ *testing.T, _ *pgleases.Client, _ *pgleases.Lease, stop context.CancelCauseFunc) func() {
			stop(why)
			return func() {}
		}, why},
		"client closed": {func(t *testing.T, c *pgleases.Client, _ *pgleases.Lease, _ context.CancelCauseFunc) func() {
			return background(t, func() error { return c.Close(context.Background()) })
		}, pgleases.ErrClosed},
		"lease left": {func(t *testing.T, _ *pgleases.Client, l *pgleases.Lease, _ context.CancelCauseFunc) func() {
			return background(t, func() error { return l.Leave(context.Background()) })
		}, pgleases.ErrClosed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newClient(t, newPool(t, pgtest.MigratedDatabase(t)))
			l := joined(t, c, "work", 3)
			var atWork atomic.Int32
			began, asked, finish := make(chan struct{}, 3), make(chan error, 3), make(chan struct{})
			j := run(t, l, func(ctx context.Context, p pgleases.Partition) error {
				atWork.Add(1)
				defer atWork.Add(-1)
				began <- struct{}{}
				<-ctx.Done()
				asked <- context.Cause(ctx)
				<-finish
				if err := p.Context().Err(); err != nil {
					t.Errorf("the ownership ended during the work: %v", context.Cause(p.Context()))
				}
				return nil
			})
			for range 3 {
				receive(t, "calls", began)
			}
			wait := test.end(t, c, l, j.stop)
			for range 3 {
				wraps(t, "a callback's context ended with", receive(t, "callbacks are asked to end", asked), test.want)
			}
			finish <- struct{}{}
			finish <- struct{}{}
			until(t, "two have returned", func() bool { return atWork.Load() == 1 })
			select {
			case err := <-j.done:
				t.Errorf("Run returned %v while a callback was at work", err)
			default:
			}
			finish <- struct{}{}
			if err := receive(t, "Run returns", j.done); !errors.Is(err, test.want) || atWork.Load() != 0 {
				t.Errorf("Run returned %v, not %v, with %d callbacks at work, not 0", err, test.want, atWork.Load())
			}
			wait()
			if test.want != why {
				wraps(t, "Run afterwards", l.Run(t.Context(), untilAsked), test.want)
			}
		})
	}
}

// background calls fn; the returned function waits for it and fails the test if it returned an error.
func background(t *testing.T, fn func() error) (wait func()) {
	done := make(chan error, 1)
	go func() { done <- fn() }()
	return func() {
		t.Helper()
		if err := receive(t, "the call returns", done); err != nil {
			t.Error(err)
		}
	}
}

// The old callback ignores its contexts, and the partition comes back meanwhile.
func TestAfterADrainTimeoutThePartitionMovesAndIsNeverWorkedOnTwiceByOneClient(t *testing.T) {
	t.Parallel()
	pool := newPool(t, pgtest.MigratedDatabase(t))
	var book logbook
	ca := newClient(t, pool, pgleases.WithClientID("a"), book.option())
	a := joined(t, ca, "work", 1, pgleases.WithDrainTimeout(150*time.Millisecond))
	calls, finish := make(chan pgleases.Partition, 10), make(chan struct{})
	defer close(finish)
	run(t, a, func(ctx context.Context, p pgleases.Partition) error {
		calls <- p
		<-finish
		return nil
	})
	p := receive(t, "a call", calls)
	b := joined(t, newClient(t, pool, pgleases.WithClientID("b")), "work", 1, pgleases.WithHandoffDelay(0))
	began := time.Now()
	if err := a.SetWeight(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	until(t, "b owns it although the work goes on", func() bool { return b.Owns(0) }, b)
	if took := time.Since(began); took < 150*time.Millisecond {
		t.Errorf("moved after %v, before the drain timeout of 150ms", took)
	}
	wraps(t, "the ownership ended with", ended(t, "the ownership ends", p.Context()), pgleases.ErrDrainTimeout)
	until(t, "the stats tell of it", func() bool { return ca.Stats().Losses == (pgleases.Losses{DrainTimeout: 1}) })
	if lines := book.lines("WARN", "partitions lost", "drain timeout", "lease=work", "partitions=0"); len(lines) != 1 {
		t.Errorf("the drain timeout was logged %d times, not once: %q", len(lines), lines)
	}
	if err := a.SetWeight(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if err := b.SetWeight(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	until(t, "a owns it again", func() bool { return a.Owns(0) }, a, b)
	beats(t, ca, 1)
	if len(calls) != 0 {
		t.Error("called while the callback before was at work")
	}
	finish <- struct{}{}
	if again := receive(t, "a call under the new epoch", calls); again.Epoch <= p.Epoch {
		t.Errorf("called under epoch %d, which is not higher than %d", again.Epoch, p.Epoch)
	}
}

const panicVariable = "PGLEASES_TEST_PANIC_IN"

func TestAPanicInACallbackIsNotRecovered(t *testing.T) {
	t.Parallel()
	if url := os.Getenv(panicVariable); url != "" {
		l := joined(t, newClient(t, newPool(t, url)), "work", 1)
		_ = l.Run(t.Context(), func(context.Context, pgleases.Partition) error { panic("the roof is on fire") })
		return
	}
	program := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.timeout=2m")
	program.Env = append(os.Environ(), panicVariable+"="+pgtest.MigratedDatabase(t))
	out, err := program.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || !strings.Contains(string(out), "panic: the roof is on fire") {
		t.Errorf("the process ended with %v, not by the panic:\n%s", err, out)
	}
}
