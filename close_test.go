package pgleases_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/pgleasestest"
)

// With an ended context, Close and Leave give up what they could not release within the grace time.
// On a slow machine that may happen. If a call took that long, the test tries again; only the last
// try counts unconditionally.
const (
	grace = 2 * time.Second
	tries = 5
)

// closedFor checks what a lease and its client return after their end.
func closedFor(t *testing.T, c *pgleases.Client, l *pgleases.Lease, want error) {
	t.Helper()
	testkit.Receive(t, "Changed is closed", l.Changed())
	testkit.Receive(t, "Changed is closed", l.Changed())
	if got := l.Values(); got == nil || len(got) != 0 || l.Owns(0) {
		t.Errorf("ended, it owns %v, not nothing", got)
	}
	if _, ok := l.Partition(0); ok {
		t.Error("ended, it has an ownership of partition 0")
	}
	if d := l.TrustDeadline(); !d.IsZero() {
		t.Errorf("ended, its trust deadline is %v, not zero", d)
	}
	hold := l.Hold(t.Context())
	if _, held := hold.Partition(0); held || hold.Values() == nil || len(hold.Values()) != 0 {
		t.Errorf("ended, a hold has %#v", hold.Values())
	}
	hold.Release()
	if err := l.Leave(t.Context()); err != nil {
		t.Errorf("Leave once more: %v", err)
	}
	for call, err := range map[string]error{
		"Wait":      l.Wait(t.Context()),
		"Run":       l.Run(t.Context(), neverCalled(t)),
		"Guard":     l.Guard(t.Context(), nil, pgleases.Partition{}),
		"GuardSQL":  l.GuardSQL(t.Context(), nil, pgleases.Partition{}),
		"SetWeight": l.SetWeight(t.Context(), 2),
	} {
		if !errors.Is(err, want) {
			t.Errorf("%s returned %v, not %v", call, err, want)
		}
	}
	if c.Err() != nil {
		testkit.Receive(t, "Done is closed", c.Done())
		_, err := c.Lease(t.Context(), l.Name(), l.NumPartitions())
		if !errors.Is(err, want) || !errors.Is(c.Err(), want) {
			t.Errorf("Lease returned %v and Err %v, not %v", err, c.Err(), want)
		}
		if s := c.Stats(); s.Trust != 0 || s.Leases != 0 || s.Owned != 0 || s.Draining != 0 || s.Listening {
			t.Errorf("ended, its stats are %+v: it should have no trust, leases, or partitions, and not listen", s)
		}
	}
}

func TestCloseHandsOverWhatIsFreeWithoutItsHandoffDelay(t *testing.T) {
	t.Parallel()
	const partitions = 16
	pool := testkit.Pool(t, direct(t))
	team := newCrew(t)
	b := joined(t, newClient(t, pool, pgleases.WithClientID("b")), "work", partitions)
	var c *pgleases.Client
	var a *pgleases.Lease
	team.do(func() {
		c = newClient(t, pool, pgleases.WithClientID("a"))
		a = joined(t, c, "work", partitions, pgleases.WithHandoffDelay(time.Hour))
	})
	untilShared(t, "each owns half", []int{8, 8}, a, b) // and Values was read
	p := ownership(t, a, a.Values()[0])
	before := connections(t, pool)
	began := time.Now()
	team.do(func() { // with a context that can end
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		if err := closes(t, c, ctx); err != nil {
			t.Error(err)
		}
	})
	t.Logf("closed after %v", time.Since(began))
	if got := a.Values(); len(got) != 0 {
		t.Errorf("closed, it owns %v, not nothing", got)
	}
	untilOwns(t, b, partitions)
	t.Logf("owned again after %v", time.Since(began))
	wraps(t, "the ownership ended with", context.Cause(p.Context()), pgleases.ErrClosed)
	team.gone()
	until(t, "the connection is gone", func() bool { return connections(t, pool) == before-1 })
	if n := testkit.Value[int](t, pool, `SELECT count(*) FROM pgleases.clients WHERE id = 'a'`); n != 0 {
		t.Error("the session is still there")
	}
	closedFor(t, c, a, pgleases.ErrClosed)
	if s := c.Stats(); s.Losses != (pgleases.Losses{Closed: 8}) {
		t.Errorf("it lost %+v, not 8 by its end and nothing else", s.Losses)
	}
}

// worksOnTheUpperHalf runs a lease of four partitions: 0 and 1 are free, 2 and 3 in work until
// finish.
func worksOnTheUpperHalf(t *testing.T, l *pgleases.Lease) (finish func(), ended <-chan error) {
	t.Helper()
	begun, done := make(chan struct{}, 100), make(chan struct{})
	j := run(t, l, func(ctx context.Context, p pgleases.Partition) error {
		begun <- struct{}{}
		if p.Number >= 2 {
			<-done
		}
		return nil
	})
	for range 4 {
		testkit.Receive(t, "a callback for every partition", begun)
	}
	finish = sync.OnceFunc(func() { close(done) })
	t.Cleanup(finish)
	return finish, j.done
}

func TestCloseWaitsForWorkAndHandsOverTheRestMeanwhile(t *testing.T) {
	t.Parallel()
	pool, ca, cb, a := twoClients(t, 4)
	finish, _ := worksOnTheUpperHalf(t, a)
	p := ownership(t, a, 2)
	b := joined(t, cb, "work", 4, pgleases.WithWeight(0))
	testkit.OK(t, b.SetWeight(t.Context(), 1)) // the wait for a handoff is included
	testkit.Becomes(t, pool, "a is asked for half", 2, `
		SELECT count(*) FROM pgleases.status WHERE owner = 'b' OR moving_to = 'b'`)
	done := make(chan error, 1)
	go func() { done <- ca.Close(context.Background()) }()
	until(t, "a shows nothing, b owns what is free", func() bool {
		return len(a.Values()) == 0 && slices.Equal(numbers(b), []int{0, 1})
	}, a, b)
	beats(t, ca, 3) // it continues to renew
	beats(t, cb, 3)
	if got := ownedBy(t, pool, "a"); !slices.Equal(got, []int{2, 3}) {
		t.Errorf("while Close waits, a owns %v, not 2 and 3", got)
	}
	if err := p.Context().Err(); err != nil {
		t.Errorf("while Close waits, an ownership ended: %v", context.Cause(p.Context()))
	}
	guarded(t, pool, a, p)
	select {
	case err := <-done:
		t.Fatalf("Close did not wait for work: %v", err)
	default:
	}
	finish()
	testkit.OK(t, testkit.Receive(t, "Close returns", done))
	untilOwns(t, b, 4)
	wraps(t, "the ownership ended with", context.Cause(p.Context()), pgleases.ErrClosed)
}

func TestCloseWithEndedContextReleasesAndListsTheRest(t *testing.T) {
	t.Parallel()
	why := errors.New("the lights went out")
	for _, when := range []string{"before", "during"} {
		try := func(t *testing.T, last bool) (late bool) {
			pool := testkit.Pool(t, direct(t))
			b := joined(t, newClient(t, pool, pgleases.WithClientID("b")), "work", 4,
				pgleases.WithWeight(0), pgleases.WithHandoffDelay(0))
			team := newCrew(t)
			var c *pgleases.Client
			team.do(func() { c = newClient(t, pool, pgleases.WithClientID("a")) })
			a := joined(t, c, "work", 4)
			untilOwns(t, a, 4)
			finish, ended := worksOnTheUpperHalf(t, a)
			p := ownership(t, a, 3)
			if err := b.SetWeight(t.Context(), 1); err != nil { // so that b is there to take what is free
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancelCause(context.Background())
			defer cancel(nil)
			if when == "before" {
				cancel(why)
			}
			done := make(chan error, 1)
			began := time.Now()
			go team.do(func() { done <- c.Close(ctx) })
			if when == "during" {
				until(t, "b owns what is free", func() bool { return slices.Equal(numbers(b), []int{0, 1}) }, b)
				select {
				case err := <-done:
					t.Fatalf("Close did not wait for work: %v", err)
				default:
				}
				began = time.Now()
				cancel(why)
			}
			err := testkit.Receive(t, "Close returns", done)
			if time.Since(began) >= grace && !last {
				return true
			}
			until(t, "b owns what is free", func() bool { return slices.Equal(numbers(b), []int{0, 1}) }, b)
			t.Logf("Close returned %v after its context had ended: %v", time.Since(began), err)
			wraps(t, "Close", err, why)
			refused(t, "Close", err, `"work"`, "2-3")
			wraps(t, "an ownership in work ended with", context.Cause(p.Context()), pgleases.ErrClosed)
			if got := numbers(b); !slices.Equal(got, []int{0, 1}) {
				t.Errorf("what was in work moved at once: b owns %v, not 0 and 1", got)
			}
			if again := c.Close(context.Background()); again == nil || again.Error() != err.Error() {
				t.Errorf("a second Close returned %v, the first %v", again, err)
			}
			expire(t, pool, "a")
			untilOwns(t, b, 4)
			until(t, "the connection is gone", func() bool { return connections(t, pool) == 1 })
			finish()
			team.gone()
			wraps(t, "Run returned", testkit.Receive(t, "Run returns", ended), pgleases.ErrClosed)
			closedFor(t, c, a, pgleases.ErrClosed)
			return false
		}
		t.Run(when, func(t *testing.T) {
			t.Parallel()
			for n := 1; try(t, n == tries); n++ {
			}
		})
	}
}

// The immediate effects of Close and the effects of its context's end may happen in either order;
// it takes several rounds to see both.
func TestCloseEndsHandoffsWithTheirOwnCause(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t, pgtest.MigratedDatabase(t))
	for i := range 5 {
		c := newClient(t, pool)
		l := joined(t, c, fmt.Sprint("work ", i), 2)
		untilOwns(t, l, 2)
		hold := l.Hold(t.Context())
		testkit.OK(t, l.SetWeight(t.Context(), 0))
		untilOwns(t, l, 0)
		err := closes(t, c, canceled(nil))
		wraps(t, "Close", err, context.Canceled)
		wraps(t, "the end of the hold", context.Cause(hold.Context()), pgleases.ErrClosed)
		hold.Release()
	}
}

func TestCloseIsIdempotentAndLegalAtAnyTime(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t, direct(t))
	team := newCrew(t)
	team.do(func() {
		before := newClient(t, pool)
		if before.Err() != nil {
			t.Errorf("Err of a client that lives is %v, not nil", before.Err())
		}
		if err := errors.Join(closes(t, before, t.Context()), closes(t, before, canceled(nil))); err != nil {
			t.Errorf("before any lease, Close returned %v, not nil", err)
		}
		if !errors.Is(before.Err(), pgleases.ErrClosed) {
			t.Errorf("it ended with %v", before.Err())
		}
		if err := closes(t, newClient(t, pool), canceled(nil)); err != nil {
			t.Errorf("before any lease, with an ended context, Close returned %v, not nil", err)
		}

		var all sync.WaitGroup
		// Leases are joined, and are waited for, while it closes.
		c := newClient(t, pool)
		for i := range 8 {
			all.Go(func() {
				l, err := c.Lease(context.Background(), fmt.Sprint(i%4), 4)
				if err != nil && !errors.Is(err, pgleases.ErrClosed) {
					t.Error(err)
				} else if err == nil {
					err = errors.Join(l.Run(context.Background(), untilAsked), l.Wait(context.Background()))
					if !errors.Is(err, pgleases.ErrClosed) {
						t.Error(err)
					}
				}
			})
		}
		if err := closes(t, c, context.Background()); err != nil {
			t.Error(err)
		}
		all.Wait()
	})
	team.gone()
	testkit.Becomes(t, pool, "no rows are left", 0, `
		SELECT (SELECT count(*) FROM pgleases.clients) + (SELECT count(*) FROM pgleases.members)`)
	testkit.Until(t, "all connections end", func() bool { return connections(t, pool) == 0 })
	if n := testkit.Value[int](t, pool, `SELECT count(*) FROM pgleases.partitions WHERE owner IS NOT NULL`); n != 0 {
		t.Errorf("%d partitions have an owner that is gone", n)
	}
	if n := pool.Stat().TotalConns(); n == 0 {
		t.Error("the pool was closed")
	}
}

// The statement that ends the session returns its row, and its commit fails: it is sent again.
func TestASessionWhoseEndIsNotCommittedIsEndedAgain(t *testing.T) {
	t.Parallel()
	url := pgtest.FreshDatabase(t)
	pool := ownersPool(t, url)
	testkit.Execute(t, pool, `CREATE SEQUENCE public.commits; GRANT USAGE ON SEQUENCE public.commits TO PUBLIC;
		CREATE FUNCTION public.fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			IF nextval('public.commits') = 1 THEN RAISE 'no commit' USING ERRCODE = '40001'; END IF; RETURN NULL; END $$;
		CREATE CONSTRAINT TRIGGER fail AFTER DELETE ON pgleases.clients DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.fail()`)
	shut(t, newClient(t, testkit.Pool(t, url)))
	if n := testkit.Value[int](t, pool, "SELECT count(*) FROM pgleases.clients"); n != 0 {
		t.Errorf("%d sessions are left", n)
	}
}

func TestLeaveGivesBackOneLeaseAndKeepsTheOthers(t *testing.T) {
	t.Parallel()
	_, ca, cb, a := twoClients(t, 4, pgleases.WithHandoffDelay(time.Hour))
	other := joined(t, ca, "other", 2)
	untilOwns(t, other, 2)
	kept := []pgleases.Partition{ownership(t, other, 0), ownership(t, other, 1)}
	changed := other.Changed()
	b := joined(t, cb, "work", 4, pgleases.WithWeight(0), pgleases.WithHandoffDelay(0))
	if len(a.Values()) != 4 { // and so it was read
		t.Fatalf("a owns %v, not all", a.Values())
	}
	began := time.Now()
	testkit.OK(t, b.SetWeight(t.Context(), 1))
	testkit.OK(t, a.Leave(t.Context()))
	closedFor(t, ca, a, pgleases.ErrClosed)
	untilOwns(t, b, 4)
	t.Logf("owned again %v after Leave", time.Since(began))
	if err := errors.Join(a.Leave(t.Context()), a.Leave(canceled(nil))); err != nil {
		t.Errorf("Leave again returned %v, not nil", err)
	}
	for i, p := range kept {
		if now, ok := other.Partition(i); !ok || now != p {
			t.Errorf("of another lease, %v became %v, %v", p, now, ok)
		}
	}
	select {
	case <-changed:
		t.Error("another lease changed")
	default:
	}
	if err := ca.Err(); err != nil {
		t.Errorf("Leave ended the client: %v", err)
	}

	again := joined(t, ca, "work", 4, pgleases.WithHandoffDelay(0)) // with other options than before
	if again == a {
		t.Error("joined anew, the lease is the one that was left")
	}
	untilShared(t, "each owns half", []int{2, 2}, again, b)
	closedFor(t, ca, a, pgleases.ErrClosed)
}

func TestLeaveWaitsForWorkAndLeaseForLeave(t *testing.T) {
	t.Parallel()
	pool, ca, cb, a := twoClients(t, 4)
	finish, _ := worksOnTheUpperHalf(t, a)
	p := ownership(t, a, 2)
	b := joined(t, cb, "work", 4, pgleases.WithWeight(0))
	left, joining := make(chan error, 2), make(chan *pgleases.Lease, 1)
	go func() { left <- a.Leave(context.Background()) }()
	go func() { left <- a.Leave(context.Background()) }()
	until(t, "it is leaving", func() bool { return len(numbers(a)) == 0 }, a)
	go func() {
		again, err := ca.Lease(context.Background(), "work", 4, pgleases.WithWeight(3), pgleases.WithHandoffDelay(0))
		if err != nil {
			t.Error(err)
		}
		joining <- again
	}()
	testkit.OK(t, b.SetWeight(t.Context(), 1))
	until(t, "b owns what is free", func() bool { return slices.Equal(numbers(b), []int{0, 1}) }, b)
	why := errors.New("no patience")
	if err := a.Leave(canceled(why)); !errors.Is(err, why) || !strings.Contains(err.Error(), "2-3") {
		t.Errorf("Leave with an ended context returned %v, not %v with 2-3", err, why)
	}
	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := ca.Lease(short, "work", 4); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Lease while it is left, with a short context: %v", err)
	}
	beats(t, ca, 3)
	guarded(t, pool, a, p)
	if len(left) != 0 || len(joining) != 0 || p.Context().Err() != nil {
		t.Errorf("%d calls of Leave and %d of Lease returned during the work, its context's error is %v",
			len(left), len(joining), p.Context().Err())
	}
	finish()
	for range 2 {
		if err := testkit.Receive(t, "Leave returns", left); err != nil {
			t.Error(err)
		}
	}
	again := testkit.Receive(t, "Lease returns", joining)
	if again == nil || again == a {
		t.Fatal("it is the lease that was left")
	}
	untilShared(t, "shares are by weight", []int{3, 1}, again, b)
	wraps(t, "the ownership ended with", context.Cause(p.Context()), pgleases.ErrClosed)
}

// ends are the two ways to end a lease.
var ends = map[string]func(context.Context, *pgleasestest.Lease) error{
	"Close": func(ctx context.Context, l *pgleasestest.Lease) error { return l.Client().Close(ctx) },
	"Leave": func(ctx context.Context, l *pgleasestest.Lease) error { return l.Leave(ctx) },
}

func TestCloseAndLeaveWaitForTheDrainTimeoutAtMost(t *testing.T) {
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const timeout = time.Minute
				lease := pgleasestest.NewLease("work", 2, pgleases.WithDrainTimeout(timeout))
				defer lease.Close()
				lease.Gain(0, 1)
				hold := lease.Hold(t.Context())
				defer hold.Release()
				began := time.Now()
				err := end(context.Background(), lease)
				if took := time.Since(began); took < timeout || took > timeout+time.Second {
					t.Errorf("it returned %v after %v, and the drain timeout is %v", err, took, timeout)
				}
				wraps(t, "the hold ended with", context.Cause(hold.Context()), pgleases.ErrDrainTimeout)
			})
		})
	}
}

// Close and Leave wait for the callback that calls them: it is work.
func TestCloseAndLeaveInCallbackNameThePartition(t *testing.T) {
	why := errors.New("waited for long enough")
	for name, end := range ends {
		for _, own := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, with a context of its own: %v", name, own), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					lease := pgleasestest.NewLease("work", 4)
					defer lease.Close()
					lease.Gain(2)
					if own { // otherwise their callbacks may be named too
						lease.Gain(0, 1, 3)
					}
					given, cancel := context.WithCancelCause(context.Background())
					defer cancel(nil)
					returned := make(chan error, 1)
					j := run(t, lease.Lease, func(ctx context.Context, p pgleases.Partition) error {
						switch {
						case p.Number != 2:
							return untilAsked(ctx, p)
						case own:
							returned <- end(given, lease)
						default:
							returned <- end(ctx, lease) // which ends ctx
						}
						return nil
					})
					if own {
						time.Sleep(time.Hour)
						if s := lease.Stats(); s.Draining != 1 || len(returned) > 0 {
							t.Errorf("what the others had was not handed over, or it returned too early: %+v", s)
						}
						cancel(why)
					}
					err := <-returned
					refused(t, name, err, `lease "work"`, "partitions 2 ", "still in work")
					if own {
						wraps(t, name, err, why)
					}
					wraps(t, "Run returned", <-j.done, pgleases.ErrClosed)
				})
			})
		}
	}
}

// The membership is found by the heartbeat after the session could not be ended, and left.
func TestCloseLeavesALeaseWhoseJoinCameLate(t *testing.T) {
	t.Parallel()
	url := direct(t)
	pool, wire := testkit.Pool(t, url), new(testkit.Wire)
	own := testkit.Must(pgx.ParseConfig(url))(t)
	own.DialFunc = wire.Dial
	c := testkit.Must(pgleases.NewClient(t.Context(), pool, pgleases.WithConnConfig(own)))(t)
	deliver := wire.Strand(".join_lease(", "t")
	ctx, giveUp := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := c.Lease(ctx, "late", 4)
		ended <- err
	}()
	testkit.Until(t, "the join is on its way", func() bool { return wire.Left() == 0 })
	giveUp()
	if err := testkit.Receive(t, "the call ends", ended); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	beats(t, c, 2)
	testkit.OK(t, deliver())
	wire.Count(".clients AS c USING settings")
	testkit.OK(t, c.Close(t.Context()))
	if n := wire.Counted(); n == 0 || n > 5 {
		t.Errorf("the end of the session was sent %d times", n)
	}
	if n := testkit.Value[int](t, pool, "SELECT count(*)::int FROM pgleases.members"); n != 0 {
		t.Errorf("%d members are left", n)
	}
}
