package pgleases_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/pgleasestest"
)

// twoClients returns two clients with short heartbeats, of which the first owns all of a lease and
// the second has not joined.
func twoClients(t *testing.T, partitions int, opts ...pgleases.LeaseOption) (pool *pgxpool.Pool, ca, cb *pgleases.Client, a *pgleases.Lease) {
	t.Helper()
	return twoClientsOn(t, pgtest.MigratedDatabase(t), partitions, opts...)
}

func twoClientsOn(t *testing.T, url string, partitions int, opts ...pgleases.LeaseOption) (pool *pgxpool.Pool, ca, cb *pgleases.Client, a *pgleases.Lease) {
	t.Helper()
	pool = testkit.Pool(t, url)
	ca = newClient(t, pool, pgleases.WithClientID("a"), pgleases.WithHeartbeat(50*time.Millisecond))
	cb = newClient(t, pool, pgleases.WithClientID("b"), pgleases.WithHeartbeat(50*time.Millisecond))
	a = joined(t, ca, "work", partitions, opts...)
	untilOwns(t, a, partitions)
	return pool, ca, cb, a
}

// untilOwns waits until a lease owns that many partitions, without reading Values.
func untilOwns(t testing.TB, l *pgleases.Lease, n int) {
	t.Helper()
	until(t, fmt.Sprintf("%q owns %d of %d partitions", l.Name(), n, l.NumPartitions()), func() bool { return len(numbers(l)) == n }, l)
}

// numbers returns what a lease owns; unlike Values it does not count as a read.
func numbers(l *pgleases.Lease) []int {
	var owned []int
	for n := range l.NumPartitions() {
		if _, ok := l.Partition(n); ok {
			owned = append(owned, n)
		}
	}
	return owned
}

// ownedBy returns what the database says a client owns.
func ownedBy(t testing.TB, pool *pgxpool.Pool, client string) []int {
	t.Helper()
	return testkit.Value[[]int](t, pool,
		`SELECT coalesce(array_agg(partition ORDER BY partition), '{}') FROM pgleases.status WHERE owner = $1`, client)
}

// A partition leaves when no open hold contains it.
func TestAHoldPinsWhatWasOwnedWhenItWasTaken(t *testing.T) {
	t.Parallel()
	pool, ca, cb, a := twoClients(t, 4)
	first, hold := a.Hold(t.Context()), a.Hold(t.Context())
	defer hold.Release()
	b := joined(t, cb, "work", 4)
	untilOwns(t, a, 2)
	young := a.Hold(t.Context())
	defer young.Release()
	if got := young.Values(); !slices.Equal(got, numbers(a)) {
		t.Errorf("a hold contains %v, owned are %v", got, numbers(a))
	}
	first.Release()
	first.Release()
	beats(t, ca, 3)
	beats(t, cb, 3)
	if got := ownedBy(t, pool, "a"); len(got) != 4 || len(numbers(b)) != 0 {
		t.Errorf("while all are held, a owns %v and b %v, not all and nothing", got, numbers(b))
	}
	if got := hold.Values(); !slices.Equal(got, []int{0, 1, 2, 3}) || len(got) != cap(got) {
		t.Errorf("the hold is of %v, not 0 to 3", got)
	}
	if err := hold.Context().Err(); err != nil {
		t.Errorf("a handoff ended the hold's context: %v", context.Cause(hold.Context()))
	}
	if s := ca.Stats(); s.Draining != 2 || s.Owned != 2 || s.DrainingSince.IsZero() || time.Since(s.DrainingSince) > testkit.Patience {
		t.Errorf("two are owned and two drain, and the stats are %+v", s)
	}
	for _, n := range hold.Values() {
		p, ok := hold.Partition(n)
		if !ok || p.Number != n {
			t.Errorf("the hold's partition %d is %v, contained %v", n, p, ok)
		}
		guarded(t, pool, a, p)
	}
	if p, ok := hold.Partition(4); ok {
		t.Errorf("the hold contains %v, and there is no partition 4", p)
	}
	hold.Release()
	hold.Release()
	untilOwns(t, b, 2) // though the young one is open
	testkit.OK(t, young.Context().Err())
	wraps(t, "released, its context ended with", context.Cause(hold.Context()), context.Canceled)
	until(t, "the stats tell of it", func() bool { return ca.Stats().Losses == (pgleases.Losses{Handoff: 2}) })
}

func TestAHoldsContextIsOfItsParent(t *testing.T) {
	t.Parallel()
	why := errors.New("supper")
	_, _, _, a := twoClients(t, 2)
	ctx, cancel := context.WithCancelCause(context.WithValue(t.Context(), hour(0), "six"))
	hold := a.Hold(ctx)
	defer hold.Release()
	if hold.Context().Value(hour(0)) != "six" {
		t.Error("the hold's context does not have its parent's values")
	}
	cancel(why)
	wraps(t, "the hold ended with", ended(t, "the hold ends", hold.Context()), why)
	if p, _ := a.Partition(0); p.Context().Err() != nil {
		t.Error("the ownership ended with a hold's parent")
	}
}

type hour int

func TestAHoldOfNothingIsEmptyAndHarmless(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t, pgtest.MigratedDatabase(t))
	c := newClient(t, pool)
	l := joined(t, c, "work", 2, pgleases.WithWeight(0))
	check := func(hold *pgleases.Hold) {
		t.Helper()
		if got := hold.Values(); got == nil || len(got) != 0 || cap(got) != 0 {
			t.Errorf("it is of %#v, not an empty slice", got)
		}
		if p, ok := hold.Partition(0); ok || p != (pgleases.Partition{}) {
			t.Errorf("it contains %v, not nothing", p)
		}
		if err := hold.Context().Err(); err != nil {
			t.Errorf("its context has ended: %v", err)
		}
		hold.Release()
		hold.Release()
		wraps(t, "released, its context's error is", hold.Context().Err(), context.Canceled)
	}
	check(l.Hold(t.Context()))
	testkit.OK(t, l.SetWeight(t.Context(), 1))
	untilOwns(t, l, 2)
	open := l.Hold(t.Context())
	if err := closes(t, c, canceled(nil)); err == nil {
		t.Error("Close says that nothing was left in work")
	}
	check(l.Hold(t.Context()))
	open.Release()
}

func TestAHandoffFirstAsksAndTheOwnershipEndsLater(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t, pgtest.MigratedDatabase(t))
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
		if errors.Is(context.Cause(ctx), pgleases.ErrHandoff) {
			asked <- call{ctx, p}
			<-finish[p.Number]
		}
		return nil
	})
	for range 4 {
		c := testkit.Receive(t, "a callback for every partition", calls)
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
		c := testkit.Receive(t, "two callbacks are asked to end", asked)
		if c.p.Context().Err() != nil {
			t.Errorf("the ownership of %v ended before its work: %v", c.p, context.Cause(c.p.Context()))
		}
		if _, ok := a.Partition(c.p.Number); ok || a.Owns(c.p.Number) || slices.Contains(a.Values(), c.p.Number) {
			t.Errorf("%v drains, and is still shown", c.p)
		}
		guarded(t, pool, a, c.p)
		beats(t, ca, 3)
		beats(t, cb, 3)
		if now := testkit.Value[string](t, pool, `SELECT owner FROM pgleases.status WHERE partition = $1`, c.p.Number); now != "a" {
			t.Errorf("%v went to %s before its work had ended", c.p, now)
		}
		select {
		case p := <-began:
			t.Errorf("the new owner began on %v before the old one had ended", p)
		default:
		}
		close(finish[c.p.Number])
		if p := testkit.Receive(t, "the new owner begins", began); p.Number != c.p.Number || p.Epoch <= c.p.Epoch {
			t.Errorf("%v was handed over, the new owner began on %v: not the same, or not under a higher epoch", c.p, p)
		}
		wraps(t, "the ownership ended with", ended(t, "the ownership ends", c.p.Context()), pgleases.ErrHandoff)
	}
	until(t, "the stats tell of it", func() bool { return ca.Stats().Losses == (pgleases.Losses{Handoff: 2}) })
}

func TestRunIsCalledAgainOnlyUnderANewEpochAfterNil(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t, pgtest.MigratedDatabase(t))
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
	testkit.Becomes(t, pool, "b owns half", 2, `SELECT count(*) FROM pgleases.status WHERE owner = 'b'`)
	testkit.OK(t, b.Leave(t.Context()))
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

func TestFailedCallbackIsCalledAgainWithBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lease := pgleasestest.NewLease("work", 1)
		lease.Gain(0)
		var ends []time.Time
		var pauses []time.Duration
		go func() {
			_ = lease.Run(t.Context(), func(context.Context, pgleases.Partition) error {
				if n := len(ends); n > 0 {
					pauses = append(pauses, time.Since(ends[n-1]))
				}
				if len(pauses) == 9 { // works after 9 failures
					time.Sleep(time.Minute)
				}
				ends = append(ends, time.Now())
				return errors.New("the kettle is empty")
			})
		}()
		time.Sleep(4 * time.Minute)
		lease.Close()
		for i, most := range []time.Duration{100, 200, 400, 800, 1600, 3200, 6400, 12_800, 25_600, 100} { // begins again after the long call
			if most *= time.Millisecond; pauses[i] < most/2 || pauses[i] > most {
				t.Errorf("pause %d of %v is not from %v to %v", i, pauses, most/2, most)
			}
		}
	})
}

func TestAPartitionLeavesBetweenFailedCalls(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t, pgtest.MigratedDatabase(t))
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
		testkit.Receive(t, "calls", called)
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

func TestErrorAfterTheEndIsLogged(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t, pgtest.MigratedDatabase(t))
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
		testkit.Receive(t, "a callback for every partition", begun)
	}
	j.stop(errors.New("time to go"))
	if err := testkit.Receive(t, "Run returns", j.done); err == nil || !strings.Contains(err.Error(), "time to go") {
		t.Errorf("Run returned %v, not its context's cause", err)
	}
	if all, own := book.lines("callback failed"), book.lines("callback failed", "the tea is cold"); len(all) != 1 || len(own) != 1 {
		t.Errorf("one error is not of the context, and these were logged: %q", all)
	}
}

func TestASecondConcurrentRunIsAnError(t *testing.T) {
	t.Parallel()
	l := joined(t, newClient(t, testkit.Pool(t, pgtest.MigratedDatabase(t))), "work", 1)
	began := make(chan struct{}, 2)
	fn := func(ctx context.Context, p pgleases.Partition) error {
		began <- struct{}{}
		return untilAsked(ctx, p)
	}
	first := run(t, l, fn)
	testkit.Receive(t, "the first Run works", began)
	if err := testkit.Receive(t, "the second Run returns", run(t, l, fn).done); err == nil || !strings.Contains(err.Error(), "work") {
		t.Errorf("a second Run returned %v, not an error that names the lease", err)
	}
	if len(began) != 0 {
		t.Error("a second Run called fn")
	}
	first.stop(nil)
	wraps(t, "Run returned", testkit.Receive(t, "the first Run returns", first.done), context.Canceled)
	third := run(t, l, fn)
	testkit.Receive(t, "a Run after the first works", began)
	third.stop(nil)
	testkit.Receive(t, "it returns", third.done)
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
			c := newClient(t, testkit.Pool(t, pgtest.MigratedDatabase(t)))
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
				testkit.Receive(t, "calls", began)
			}
			wait := test.end(t, c, l, j.stop)
			for range 3 {
				wraps(t, "a callback's context ended with", testkit.Receive(t, "callbacks are asked to end", asked), test.want)
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
			if err := testkit.Receive(t, "Run returns", j.done); !errors.Is(err, test.want) || atWork.Load() != 0 {
				t.Errorf("Run returned %v, not %v, with %d callbacks at work, not 0", err, test.want, atWork.Load())
			}
			wait()
			if test.want != why {
				wraps(t, "Run afterwards", l.Run(t.Context(), untilAsked), test.want)
			}
		})
	}
}

// background calls fn; the returned function waits for it and fails the test if it returned an
// error.
func background(t *testing.T, fn func() error) (wait func()) {
	done := make(chan error, 1)
	go func() { done <- fn() }()
	return func() {
		t.Helper()
		if err := testkit.Receive(t, "the call returns", done); err != nil {
			t.Error(err)
		}
	}
}

const panicVariable = "PGLEASES_TEST_PANIC_IN"

func TestAPanicInACallbackIsNotRecovered(t *testing.T) {
	t.Parallel()
	if url := os.Getenv(panicVariable); url != "" {
		l := joined(t, newClient(t, testkit.Pool(t, url)), "work", 1)
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

// Otherwise a process that is not the leader logs nothing, and seems to hang.
func TestRunLogsOnceThatItStandsBy(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t, pgtest.MigratedDatabase(t))
	var leads, waits logbook
	none := func(ctx context.Context, _ pgleases.Partition) error { <-ctx.Done(); return nil }
	a := joined(t, newClient(t, pool, pgleases.WithClientID("a"), leads.option()), "work", 1)
	first := run(t, a, none)
	untilOwns(t, a, 1)
	b := joined(t, newClient(t, pool, pgleases.WithClientID("b"), waits.option()), "work", 1)
	run(t, b, none)
	const line = "INFO pgleases: standing by, another client owns the only partition lease=work owner=a"
	until(t, "b stands by", func() bool { return len(waits.lines("standing by")) > 0 }, b)
	first.stop(nil)
	testkit.OK(t, a.Leave(t.Context()))
	untilOwns(t, b, 1)
	if got := waits.lines("standing by"); len(got) != 1 || got[0] != line || len(leads.lines("standing by")) > 0 {
		t.Errorf("b logged %q, and the leader %q", got, leads.lines("standing by"))
	}
}
