package pgleasestest_test

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/pgleasestest"
)

// inBubble runs a test in a bubble, which finds goroutines that are left behind.
func inBubble(t *testing.T, test func(t *testing.T, lease *pgleasestest.Lease), opts ...pgleases.LeaseOption) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		lease := pgleasestest.NewLease("orders", 8, opts...)
		defer lease.Close()
		test(t, lease)
	})
}

func wantValues(t *testing.T, lease *pgleasestest.Lease, want ...int) {
	t.Helper()
	if got := lease.Values(); !slices.Equal(got, want) {
		t.Errorf("owns %v, want %v", got, want)
	}
}

// ownership returns the ownership of a partition that is owned.
func ownership(t *testing.T, lease *pgleasestest.Lease, number int) pgleases.Partition {
	t.Helper()
	p, owned := lease.Partition(number)
	if !owned {
		t.Fatalf("partition %d is not owned", number)
	}
	return p
}

func TestSynctestExample(t *testing.T) { testBillsEachHour(t) }

func wantOpen(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	synctest.Wait()
	select {
	case <-c:
		t.Errorf("%s is closed already", what)
	default:
	}
}

func TestNothingIsOwnedUntilGained(t *testing.T) {
	inBubble(t, func(t *testing.T, lease *pgleasestest.Lease) {
		time.Sleep(time.Hour)
		wantValues(t, lease)
		changed := lease.Changed()
		wantOpen(t, "Changed", changed)
		waited := make(chan error, 1)
		go func() { waited <- lease.Wait(t.Context()) }()

		lease.Gain(5, 2)
		wantValues(t, lease, 2, 5)
		<-changed
		if err := <-waited; err != nil {
			t.Error(err)
		}
		if lease.Owns(3) || !lease.Owns(5) {
			t.Error("Owns and Values differ")
		}
		time.Sleep(time.Hour)
		wantValues(t, lease, 2, 5)
		if left := time.Until(lease.TrustDeadline()); left <= 0 || left > 10*time.Minute {
			t.Errorf("the trust deadline is in %v", left)
		}
	})
}

func TestEveryOwnershipHasAHigherEpoch(t *testing.T) {
	inBubble(t, func(t *testing.T, lease *pgleasestest.Lease) {
		var last int64
		for range 3 {
			lease.Gain(1)
			first := ownership(t, lease, 1).Epoch
			if first <= last {
				t.Errorf("epoch %d after %d", first, last)
			}
			lease.Gain(1, 2)
			if again := ownership(t, lease, 1).Epoch; again != first {
				t.Errorf("epoch %d became %d without a change of owner", first, again)
			}
			last = ownership(t, lease, 2).Epoch
			<-lease.Lose(1, 2)
			lease.Gain(1)
			if again := ownership(t, lease, 1).Epoch; again <= last {
				t.Errorf("epoch %d after %d", again, last)
			}
			last = ownership(t, lease, 1).Epoch
			lease.Expire()
		}
	})
}

func TestLoseWaitsForHolds(t *testing.T) {
	inBubble(t, func(t *testing.T, lease *pgleasestest.Lease) {
		lease.Gain(1, 2)
		hold := lease.Hold(t.Context())
		p, _ := hold.Partition(1)
		lost := lease.Lose(1)
		if hold := lease.Hold(t.Context()); !slices.Equal(hold.Values(), []int{2}) {
			t.Errorf("a new hold has %v", hold.Values())
		}
		time.Sleep(time.Hour)
		wantOpen(t, "the handoff", lost)
		if err := p.Context().Err(); err != nil {
			t.Errorf("the ownership ended while it is held: %v", err)
		}
		if err := lease.Guard(t.Context(), nil, p); err != nil {
			t.Errorf("guard while it drains: %v", err)
		}
		hold.Release()
		<-lost
		if cause := context.Cause(p.Context()); !errors.Is(cause, pgleases.ErrHandoff) {
			t.Errorf("the ownership ended with %v", cause)
		}
		if err := lease.Guard(t.Context(), nil, p); !errors.Is(err, pgleases.ErrNotOwner) {
			t.Errorf("guard after the handoff: %v", err)
		}
		<-lease.Lose(1) // it is lost already
	})
}

func TestLoseWaitsForTheHandoffDelayOfWhoReadValues(t *testing.T) {
	inBubble(t, func(t *testing.T, lease *pgleasestest.Lease) {
		for _, read := range []bool{true, false} {
			lease.Gain(1)
			var want time.Duration
			if read {
				wantValues(t, lease, 1)
				want = time.Minute
			}
			began := time.Now()
			<-lease.Lose(1)
			if took := time.Since(began); took < want || took > want+time.Second {
				t.Errorf("read %v: handed over after %v, want %v", read, took, want)
			}
		}
	}, pgleases.WithHandoffDelay(time.Minute))
}

func TestPartitionThatDrainsIsGainedWhenItsWorkEnded(t *testing.T) {
	inBubble(t, func(t *testing.T, lease *pgleasestest.Lease) {
		lease.Gain(1)
		hold := lease.Hold(t.Context())
		before, _ := hold.Partition(1)
		lost := lease.Lose(1)
		gained := make(chan struct{})
		go func() {
			lease.Gain(1)
			close(gained)
		}()
		wantOpen(t, "the gain", gained)
		hold.Release()
		<-gained
		<-lost
		if after := ownership(t, lease, 1); after.Epoch <= before.Epoch || before.Context().Err() == nil {
			t.Errorf("was owned under %d, now under %d", before.Epoch, after.Epoch)
		}
	})
}

func TestExpireEndsEverythingAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, lease *pgleasestest.Lease) {
		lease.Gain(1, 2)
		hold := lease.Hold(t.Context())
		defer hold.Release()
		drains, serves := ownership(t, lease, 1), ownership(t, lease, 2)
		lost := lease.Lose(1)
		began := time.Now()

		lease.Expire()
		wantValues(t, lease)
		<-lost
		for _, p := range []pgleases.Partition{drains, serves} {
			if cause := context.Cause(p.Context()); !errors.Is(cause, pgleases.ErrTrustLost) {
				t.Errorf("%v ended with %v", p, cause)
			}
			err := lease.Guard(t.Context(), nil, p)
			if !errors.Is(err, pgleases.ErrNotOwner) || !errors.Is(err, pgleases.ErrTrustLost) {
				t.Errorf("guard of %v: %v", p, err)
			}
		}
		if cause := context.Cause(hold.Context()); !errors.Is(cause, pgleases.ErrTrustLost) {
			t.Errorf("the hold ended with %v", cause)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("it took %v", took)
		}
		time.Sleep(time.Hour)
		wantValues(t, lease)
		lease.Gain(2)
		if p := ownership(t, lease, 2); p.Epoch <= serves.Epoch {
			t.Errorf("epoch %d after %d", p.Epoch, serves.Epoch)
		}
		lease.Expire()
		lease.Expire()
		wantValues(t, lease)
	})
}

func TestGuardPassesForTheEpochThatIsOwned(t *testing.T) {
	inBubble(t, func(t *testing.T, lease *pgleasestest.Lease) {
		other := pgleasestest.NewLease("payments", 8)
		defer other.Close()
		lease.Gain(1)
		other.Gain(1)
		p := ownership(t, lease, 1)
		stored := pgleases.Partition{Number: p.Number, Epoch: p.Epoch}
		old := pgleases.Partition{Number: p.Number, Epoch: p.Epoch - 1}
		free := pgleases.Partition{Number: 2, Epoch: p.Epoch}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		for _, test := range []struct {
			what string
			ctx  context.Context
			p    pgleases.Partition
			want error
		}{
			{"owned", t.Context(), p, nil},
			{"owned, from a store", t.Context(), stored, nil},
			{"under an older epoch", t.Context(), old, pgleases.ErrNotOwner},
			{"not owned", t.Context(), free, pgleases.ErrNotOwner},
			{"of another lease", t.Context(), ownership(t, other, 1), pgleases.ErrNotOwner},
			{"with a context that ended", ended, p, context.Canceled},
		} {
			if err := lease.Guard(test.ctx, nil, test.p); !errors.Is(err, test.want) {
				t.Errorf("Guard, %s: %v", test.what, err)
			}
			if err := lease.GuardSQL(test.ctx, (*sql.Tx)(nil), test.p); !errors.Is(err, test.want) {
				t.Errorf("GuardSQL, %s: %v", test.what, err)
			}
		}
	})
}

func TestClientHasTheLease(t *testing.T) {
	inBubble(t, func(t *testing.T, lease *pgleasestest.Lease) {
		lease.Gain(1)
		same, err := lease.Client().Lease(t.Context(), "orders", 8)
		if err != nil || same != lease.Lease {
			t.Errorf("the client has another lease, %v", err)
		}
		other := testkit.Must(lease.Client().Lease(t.Context(), "payments", 8))(t)
		if err := lease.SetWeight(t.Context(), 3); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Hour)
		if owned := other.Values(); len(owned) > 0 {
			t.Errorf("another lease owns %v", owned)
		}
		wantValues(t, lease, 1)
		if err := other.Leave(t.Context()); err != nil {
			t.Error(err)
		}
		wantValues(t, lease, 1)
	})
}

func TestClientClosesAsItAlwaysDoes(t *testing.T) {
	inBubble(t, func(t *testing.T, lease *pgleasestest.Lease) {
		lease.Gain(1, 2)
		hold := lease.Hold(t.Context())
		closed := make(chan struct{})
		go func() {
			if err := lease.Client().Close(context.Background()); err != nil {
				t.Error(err)
			}
			close(closed)
		}()
		wantOpen(t, "the client's Close", closed)
		wantValues(t, lease)
		hold.Release()
		<-closed
		if err := lease.Client().Err(); !errors.Is(err, pgleases.ErrClosed) {
			t.Errorf("the client ended with %v", err)
		}
		lease.Gain(1) // nothing to wait for
		<-lease.Lose(1)
		lease.Expire()
		wantValues(t, lease)
	})
}

func TestCloseDoesNotWaitForWork(t *testing.T) {
	inBubble(t, func(t *testing.T, lease *pgleasestest.Lease) {
		lease.Gain(1, 2)
		hold := lease.Hold(t.Context())
		lost := lease.Lose(1)
		lease.Close()
		lease.Close()
		<-lost
		if cause := context.Cause(hold.Context()); !errors.Is(cause, pgleases.ErrClosed) {
			t.Errorf("the hold ended with %v", cause)
		}
	})
}

func TestLeaseThatWasLeftGainsNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, lease *pgleasestest.Lease) {
		lease.Gain(1)
		if err := lease.Leave(t.Context()); err != nil {
			t.Error(err)
		}
		lease.Gain(2)
		wantValues(t, lease)
	})
}

func TestWorksOutsideOfBubbles(t *testing.T) {
	lease := pgleasestest.NewLease("orders", 8, pgleases.WithHandoffDelay(0))
	defer lease.Close()
	lease.Gain(0, 7)
	wantValues(t, lease, 0, 7)
	<-lease.Lose(0)
	wantValues(t, lease, 7)
	lease.Expire()
	wantValues(t, lease)
	lease.Gain(7)
	wantValues(t, lease, 7)
}

func TestMisusePanics(t *testing.T) {
	lease := pgleasestest.NewLease("orders", 8)
	defer lease.Close()
	for what, misuse := range map[string]func(){
		"a lease without partitions": func() { pgleasestest.NewLease("orders", 0) },
		"a lease without a name":     func() { pgleasestest.NewLease("", 8) },
		"Gain(8) of 0 to 7":          func() { lease.Gain(8) },
		"Lose(-1)":                   func() { lease.Lose(-1) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", what)
				}
			}()
			misuse()
		}()
	}
}

// An Expire that comes between takes what Gain has given, so Gain does not wait for it.
func TestGainBesideExpireReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lease := pgleasestest.NewLease("work", 2)
		defer lease.Close()
		stop, stopped := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(stopped)
			for {
				select {
				case <-stop:
					return
				default:
					lease.Expire()
				}
			}
		}()
		gained := make(chan struct{})
		go func() {
			defer close(gained)
			for range 100 {
				lease.Gain(0, 1)
			}
		}()
		select {
		case <-gained:
		case <-time.After(time.Hour):
			t.Error("Gain does not return")
		}
		close(stop)
		<-stopped
	})
}
