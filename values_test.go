package pgleases_test

import (
	"cmp"
	"context"
	"errors"
	"runtime/debug"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/pgleasestest"
)

func TestTheHandoffDelayIsPaidForWhatSomebodyReadOnly(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		read  func(t *testing.T, c *pgleases.Client, a *pgleases.Lease)
		delay time.Duration
		paid  bool
	}{
		"Values": {func(_ *testing.T, _ *pgleases.Client, a *pgleases.Lease) {
			a.Values()
		}, 300 * time.Millisecond, true},
		"Owns": {func(_ *testing.T, _ *pgleases.Client, a *pgleases.Lease) {
			a.Owns(99)
		}, 300 * time.Millisecond, true},
		"probes, ten a second": {func(t *testing.T, c *pgleases.Client, a *pgleases.Lease) {
			go func() {
				for probe := time.NewTicker(100 * time.Millisecond); t.Context().Err() == nil; <-probe.C {
					a.Partition(0)
					c.Stats()
				}
			}()
		}, time.Hour, false},
		"nothing": {func(_ *testing.T, _ *pgleases.Client, a *pgleases.Lease) {
			a.Hold(context.Background()).Release()
			_ = a.Wait(context.Background())
			a.Changed()
			a.TrustDeadline()
		}, time.Hour, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := testkit.Pool(t, direct(t))
			journal(t, pool)
			c := newClient(t, pool, pgleases.WithClientID("a"))
			a := joined(t, c, "work", 4, pgleases.WithHandoffDelay(test.delay))
			untilOwns(t, a, 4)
			test.read(t, c, a)
			b := joined(t, newClient(t, pool, pgleases.WithClientID("b")), "work", 4)
			untilOwns(t, b, 2)
			if got := numbers(a); len(got) != 2 {
				t.Errorf("a owns %v, not 2 partitions", got)
			}
			for _, took := range delays(t, pool) {
				if test.paid != (took >= test.delay) {
					t.Errorf("handed over after %v, the delay of %v being paid is %v", took, test.delay, test.paid)
				}
			}
		})
	}
}

// delays returns how long each handoff took, from the ask.
func delays(t *testing.T, pool *pgxpool.Pool) []time.Duration {
	t.Helper()
	micros := testkit.Value[[]int64](t, pool, `
		SELECT coalesce(array_agg((extract(epoch FROM at - asked_at) * 1000000)::bigint ORDER BY n), '{}')
		FROM public.journal WHERE old_owner <> owner`)
	if len(micros) != 2 {
		t.Errorf("%d handoffs, not 2", len(micros))
	}
	took := make([]time.Duration, len(micros))
	for i, us := range micros {
		took[i] = time.Duration(us) * time.Microsecond
	}
	return took
}

// A read delays what was shown at that time, not what was gained afterwards.
func TestUnreadPartitionSkipsTheHandoffDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lease := pgleasestest.NewLease("work", 1, pgleases.WithHandoffDelay(time.Hour))
		defer lease.Close()
		lease.Values()
		lease.Gain(0)
		began := time.Now()
		<-lease.Lose(0)
		if took := time.Since(began); took > time.Second {
			t.Errorf("handed over after %v", took)
		}
	})
}

func TestAPartitionLeavesValuesBeforeItsHandoffDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const delay = time.Hour
		lease := pgleasestest.NewLease("work", 4, pgleases.WithHandoffDelay(delay))
		defer lease.Close()
		lease.Gain(0, 1, 2, 3)
		loop, p := lease.Values(), ownership(t, lease.Lease, 2)
		lost := lease.Lose(2, 3)
		time.Sleep(delay - time.Second)
		if got := lease.Values(); !slices.Equal(got, []int{0, 1}) || lease.Owns(2) || !lease.Owns(1) {
			t.Errorf("it shows %v, not 0 and 1, or Owns differs", got)
		}
		if !slices.Equal(loop, []int{0, 1, 2, 3}) {
			t.Errorf("the slice that was read became %v, and should stay 0 to 3", loop)
		}
		select {
		case <-lost:
			t.Error("it was handed over before its delay")
		default:
		}
		testkit.OK(t, errors.Join(p.Context().Err(), lease.Guard(t.Context(), nil, p)))
		testkit.OK(t, lease.Client().Close(context.Background())) // does not wait the delay
		<-lost
		wraps(t, "the ownership ended with", context.Cause(p.Context()), pgleases.ErrClosed)
	})
}

func TestValuesIsAscendingAndExactAndNeverNil(t *testing.T) {
	lease := pgleasestest.NewLease("work", 16, pgleases.WithHandoffDelay(0))
	check := func(want ...int) {
		t.Helper()
		if got := lease.Values(); got == nil || len(got) != cap(got) || !slices.Equal(got, want) {
			t.Errorf("Values is %#v with capacity %d, not %v", got, cap(got), want)
		}
	}
	check()
	lease.Gain(7, 3, 11)
	check(3, 7, 11)
	_ = append(lease.Values(), 99)
	check(3, 7, 11)
	<-lease.Lose(7)
	check(3, 11)
	lease.Expire()
	check()
	lease.Close()
	check()
}

func TestChangedIsClosedAtTheNextChangeAndNotBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lease := pgleasestest.NewLease("work", 2)
		for _, change := range []struct {
			what string
			do   func()
		}{
			{"a gain", func() { lease.Gain(0, 1) }}, {"a handoff", func() { <-lease.Lose(1) }},
			{"a loss of trust", lease.Expire}, {"another gain", func() { lease.Gain(0) }}, {"the end", lease.Close},
		} {
			changed, before := lease.Changed(), numbers(lease.Lease)
			time.Sleep(time.Hour)
			select {
			case <-changed:
				t.Errorf("before %s: closed without a change", change.what)
			default:
			}
			if lease.Changed() != changed {
				t.Errorf("before %s: another channel without a change", change.what)
			}
			change.do()
			<-changed
			synctest.Wait() // after a loss of trust, the new session counts as another change
			if got := numbers(lease.Lease); slices.Equal(got, before) {
				t.Errorf("%s: Changed is closed, and what is owned has not changed: %v", change.what, got)
			}
		}
		<-lease.Changed() // it stays closed
	})
}

// The same set under new epochs is a change.
func TestChangedIsClosedWhenOnlyEpochsChange(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t, pgtest.MigratedDatabase(t))
	c := newClient(t, pool, pgleases.WithHeartbeat(20*time.Millisecond))
	l := joined(t, c, "work", 1)
	untilOwns(t, l, 1)
	p, changed := ownership(t, l, 0), l.Changed()
	testkit.Execute(t, pool, `
		BEGIN;
		UPDATE pgleases.partitions SET epoch = epoch + 5;
		UPDATE pgleases.leases SET generation = generation + 1;
		COMMIT`)
	testkit.Receive(t, "Changed is closed", changed)
	untilOwns(t, l, 1)
	if now := ownership(t, l, 0); now.Epoch < p.Epoch+5 {
		t.Errorf("%v follows %v: its epoch should be higher by 5", now, p)
	}
	ended(t, "the ownership under the old epoch ends", p.Context())
}

func TestReadingAllocatesNothing(t *testing.T) { // counts for the whole process: not in parallel
	// What it does itself counts too.
	c := newClient(t, testkit.Pool(t, pgtest.MigratedDatabase(t)), pgleases.WithHeartbeat(calmTTL/2))
	l := joined(t, c, "work", 64)
	untilOwns(t, l, 64)
	for name, read := range map[string]func(){
		"Values":        func() { l.Values() },
		"Owns":          func() { l.Owns(63) },
		"Partition":     func() { l.Partition(17) },
		"Changed":       func() { l.Changed() },
		"TrustDeadline": func() { l.TrustDeadline() },
		"Stats":         func() { c.Stats() },
	} {
		n := testing.AllocsPerRun(1000, read)
		for range 10 { // unless something else allocates meanwhile
			n = min(n, testing.AllocsPerRun(1000, read))
		}
		if n != 0 {
			t.Errorf("%s: %v allocations, not 0", name, n)
		}
	}
}

// It reads the clock, which is most of its cost. The two take turns, so that a busy machine slows
// both down.
func TestValuesCostsLittleMoreThanTheClock(t *testing.T) { // by the clock: not in parallel
	l := joined(t, newClient(t, testkit.Pool(t, pgtest.MigratedDatabase(t))), "work", 64)
	untilOwns(t, l, 64)
	const calls, rounds, most = 10_000, 101, 1.3
	now, n := time.Now(), 0
	var values, clock [rounds]time.Duration
	var ratios [rounds]float64
	measure := func() float64 {
		for i := range rounds {
			began := time.Now()
			for range calls {
				n += len(l.Values())
			}
			values[i] = time.Since(began)
			began = time.Now()
			for range calls {
				if time.Since(now) < 0 {
					n++
				}
			}
			clock[i] = time.Since(began)
			ratios[i] = float64(values[i]) / float64(clock[i])
		}
		return middle(ratios[:])
	}
	ratio := measure()
	for range 20 { // once in a while others use the machine all the time
		if ratio > most && !instrumented() {
			ratio = measure()
		}
	}
	t.Logf("Values takes %v, time.Since %v: %.2f times as long", middle(values[:])/calls, middle(clock[:])/calls, ratio)
	if n%(calls*rounds*64) != 0 {
		t.Errorf("%d values were read", n)
	}
	if ratio > most && !instrumented() {
		t.Errorf("Values takes %.2f times as long as time.Since, not %.1f at most", ratio, most)
	}
}

func middle[T cmp.Ordered](of []T) T { return slices.Sorted(slices.Values(of))[len(of)/2] }

// instrumented reports whether the race detector or the coverage counts along, which falsifies
// measurements.
func instrumented() bool {
	info, ok := debug.ReadBuildInfo()
	return testing.CoverMode() != "" || ok && slices.ContainsFunc(info.Settings, func(s debug.BuildSetting) bool {
		return s.Key == "-race" && s.Value == "true"
	})
}
