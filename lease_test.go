package pgleases_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/pgleasestest"
)

func TestLeaseAgainReturnsTheSameLease(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t, pgtest.Database(t))
	c := newClient(t, pool)
	var all sync.WaitGroup
	leases := make([]*pgleases.Lease, 8)
	for i := range leases {
		all.Go(func() {
			var err error
			if leases[i], err = c.Lease(t.Context(), "work", 4, pgleases.WithDrainTimeout(time.Minute)); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	l := leases[0]
	for _, other := range leases {
		if other != l {
			t.Fatal("one client's lease is two")
		}
	}
	if l.Name() != "work" || l.NumPartitions() != 4 {
		t.Errorf("it is %q with %d partitions, not work with 4", l.Name(), l.NumPartitions())
	}
	testkit.OK(t, l.SetWeight(t.Context(), 5))
	if again, err := c.Lease(t.Context(), "work", 4, pgleases.WithDrainTimeout(time.Minute)); again != l {
		t.Errorf("after SetWeight, Lease with the options from before returned another lease, or %v", err)
	}
	untilOwns(t, l, 4)
	names := func(what string, err error, words ...string) {
		t.Helper()
		refused(t, what, err, append(words, `"work"`)...)
	}
	_, err := c.Lease(t.Context(), "work", 5, pgleases.WithDrainTimeout(time.Minute))
	names("another number", err, "4", "5")
	if !errors.Is(err, pgleases.ErrPartitionCount) {
		t.Error(err)
	}
	_, err = c.Lease(t.Context(), "work", 4, pgleases.WithDrainTimeout(time.Second))
	names("another drain timeout", err, "drain timeout 1m0s", "drain timeout 1s")
	_, err = c.Lease(t.Context(), "work", 4, pgleases.WithDrainTimeout(time.Minute), pgleases.WithWeight(3))
	names("another weight", err, "weight 1", "weight 3")
	_, err = c.Lease(t.Context(), "work", 4,
		pgleases.WithDrainTimeout(time.Minute), pgleases.WithHandoffDelay(time.Hour))
	names("another delay", err, "handoff delay 1s", "handoff delay 1h0m0s")

	other := newClient(t, pool, pgleases.WithClientID("other"))
	_, err = other.Lease(t.Context(), "work", 7)
	names("another client's number", err, "4", "7")
	if !errors.Is(err, pgleases.ErrPartitionCount) {
		t.Error(err)
	}
	if n := testkit.Value[int](t, pool, `SELECT count(*) FROM pgleases.members_status WHERE client = 'other'`); n != 0 {
		t.Error("refused, it is a member")
	}
	if got := l.Values(); len(got) != 4 {
		t.Errorf("after all that it owns %v, not all 4", got)
	}
	untilOwns(t, joined(t, other, "work", 4, pgleases.WithWeight(5)), 2) // a refusal is not for ever
}

func TestALeaseThatIsNotWaitedForLeavesNoMembership(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t, pgtest.Database(t))
	c := newClient(t, pool, pgleases.WithHeartbeat(20*time.Millisecond))
	why := errors.New("too slow")
	if _, err := c.Lease(canceled(why), "work", 4); !errors.Is(err, why) {
		t.Errorf("with an ended context, Lease returned %v, not %v", err, why)
	}
	// Its lease is locked, so that the join takes long.
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), `LOCK pgleases.leases`); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, why)
		defer cancel()
		if _, err := c.Lease(ctx, "work", 4); !errors.Is(err, why) {
			t.Errorf("with a context that ends, Lease returned %v, not %v", err, why)
		}
		return nil
	})
	testkit.OK(t, err)
	beats(t, c, 3)
	until(t, "nothing is left of it", func() bool {
		return testkit.Value[int](t, pool, `SELECT count(*) FROM pgleases.members`) == 0 && c.Stats().Leases == 0
	})
	if s := c.Stats(); s.Losses != (pgleases.Losses{}) || s.Reconnects != 0 {
		t.Errorf("who gives up costs trust, or the connection: %+v", s)
	}
	untilOwns(t, joined(t, c, "work", 4), 4)
}

func TestWaitWaitsForAPartition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lease := pgleasestest.NewLease("work", 1)
		defer lease.Close()
		why := errors.New("the bus comes")
		err := lease.Wait(canceled(why))
		wraps(t, "Wait for nothing", err, why)
		refused(t, "Wait for nothing", err, `"work"`)
		done := make(chan error, 1)
		go func() { done <- lease.Wait(t.Context()) }()
		synctest.Wait()
		if len(done) > 0 {
			t.Error("Wait returned before anything was owned")
		}
		lease.Gain(0)
		testkit.OK(t, <-done)
		testkit.OK(t, lease.Wait(canceled(why))) // something is owned
	})
}

func TestStatsReportTheClientsState(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t, direct(t))
	const most = calmTTL * 19 / 20 // the margin is a twentieth
	c := newClient(t, pool, pgleases.WithHeartbeat(50*time.Millisecond))
	s := c.Stats()
	if s.Trust <= 0 || s.Leases != 0 || s.LeaseStats != (pgleases.LeaseStats{}) {
		t.Errorf("a client that was just opened has trust and no lease, and its stats are %+v", s)
	}
	l := joined(t, c, "work", 4)
	untilOwns(t, l, 4)
	until(t, "it listens", func() bool { return c.Stats().Listening })
	var last time.Time
	for range 5 {
		beats(t, c, 1)
		var s pgleases.Stats
		what := fmt.Sprintf("trust and age are of one heartbeat: together %v", most)
		until(t, what, func() bool { // a moment behind is right too
			began := time.Now()
			s = c.Stats()
			return (s.Trust + s.HeartbeatAge - most).Abs() <= time.Since(began)
		})
		if s.Trust <= 0 || s.Trust > most {
			t.Errorf("trust is %v, not 0 to %v, with a TTL of %v", s.Trust, most, calmTTL)
		}
		if s.HeartbeatAge <= 0 || s.RoundTrip <= 0 || s.RoundTrip > s.HeartbeatAge {
			t.Errorf("the last heartbeat was sent %v ago and took %v", s.HeartbeatAge, s.RoundTrip)
		}
		deadline := l.TrustDeadline()
		if !deadline.After(last) {
			t.Errorf("after a heartbeat the trust deadline is %v, not later than %v", deadline, last)
		}
		if left := time.Until(deadline); left > most || left <= 0 {
			t.Errorf("the trust deadline is in %v, not in 0 to %v", left, most)
		}
		last = deadline
	}
	s = c.Stats()
	idle := s.Draining == 0 && s.DrainingSince.IsZero() && s.Reconnects == 0
	if s.Leases != 1 || s.Owned != 4 || s.Gains != 4 || !idle {
		t.Errorf("it has gained 4 partitions of 1 lease and nothing else, and its stats are %+v", s)
	}
}

func TestPartitionForIsTheSameInSQL(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t, pgtest.Database(t))
	l := joined(t, newClient(t, pool), "work", 4097, pgleases.WithWeight(0))
	keys := []string{"", "a", "Straße", "🚢", strings.Repeat("x", 10_000)}
	for range 500 {
		keys = append(keys, fmt.Sprint(rand.Uint64()))
	}
	got := testkit.Value[[]int](t, pool, `SELECT array_agg(pgleases.partition_for(key, 4097) ORDER BY n)
		FROM unnest($1::text[]) WITH ORDINALITY AS k (key, n)`, keys)
	for i, key := range keys {
		if want := l.PartitionFor(key); got[i] != want || want < 0 || want >= 4097 {
			t.Errorf("partition of %.20q: %d in SQL, %d here", key, got[i], want)
		}
	}
}

// lockLease locks a lease's row until the function that it returns is called.
func lockLease(t *testing.T, pool *pgxpool.Pool, name string) (release func()) {
	t.Helper()
	return lockLeaseFor(t, pool, name, "UPDATE")
}

func lockLeaseFor(t *testing.T, pool *pgxpool.Pool, name, strength string) (release func()) {
	t.Helper()
	tx := testkit.Must(pool.Begin(t.Context()))(t)
	testkit.Must(tx.Exec(t.Context(), "SELECT FROM pgleases.leases WHERE name = $1 FOR "+strength, name))(t)
	return func() { _ = tx.Rollback(context.Background()) }
}

func TestALockedLeaseKeepsNoOtherFromBeingHandedOver(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	pool, ca, cb, _ := twoClients(t, 1, pgleases.WithHandoffDelay(0))
	locked := joined(t, ca, "locked", 1)
	untilOwns(t, locked, 1)
	next := joined(t, cb, "work", 1)
	defer lockLease(t, pool, "locked")()
	leaving := newCrew(t)
	defer leaving.gone()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	leaving.do(func() {
		go func() { _ = ca.Close(ctx) }()
	})
	untilOwns(t, next, 1)
}

func TestALockedLeaseKeepsNoOtherFromBeingPlanned(t *testing.T) {
	t.Parallel()
	pool, _, cb, work := twoClients(t, 1, pgleases.WithHandoffDelay(0))
	untilOwns(t, joined(t, cb, "locked", 1), 1)
	next := joined(t, cb, "work", 1) // so that a plan is of both
	defer lockLease(t, pool, "locked")()
	testkit.OK(t, work.SetWeight(t.Context(), 0))
	untilOwns(t, next, 1)
}

// In the mode in which a lease is changed by hand.
func TestLockedLeaseDelaysNoOtherAnnouncement(t *testing.T) {
	t.Parallel()
	pool, ca, cb, work := twoClients(t, 1, pgleases.WithHandoffDelay(0))
	locked := joined(t, ca, "locked", 1)
	untilOwns(t, locked, 1)
	leases := map[string]*pgleases.Lease{"work": work, "locked": locked}
	heirs, holds := make(map[string]*pgleases.Lease), make(map[string]*pgleases.Hold)
	for name := range leases {
		holds[name] = leases[name].Hold(t.Context())
		heirs[name] = joined(t, cb, name, 1, pgleases.WithWeight(0))
	}
	for name := range leases {
		for lease, weight := range map[*pgleases.Lease]int{heirs[name]: 1, leases[name]: 0} {
			testkit.OK(t, lease.SetWeight(t.Context(), weight))
		}
	}
	for _, lease := range leases {
		untilOwns(t, lease, 0) // both drain
	}
	beats(t, cb, 3) // these report everything from before to the next owner
	defer lockLeaseFor(t, pool, "locked", "NO KEY UPDATE")()
	holds["locked"].Release()
	testkit.Becomes(t, pool, "it is released", "b", "SELECT owner FROM pgleases.status WHERE lease = 'locked'")
	holds["work"].Release()
	untilOwns(t, heirs["work"], 1)
}

// Nor does another role's lock on a partition without an owner, where no guard can be open.
func TestLockedPartitionDelaysNoOther(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t, pgtest.MigratedDatabase(t))
	c := newClient(t, pool, pgleases.WithClientID("a"))
	l := joined(t, c, "work", 2, pgleases.WithWeight(0))
	tx := testkit.Must(pool.Begin(t.Context()))(t)
	defer func() { _ = tx.Rollback(context.Background()) }()
	testkit.Must(tx.Exec(t.Context(), "SELECT FROM pgleases.partitions WHERE partition = 0 FOR UPDATE"))(t)
	testkit.OK(t, l.SetWeight(t.Context(), 1))
	untilOwns(t, l, 1)
}
