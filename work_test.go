package pgleases_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
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
func twoClients(t *testing.T, partitions int, opts ...pgleases.LeaseOption) (
	pool *pgxpool.Pool, ca, cb *pgleases.Client, a *pgleases.Lease,
) {
	t.Helper()
	return twoClientsOn(t, pgtest.MigratedDatabase(t), partitions, opts...)
}

func twoClientsOn(t *testing.T, url string, partitions int, opts ...pgleases.LeaseOption) (
	pool *pgxpool.Pool, ca, cb *pgleases.Client, a *pgleases.Lease,
) {
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
	what := fmt.Sprintf("%q owns %d of %d partitions", l.Name(), n, l.NumPartitions())
	until(t, what, func() bool { return len(numbers(l)) == n }, l)
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
	synctest.Test(t, func(t *testing.T) {
		lease := pgleasestest.NewLease("work", 4)
		defer lease.Close()
		lease.Gain(0, 1, 2, 3)
		first, hold := lease.Hold(t.Context()), lease.Hold(t.Context())
		lost := lease.Lose(2, 3)
		young := lease.Hold(t.Context())
		defer young.Release()
		if got := young.Values(); !slices.Equal(got, []int{0, 1}) {
			t.Errorf("a hold contains %v, not 0 and 1", got)
		}
		first.Release()
		first.Release()
		time.Sleep(time.Hour)
		select {
		case <-lost:
			t.Error("what is held was handed over")
		default:
		}
		if got := hold.Values(); !slices.Equal(got, []int{0, 1, 2, 3}) || len(got) != cap(got) {
			t.Errorf("the hold is of %v, not 0 to 3", got)
		}
		testkit.OK(t, hold.Context().Err()) // a handoff does not end it
		s := lease.Client().Stats()
		if s.Draining != 2 || s.Owned != 2 || time.Since(s.DrainingSince).Round(time.Minute) != time.Hour {
			t.Errorf("two are owned and two drain, and the stats are %+v", s)
		}
		for _, n := range hold.Values() {
			p, ok := hold.Partition(n)
			if !ok || p.Number != n {
				t.Errorf("the hold's partition %d is %v, contained %v", n, p, ok)
			}
			testkit.OK(t, lease.Guard(t.Context(), nil, p))
		}
		if p, ok := hold.Partition(4); ok {
			t.Errorf("the hold contains %v, and there is no partition 4", p)
		}
		hold.Release()
		hold.Release()
		<-lost // though the young one is open
		testkit.OK(t, young.Context().Err())
		wraps(t, "released, its context ended with", context.Cause(hold.Context()), context.Canceled)
		if s := lease.Client().Stats(); s.Losses != (pgleases.Losses{Handoff: 2}) {
			t.Errorf("two were handed over, and the stats are %+v", s)
		}
	})
}

func TestAHoldsContextIsOfItsParent(t *testing.T) {
	lease := pgleasestest.NewLease("work", 1)
	defer lease.Close()
	lease.Gain(0)
	why := errors.New("supper")
	ctx, cancel := context.WithCancelCause(context.WithValue(t.Context(), hour(0), "six"))
	hold := lease.Hold(ctx)
	defer hold.Release()
	if hold.Context().Value(hour(0)) != "six" {
		t.Error("the hold's context does not have its parent's values")
	}
	cancel(why)
	wraps(t, "the hold ended with", ended(t, "the hold ends", hold.Context()), why)
	testkit.OK(t, ownership(t, lease.Lease, 0).Context().Err())
}

type hour int

func TestAHoldOfNothingIsEmptyAndHarmless(t *testing.T) {
	lease := pgleasestest.NewLease("work", 2)
	defer lease.Close()
	check := func(hold *pgleases.Hold) {
		t.Helper()
		if got := hold.Values(); got == nil || len(got) != 0 || cap(got) != 0 {
			t.Errorf("it is of %#v, not an empty slice", got)
		}
		if p, ok := hold.Partition(0); ok || p != (pgleases.Partition{}) {
			t.Errorf("it contains %v, not nothing", p)
		}
		testkit.OK(t, hold.Context().Err())
		hold.Release()
		hold.Release()
		wraps(t, "released, its context's error is", hold.Context().Err(), context.Canceled)
	}
	check(lease.Hold(t.Context()))
	lease.Gain(0, 1)
	open := lease.Hold(t.Context())
	defer open.Release()
	if err := closes(t, lease.Client(), canceled(nil)); err == nil {
		t.Error("Close says that nothing was left in work")
	}
	check(lease.Hold(t.Context()))
}

func TestAHandoffFirstAsksAndTheOwnershipEndsLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lease := pgleasestest.NewLease("work", 2)
		defer lease.Close()
		lease.Gain(0, 1)
		asked, finish := make(chan pgleases.Partition, 1), make(chan struct{})
		run(t, lease.Lease, func(ctx context.Context, p pgleases.Partition) error {
			if own, ok := lease.Partition(p.Number); !ok || own != p {
				t.Errorf("called with %v, which is not what is owned: %v, %v", p, own, ok)
			}
			<-ctx.Done()
			if errors.Is(context.Cause(ctx), pgleases.ErrHandoff) {
				asked <- p
				<-finish
			}
			return nil
		})
		synctest.Wait()
		lost := lease.Lose(1)
		p := <-asked
		time.Sleep(time.Hour)
		if _, ok := lease.Partition(1); ok || lease.Owns(1) || !slices.Equal(lease.Values(), []int{0}) {
			t.Errorf("%v drains, and is still shown", p)
		}
		testkit.OK(t, errors.Join(p.Context().Err(), lease.Guard(t.Context(), nil, p)))
		select {
		case <-lost:
			t.Error("it is handed over under work")
		default:
		}
		close(finish)
		<-lost
		wraps(t, "the ownership ended with", context.Cause(p.Context()), pgleases.ErrHandoff)
		if s := lease.Client().Stats(); s.Losses != (pgleases.Losses{Handoff: 1}) {
			t.Errorf("one was handed over, and the stats are %+v", s)
		}
	})
}

func TestRunIsCalledAgainOnlyUnderANewEpochAfterNil(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lease := pgleasestest.NewLease("work", 1)
		var epochs []int64
		go func() {
			_ = lease.Run(t.Context(), func(_ context.Context, p pgleases.Partition) error {
				epochs = append(epochs, p.Epoch)
				return nil
			})
		}()
		for range 3 {
			lease.Gain(0)
			time.Sleep(time.Hour)
			<-lease.Lose(0)
		}
		lease.Close()
		if len(epochs) != 3 || !slices.IsSorted(epochs) || len(slices.Compact(epochs)) != 3 {
			t.Errorf("3 ownerships, and the calls were under the epochs %v", epochs)
		}
	})
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
		for i, most := range []time.Duration{
			100, 200, 400, 800, 1600, 3200, 6400, 12_800, 25_600,
			100, // it begins again after the long call
		} {
			if most *= time.Millisecond; pauses[i] < most/2 || pauses[i] > most {
				t.Errorf("pause %d of %v is not from %v to %v", i, pauses, most/2, most)
			}
		}
	})
}

func TestAPartitionLeavesBetweenFailedCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lease := pgleasestest.NewLease("work", 1)
		defer lease.Close()
		lease.Gain(0)
		calls := 0
		go func() {
			_ = lease.Run(t.Context(), func(context.Context, pgleases.Partition) error {
				calls++
				return errors.New("never")
			})
		}()
		time.Sleep(time.Minute)
		<-lease.Lose(0)
		before := calls
		time.Sleep(time.Hour)
		if before < 5 || calls != before {
			t.Errorf("it was called %d times, and %d times after the partition had left", before, calls-before)
		}
	})
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
	all, own := book.lines("callback failed"), book.lines("callback failed", "the tea is cold")
	if len(all) != 1 || len(own) != 1 {
		t.Errorf("one error is not of the context, and these were logged: %q", all)
	}
}

func TestRunWithoutAFunctionIsAnError(t *testing.T) {
	lease := pgleasestest.NewLease("work", 1)
	defer lease.Close()
	const want = `pgleases: run lease "work": the function is nil; pass the one that works on a partition`
	if err := lease.Run(t.Context(), nil); err == nil || err.Error() != want {
		t.Errorf("%v, not %s", err, want)
	}
}

func TestASecondConcurrentRunIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lease := pgleasestest.NewLease("work", 1)
		defer lease.Close()
		lease.Gain(0)
		calls := 0
		fn := func(ctx context.Context, p pgleases.Partition) error {
			calls++
			return untilAsked(ctx, p)
		}
		for n := range 2 { // another one after the first is none beside it
			first := run(t, lease.Lease, fn)
			synctest.Wait()
			if err := lease.Run(t.Context(), fn); err == nil || !strings.Contains(err.Error(), `"work"`) {
				t.Errorf("a second Run returned %v, not an error that names the lease", err)
			}
			first.stop(nil)
			wraps(t, "Run returned", <-first.done, context.Canceled)
			if calls != n+1 {
				t.Errorf("%d calls in %d Runs", calls, n+1)
			}
		}
	})
}

func TestRunReturnsTheCauseAfterAllCallbacksReturned(t *testing.T) {
	why := errors.New("dinner")
	for name, test := range map[string]struct {
		end  func(l *pgleasestest.Lease, stop context.CancelCauseFunc) error
		want error
	}{
		"context": {func(_ *pgleasestest.Lease, stop context.CancelCauseFunc) error { stop(why); return nil }, why},
		"client closed": {func(l *pgleasestest.Lease, _ context.CancelCauseFunc) error {
			return l.Client().Close(context.Background())
		}, pgleases.ErrClosed},
		"lease left": {func(l *pgleasestest.Lease, _ context.CancelCauseFunc) error {
			return l.Leave(context.Background())
		}, pgleases.ErrClosed},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lease := pgleasestest.NewLease("work", 3)
				defer lease.Close()
				lease.Gain(0, 1, 2)
				asked, finish := make(chan error, 3), make(chan struct{})
				j := run(t, lease.Lease, func(ctx context.Context, p pgleases.Partition) error {
					<-ctx.Done()
					asked <- context.Cause(ctx)
					<-finish
					if p.Context().Err() != nil {
						t.Errorf("the ownership ended during the work: %v", context.Cause(p.Context()))
					}
					return nil
				})
				synctest.Wait()
				ended := make(chan error, 1)
				go func() { ended <- test.end(lease, j.stop) }()
				for range 3 {
					wraps(t, "a callback's context ended with", <-asked, test.want)
				}
				finish <- struct{}{}
				finish <- struct{}{}
				synctest.Wait()
				if len(j.done) > 0 {
					t.Error("Run returned while a callback was at work")
				}
				finish <- struct{}{}
				wraps(t, "Run returned", <-j.done, test.want)
				testkit.OK(t, <-ended)
				if test.want != why {
					wraps(t, "Run afterwards", lease.Run(t.Context(), untilAsked), test.want)
				}
			})
		})
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
	const line = "INFO pgleases: standing by, other clients own all partitions lease=work owners=a free_by_if_dead="
	until(t, "b stands by", func() bool { return len(waits.lines("standing by")) > 0 }, b)
	first.stop(nil)
	testkit.OK(t, a.Leave(t.Context()))
	untilOwns(t, b, 1)
	got, ofLeader := waits.lines("standing by"), leads.lines("standing by")
	if len(got) != 1 || !strings.HasPrefix(got[0], line) || len(ofLeader) > 0 {
		t.Errorf("b logged %q, and the leader %q", got, ofLeader)
	}
}
