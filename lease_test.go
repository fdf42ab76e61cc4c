package pgleases_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
)

func TestSharesFollowTheWeights(t *testing.T) {
	t.Parallel()
	pool := newPool(t, pgtest.Database(t))
	leases := make([]*pgleases.Lease, 3)
	for i := range leases {
		c := newClient(t, pool, pgleases.WithClientID(string(rune('a'+i))))
		leases[i] = joined(t, c, "work", 16, pgleases.WithHandoffDelay(0), pgleases.WithWeight(i)) // the first has none
	}
	shares := func(want ...int) {
		t.Helper()
		until(t, fmt.Sprintf("the shares are %v", want), func() bool { return slices.Equal(owned(leases...), want) }, leases...)
	}
	weight := func(i, weight int) {
		t.Helper()
		if err := leases[i].SetWeight(t.Context(), weight); err != nil {
			t.Fatal(err)
		}
		if now := value[int](t, pool, `SELECT weight FROM pgleases.members_status WHERE client = $1`, string(rune('a'+i))); now != weight {
			t.Errorf("SetWeight returned, and the database has %d, not %d", now, weight)
		}
	}
	until(t, "weight 0 owns nothing", func() bool {
		got := owned(leases...)
		return got[0] == 0 && got[1]+got[2] == 16 && (got[1] == 5 || got[1] == 6)
	}, leases...)
	weight(0, 2)
	weight(2, 1)
	shares(8, 4, 4)
	weight(0, 0)
	shares(0, 8, 8)
	weight(0, 1000)
	weight(1, 0)
	weight(2, 0)
	shares(16, 0, 0)
	weight(0, 0) // now nobody has any
	shares(0, 0, 0)
	until(t, "no partition has an owner", func() bool {
		return value[int](t, pool, `SELECT count(*) FROM pgleases.status WHERE owner IS NULL AND moving_to IS NULL`) == 16
	})
	weight(2, 7)
	shares(0, 0, 16)
	weight(0, 7)
	shares(8, 0, 8)
}

func TestALeaseOfClientsWithoutWeightWaitsForOneThatHasSome(t *testing.T) {
	t.Parallel()
	pool := newPool(t, pgtest.Database(t))
	idle := newClient(t, pool, pgleases.WithHeartbeat(20*time.Millisecond))
	a := joined(t, idle, "work", 4, pgleases.WithWeight(0))
	beats(t, idle, 5)
	if got := a.Values(); len(got) != 0 {
		t.Errorf("without weight it owns %v, not nothing", got)
	}
	if s := idle.Stats(); s.Leases != 1 || s.Owned != 0 || s.Gains != 0 {
		t.Errorf("it is a member that owns nothing, and its stats are %+v", s)
	}
	b := joined(t, newClient(t, pool), "work", 4)
	untilOwns(t, b, 4)
	if got := a.Values(); len(got) != 0 {
		t.Errorf("without weight it owns %v, not nothing", got)
	}
}

func TestLeaseAgainReturnsTheSameLease(t *testing.T) {
	t.Parallel()
	pool := newPool(t, pgtest.Database(t))
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
	if l.Name() != "work" || l.Partitions() != 4 {
		t.Errorf("it is %q with %d partitions, not work with 4", l.Name(), l.Partitions())
	}
	if err := l.SetWeight(t.Context(), 5); err != nil {
		t.Fatal(err)
	}
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
	_, err = c.Lease(t.Context(), "work", 4, pgleases.WithDrainTimeout(time.Minute), pgleases.WithHandoffDelay(time.Hour))
	names("another delay", err, "hand-off delay 1s", "hand-off delay 1h0m0s")

	other := newClient(t, pool, pgleases.WithClientID("other"))
	_, err = other.Lease(t.Context(), "work", 7)
	names("another client's number", err, "4", "7")
	if !errors.Is(err, pgleases.ErrPartitionCount) {
		t.Error(err)
	}
	if n := value[int](t, pool, `SELECT count(*) FROM pgleases.members_status WHERE client = 'other'`); n != 0 {
		t.Error("refused, it is a member")
	}
	if got := l.Values(); len(got) != 4 {
		t.Errorf("after all that it owns %v, not all 4", got)
	}
	untilOwns(t, joined(t, other, "work", 4, pgleases.WithWeight(5)), 2) // a refusal is not for ever
}

func TestALeaseThatIsNotWaitedForLeavesNoMembership(t *testing.T) {
	t.Parallel()
	pool := newPool(t, pgtest.Database(t))
	c := newClient(t, pool, pgleases.WithHeartbeat(20*time.Millisecond))
	why := errors.New("too slow")
	if _, err := c.Lease(cancelled(why), "work", 4); !errors.Is(err, why) {
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
	if err != nil {
		t.Fatal(err)
	}
	beats(t, c, 3)
	until(t, "nothing is left of it", func() bool {
		return value[int](t, pool, `SELECT count(*) FROM pgleases.members`) == 0 && c.Stats().Leases == 0
	})
	untilOwns(t, joined(t, c, "work", 4), 4)
}

func TestWaitWaitsForAPartition(t *testing.T) {
	t.Parallel()
	c := newClient(t, newPool(t, pgtest.Database(t)))
	l := joined(t, c, "work", 1, pgleases.WithWeight(0))
	why := errors.New("the bus comes")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 20*time.Millisecond, why)
	defer cancel()
	if err := l.Wait(ctx); !errors.Is(err, why) || !strings.Contains(err.Error(), "work") {
		t.Errorf("Wait returned %v, not %v with the lease", err, why)
	}
	done := make(chan error, 1)
	go func() { done <- l.Wait(t.Context()) }()
	if err := l.SetWeight(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if err := receive(t, "Wait returns", done); err != nil || len(l.Values()) != 1 {
		t.Errorf("Wait returned %v, not nil, and owned is %v, not one partition", err, l.Values())
	}
	if err := l.Wait(cancelled(why)); err != nil {
		t.Errorf("where it owns something, Wait returned %v, not nil", err)
	}
}

func TestALeaseOutlivesItsSessionAndTellsOfTheLossOnce(t *testing.T) {
	t.Parallel()
	pool := newPool(t, pgtest.Database(t))
	var book logbook
	c := newClient(t, pool, book.option(), pgleases.WithClientID("a"), pgleases.WithHeartbeat(50*time.Millisecond))
	one, two := joined(t, c, "one", 4), joined(t, c, "two", 1)
	began := make(chan pgleases.Partition, 100)
	causes := make(chan error, 100)
	run(t, one, func(ctx context.Context, p pgleases.Partition) error {
		began <- p
		<-ctx.Done()
		causes <- context.Cause(ctx)
		return nil
	})
	var before []pgleases.Partition
	for range 4 {
		before = append(before, receive(t, "a callback", began))
	}
	untilOwns(t, two, 1)
	hold := two.Hold(t.Context())
	defer hold.Release()
	session := value[int64](t, pool, `SELECT session FROM pgleases.clients`)
	for round := range int64(3) {
		changed := []<-chan struct{}{one.Changed(), two.Changed()}
		execute(t, pool, `DELETE FROM pgleases.clients`)
		receive(t, "Changed is closed", changed[0])
		receive(t, "Changed is closed", changed[1])
		for range 4 {
			wraps(t, "a callback's context ended with", receive(t, "callbacks are cancelled", causes), pgleases.ErrTrustLost)
		}
		for i, p := range before {
			wraps(t, "the ownership ended with", context.Cause(p.Context()), pgleases.ErrTrustLost)
			wraps(t, "Guard", guard(t, pool, one, p), pgleases.ErrNotOwner)
			p = receive(t, "a callback under a new epoch", began)
			if j := slices.IndexFunc(before, func(b pgleases.Partition) bool { return b.Number == p.Number }); p.Epoch <= before[j].Epoch {
				t.Errorf("%v follows %v: its epoch should be higher", p, before[j])
			}
			guarded(t, pool, one, p)
			defer func() { before[i] = p }()
		}
		before = before[:0]
		for n := range 4 {
			before = append(before, ownership(t, one, n))
		}
		untilOwns(t, two, 1)
		now := value[int64](t, pool, `SELECT session FROM pgleases.clients`)
		if now == session {
			t.Error("the session is the one that was taken away")
		}
		session = now
		until(t, "the stats tell of it", func() bool { return c.Stats().Gains == 5*(round+2) })
		if s := c.Stats(); s.Losses != (pgleases.Losses{TrustLost: 5 * (round + 1)}) || s.Leases != 2 || s.Owned != 5 {
			t.Errorf("after %d losses of 5 partitions of 2 leases, the stats are %+v", round+1, s)
		}
		if lines := book.lines("WARN", "trust lost", "5"); len(lines) != int(round)+1 {
			t.Errorf("%d losses were logged in %d lines: %q", round+1, len(lines), lines)
		}
	}
	wraps(t, "the hold ended with", context.Cause(hold.Context()), pgleases.ErrTrustLost)
	if c.Err() != nil {
		t.Errorf("the client ended: %v", c.Err())
	}
}

func TestStatsTellHowTheClientIsDoing(t *testing.T) {
	t.Parallel()
	pool := newPool(t, direct(t))
	const most = calmTTL * 19 / 20 // the margin is a twentieth
	c := newClient(t, pool, pgleases.WithHeartbeat(50*time.Millisecond))
	if s := c.Stats(); s.Trust <= 0 || s.Leases != 0 || s.Owned != 0 || s.Gains != 0 || s.Losses != (pgleases.Losses{}) {
		t.Errorf("a client that was just opened has trust and no lease, and its stats are %+v", s)
	}
	l := joined(t, c, "work", 4)
	untilOwns(t, l, 4)
	until(t, "it listens", func() bool { return c.Stats().Listening })
	var last time.Time
	for range 5 {
		beats(t, c, 1)
		var s pgleases.Stats
		until(t, fmt.Sprintf("trust and age are of one heartbeat: together %v", most), func() bool { // a moment behind is right too
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
	if s := c.Stats(); s.Leases != 1 || s.Owned != 4 || s.Gains != 4 || s.Draining != 0 || !s.DrainingSince.IsZero() || s.Reconnects != 0 {
		t.Errorf("it has gained 4 partitions of 1 lease and nothing else, and its stats are %+v", s)
	}
}

func TestTheStatusViewsShowWhatGoesOn(t *testing.T) {
	t.Parallel()
	pool, _, cb, a := twoClients(t, 6)
	execute(t, pool, `SELECT 1 FROM pgleases.status, pgleases.members_status`)
	if n := value[int](t, pool, `SELECT count(*) FROM pgleases.status WHERE lease = 'work' AND owner = 'a' AND epoch > 0
		AND since BETWEEN clock_timestamp() - interval '1 minute' AND clock_timestamp()
		AND moving_to IS NULL AND draining_since IS NULL`); n != 6 {
		t.Errorf("%d of 6 partitions are shown as owned, not 6", n)
	}
	hold := a.Hold(t.Context())
	defer hold.Release()
	b := joined(t, cb, "work", 6, pgleases.WithWeight(2))
	until(t, "four are shown as moving", func() bool {
		return value[int](t, pool, `SELECT count(*) FROM pgleases.status WHERE owner = 'a' AND moving_to = 'b'
			AND draining_since BETWEEN since AND clock_timestamp()`) == 4
	})
	members := func() string {
		t.Helper()
		return value[string](t, pool, `SELECT string_agg(concat_ws(' ', lease, client, owned, share, weight,
				heartbeat_age BETWEEN interval '0' AND interval '2 seconds'), ', ' ORDER BY client) FROM pgleases.members_status`)
	}
	if got, want := members(), "work a 6 2.00 1 t, work b 0 4.00 2 t"; got != want {
		t.Errorf("members are %q, not %q", got, want)
	}
	for _, n := range hold.Values() {
		p, _ := hold.Partition(n)
		if epoch := value[int64](t, pool, `SELECT epoch FROM pgleases.status WHERE partition = $1`, n); epoch != p.Epoch {
			t.Errorf("the view shows %v under epoch %d", p, epoch)
		}
	}
	hold.Release()
	untilOwns(t, b, 4)
	if got, want := members(), "work a 2 2.00 1 t, work b 4 4.00 2 t"; got != want {
		t.Errorf("members are %q, not %q", got, want)
	}
	if n := value[int](t, pool, `SELECT count(*) FROM pgleases.status WHERE moving_to IS NOT NULL OR draining_since IS NOT NULL`); n != 0 {
		t.Errorf("%d are shown as moving, not 0", n)
	}
	if err := errors.Join(a.Leave(t.Context()), b.Leave(t.Context())); err != nil {
		t.Fatal(err)
	}
	until(t, "none is shown with an owner", func() bool {
		return value[int](t, pool, `SELECT count(*) FROM pgleases.status WHERE owner IS NULL AND since IS NULL`) == 6
	})
}

func TestPartitionForIsTheSameInSQL(t *testing.T) {
	t.Parallel()
	pool := newPool(t, pgtest.Database(t))
	l := joined(t, newClient(t, pool), "work", 4097, pgleases.WithWeight(0))
	keys := []string{"", "a", "Straße", "🚢", strings.Repeat("x", 10_000)}
	for range 500 {
		keys = append(keys, fmt.Sprint(rand.Uint64()))
	}
	got := value[[]int](t, pool, `SELECT array_agg(pgleases.partition_for(key, 4097) ORDER BY n)
		FROM unnest($1::text[]) WITH ORDINALITY AS k (key, n)`, keys)
	for i, key := range keys {
		if want := l.PartitionFor(key); got[i] != want || want < 0 || want >= 4097 {
			t.Errorf("partition of %.20q: %d in SQL, %d here", key, got[i], want)
		}
	}
}

func TestAPartitionIsPrintedWithItsEpoch(t *testing.T) {
	t.Parallel()
	if got := fmt.Sprint(pgleases.Partition{Number: 7, Epoch: 1 << 32}); got != "7@4294967296" {
		t.Errorf("a partition is printed as %q", got)
	}
}

func TestMigrationsMayRace(t *testing.T) {
	t.Parallel()
	url := pgtest.EmptyDatabase(t)
	config := newPool(t, url).Config()
	config.MaxConns = 20
	pool := newPool(t, url+"&pool_max_conns=20")
	if _, err := pgleases.NewClient(t.Context(), pool, pgleases.WithoutMigration()); !errors.Is(err, pgleases.ErrSchema) {
		t.Errorf("without a schema: %v", err)
	}
	start := make(chan struct{})
	var all sync.WaitGroup
	for i := range 10 {
		all.Go(func() {
			<-start
			if i%2 == 0 {
				if err := pgleases.Migrate(t.Context(), pool); err != nil {
					t.Error(err)
				}
			} else if c, err := pgleases.NewClient(t.Context(), pool); err != nil {
				t.Error(err)
			} else {
				shut(t, c)
			}
		})
	}
	close(start)
	all.Wait()
	untilOwns(t, joined(t, newClient(t, pool, pgleases.WithoutMigration()), "work", 4), 4)
	if err := pgleases.Migrate(t.Context(), pool); err != nil {
		t.Errorf("once more: %v", err)
	}
}

func TestTheTextOfTheSchemaRunsAsItIs(t *testing.T) {
	t.Parallel()
	pool := newPool(t, pgtest.EmptyDatabase(t))
	for _, schema := range []string{"pgleases", `Odd "name"; --`} {
		text, err := pgleases.Schema(pgleases.WithSchema(schema))
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			execute(t, pool, text)
		}
		c := newClient(t, pool, pgleases.WithoutMigration(), pgleases.WithSchema(schema), pgleases.WithClientID("a"))
		l := joined(t, c, "work", 4)
		untilOwns(t, l, 4)
		guarded(t, pool, l, ownership(t, l, 3))
		quoted := pgx.Identifier{schema}.Sanitize()
		if n := value[int](t, pool, `SELECT count(*) FROM `+quoted+`.status WHERE owner = 'a'`); n != 4 {
			t.Errorf("in schema %s it owns %d", quoted, n)
		}
	}
}
