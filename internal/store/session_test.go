package store_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/pgleases/pgleases/internal/fakestore"
	. "github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/worker"
)

func TestRepeatingARegistrationChangesNothing(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		c := f.any()
		r := registration(random(), "a", 0, random(), 6*time.Second)
		first, _, err := c.Register(f.ctx, r)
		f.ok(err)
		state := func() string { // but for instants
			t := f.tables()
			row, identity := t.Clients[r.Session], t.Identities["a"]
			row.ExpiresAt, identity.UsedAt = 0, 0
			return fmt.Sprintf("%d, %d: %+v, %+v", len(t.Clients), len(t.Identities), row, identity)
		}
		before := state()
		again, _, err := c.Register(f.ctx, r)
		f.ok(err)
		expect(t, again, first, "incarnation")
		expect(t, state(), before, "rows")
	})
}

func TestTheNewerProcessOfAnIDSupersedesTheOlder(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		c := f.any()
		older := registration(random(), "a", 0, random(), 6*time.Second)
		newer := registration(random(), "a", 0, random(), 6*time.Second)
		newer.Host, newer.PID = "newer", 12
		var err error
		older.Incarnation, _, err = c.Register(f.ctx, older)
		f.ok(err)
		newer.Incarnation, _, err = c.Register(f.ctx, newer)
		f.ok(err)
		if newer.Incarnation <= older.Incarnation {
			t.Fatalf("incarnations %d, then %d", older.Incarnation, newer.Incarnation)
		}
		beat := testkit.Must(c.Heartbeat(f.ctx, older.Session, 0, Renewal{}))(f)
		expect(t, beat.Incarnation, newer.Incarnation, "incarnation that the older hears of")

		older.Session = random() // it registers again
		got, other, err := c.Register(f.ctx, older)
		f.ok(err)
		isNewer := other != nil && other.Host == "newer" && other.PID == 12 && other.StartedAt.Equal(newer.StartedAt)
		if got != 0 || !isNewer {
			t.Fatalf("the older one got incarnation %d, other process %+v", got, other)
		}
		_, registered := f.tables().Clients[older.Session]
		expect(t, registered, false, "the older registered")
		superseder := testkit.Must(c.Superseder(f.ctx, "a"))(f)
		expect(t, superseder.Host, "newer", "superseder")

		newer.Session = random()
		got, _, err = c.Register(f.ctx, newer)
		f.ok(err)
		expect(t, got, newer.Incarnation, "incarnation of the newer, registered anew")
		expect(t, f.tables().Identities["a"].Incarnation, newer.Incarnation, "recorded")
	})
}

func TestLateRegistrationSupersedesNoSuccessor(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		c := f.any()
		const program = 5 << ProcessBits
		register := func(process int64) int64 {
			t.Helper()
			incarnation, _, err := c.Register(f.ctx, registration(random(), "a", 0, process, time.Second))
			f.ok(err)
			return incarnation
		}
		first := register(program + 1)
		second := register(program + 3)
		expect(t, register(program+2), 0, "incarnation of one that was given up")
		expect(t, f.tables().Identities["a"].Incarnation, second, "recorded")
		expect(t, len(f.tables().Clients), 2, "sessions")
		if third := register(2 * program); first >= second || second >= third {
			t.Errorf("incarnations %d, %d, then %d of another program", first, second, third)
		}
		expect(t, register(program+4) > second, true, "a program that came back is newer")
	})
}

func TestWhoWasFrozenUntilItsIDWasForgottenIsTheOlder(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		c := f.any()
		frozen := registration(random(), "a", 0, random(), time.Second)
		var err error
		frozen.Incarnation, _, err = c.Register(f.ctx, frozen)
		f.ok(err)
		frozen.Incarnation = max(1, frozen.Incarnation-24*60*60) // it was yesterday
		f.edit(func(t *fakestore.Tables, _ int64) {
			clear(t.Clients)
			clear(t.Identities)
		})
		newer, _, err := c.Register(f.ctx, registration(random(), "a", 0, random(), time.Second))
		f.ok(err)
		frozen.Session = random()
		got, _, err := c.Register(f.ctx, frozen)
		f.ok(err)
		if got != 0 || newer <= frozen.Incarnation {
			t.Errorf("the newer has incarnation %d, the frozen one %d, and got %d", newer, frozen.Incarnation, got)
		}
	})
}

func TestConcurrentRegistrationsDiffer(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	f := newFixture(t)
	drawn := make([]string, 12)
	errs := make([]error, len(drawn))
	var wg sync.WaitGroup
	for i := range drawn {
		c := f.conn()
		wg.Go(func() {
			id := fmt.Sprint("id-", i%4) // of which three live processes may take each other's place
			var incarnation int64
			incarnation, _, errs[i] = c.Register(f.ctx, registration(random(), id, 0, random(), 6*time.Second))
			drawn[i] = fmt.Sprint(id, " ", incarnation)
			if incarnation == 0 {
				errs[i] = errors.Join(errs[i], errors.New("a registration is refused"))
			}
		})
	}
	wg.Wait()
	f.ok(errors.Join(errs...))
	slices.Sort(drawn)
	if len(slices.Compact(drawn)) != 12 {
		t.Fatalf("drew %v", drawn)
	}
}

// The fourth process that wants the ID of a live one is refused, until that one falls silent.
func TestIDThatLiveProcessesTakeIsContended(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		register := func() (int64, *Process) {
			t.Helper()
			incarnation, newer, err := f.any().Register(f.ctx, registration(random(), "a", 0, random(), 6*time.Second))
			f.ok(err)
			return incarnation, newer
		}
		for i := range 4 {
			if incarnation, newer := register(); incarnation == 0 {
				t.Fatalf("registration %d is refused: %+v", i, newer)
			}
		}
		incarnation, newer := register()
		if incarnation != 0 || newer == nil || !newer.Contended || newer.PID != 4711 {
			t.Errorf("the fifth has incarnation %d, and is refused by %+v", incarnation, newer)
		}
		if i := f.tables().Identities["a"]; i.Takeovers != 3 || i.TakenFrom != "host host, pid 4711" {
			t.Errorf("the identity is %+v", i)
		}
		f.edit(func(t *fakestore.Tables, _ int64) {
			for session, row := range t.Clients {
				row.ExpiresAt -= 4_000_000 // the last heartbeats were 4 s ago
				t.Clients[session] = row
			}
		})
		if incarnation, newer := register(); incarnation == 0 {
			t.Errorf("it is refused by a silent process: %+v", newer)
		}
	})
}

func TestASessionThatACopyRenewedIsAliveForTheCopyOnly(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a := f.client("a")
		marker, now := a.run().Marker, time.Now()
		beat := func(last Renewal, what string, alive bool) Renewal {
			t.Helper()
			now = now.Add(time.Second) // the time distinguishes renewals
			f.setClock(now)
			before := f.tables().Clients[a.session]
			beat := testkit.Must(a.Heartbeat(f.ctx, a.session, 0, last))(f)
			expect(t, beat.Alive, alive, what+": alive")
			expect(t, beat.Copied, !alive, what+": copied")
			if !alive {
				expect(t, f.tables().Clients[a.session], before, what+": the row")
			}
			return Renewal{beat.Clock, beat.Server.Marker}
		}
		first := beat(Renewal{}, "nothing is known", true)
		second := beat(first, "the last is known", true)
		if row := f.tables().Clients[a.session]; row.ExpiresAt != second.Clock+usualTTL.Microseconds() {
			t.Errorf("renewed at %d, it expires at %d", second.Clock, row.ExpiresAt)
		}
		third := beat(second, "the copy", true)
		beat(second, "the original", false)
		beat(second, "the original again", false)
		third = beat(third, "the copy again", true)

		f.expireIn(a, 0) // a crash lost the last heartbeats
		beat(third, "an earlier renewal", true)
		beat(Renewal{first.Clock, 0}, "it is not known whether an answer was lost", true)
		beat(Renewal{first.Clock, marker + 1}, "on another server incarnation", true)
		f.setMarker(0)
		beat(Renewal{first.Clock, marker}, "on a run without a boot marker", true)
		f.kill()
		gone := testkit.Must(a.Heartbeat(f.ctx, a.session, 0, Renewal{first.Clock, marker}))(f)
		expect(t, gone.Alive || gone.Copied, false, "without a row: alive or copied")
		if gone.Server.Started == 0 || gone.Server.Timeline == 0 || gone.AcceptedTimeline == 0 || gone.Clock == 0 {
			t.Errorf("without a row: %+v", gone)
		}
	})
}

func TestHeartbeatReturnsEachJoinedLease(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a, b := f.client("a"), f.client("b")
		a.join("one", 1)
		a.join("two", 1)
		b.join("three", 1)
		a.give("one", a.session)
		f.lease("two", func(l *fakestore.Lease, clock int64) { // the clock stepped back
			l.NextCheckAt = clock + time.Hour.Microseconds()
		})
		beat := a.beat()
		slices.SortFunc(beat.Leases, func(x, y LeaseBeat) int { return len(y.Name) - len(x.Name) })
		slices.SortFunc(beat.Leases, func(x, y LeaseBeat) int { return int(y.Generation - x.Generation) })
		if got := fmt.Sprint(beat.Leases); got != "[{one 2 -1µs 1} {two 1 0s 1}]" {
			t.Fatal(got)
		}
		before := f.tables().Clients[a.session].ExpiresAt
		if left := time.Duration(before-a.beat().Clock) * time.Microsecond; left > 6*time.Second || left < time.Second {
			t.Fatalf("expires in %v", left)
		}
		if due := b.beat().CheckDueIn; due <= 0 || due > 6*time.Second {
			t.Fatalf("check due in %v", due)
		}
		f.server(func(s *fakestore.Server, clock int64) { s.NextCheckAt = clock + time.Hour.Microseconds() })
		expect(t, b.beat().CheckDueIn, 0, "check due in")
	})
}

func TestALockedRowIsWaitedForABoundedTime(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	f := newFixture(t)
	a := f.client("a")
	quick := f.connect(f.connector(time.Second)) // waits for 250 ms
	release := f.lock("SELECT FROM clients FOR UPDATE")
	within(f, 2*time.Second, func() time.Duration {
		start := time.Now()
		_, err := quick.Heartbeat(f.ctx, a.session, 0, Renewal{})
		took := time.Since(start)
		if Code(err) != "55P03" || worker.Whose(err) != worker.Lock || took < 200*time.Millisecond {
			t.Fatalf("after %v: %v, %v", took, err, worker.Whose(err))
		}
		return took
	})
	release()
	beat := testkit.Must(quick.Heartbeat(f.ctx, a.session, 0, Renewal{}))(f)
	expect(t, beat.Alive, true, "alive afterwards")
	expect(t, valueOn[string](f, quick.Raw(), "SHOW lock_timeout"), "0", "lock_timeout of the connection")
	expect(t, valueOn[string](f, quick.Raw(), "SHOW synchronous_commit"), "on", "synchronous_commit of the connection")
}

func TestAStatementThatIsGivenUpEndsAtTheServer(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	f := newFixture(t)
	a := f.client("a")
	release := f.lock("LOCK TABLE clients") // for which lock_timeout is set too late
	within(f, time.Second, func() time.Duration {
		a.Conn = f.conn()
		pid := a.pg().Raw().PgConn().PID()
		ctx, cancel := context.WithCancel(f.ctx)
		wait := later(func() error { _, err := a.Heartbeat(ctx, a.session, 0, Renewal{}); return err })
		f.blocked(a.pg().Raw())
		cancel()
		start := time.Now()
		if err := wait(); err == nil {
			t.Fatal("no error")
		}
		took := time.Since(start)
		f.until("no backend waits any more", func() bool {
			return value[int](f, "SELECT count(*) FROM pg_locks WHERE NOT granted AND pid = $1", int64(pid)) == 0
		})
		return took
	})
	release()
	if a.Closed() {
		t.Log("the connection is closed")
		return
	}
	expect(t, a.beat().Alive, true, "alive")
}

func TestAClosedClientLeavesNothing(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a := f.client("a")
		a.join("l", 1)
		a.end(false)
		expect(t, len(f.tables().Clients), 1, "sessions while it is a member")
		a.release(nil, "l")
		a.end(true)
		a.end(true)
		now := f.tables()
		rows := fmt.Sprint(len(now.Clients), len(now.Members), len(now.Identities))
		expect(t, rows, "0 0 1", "clients, members, identities")
	})
}

func TestANewSessionIsCheckedNoLaterThanItCanExpire(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	f := newFixture(t)
	a := f.clientTTL("a", 10*time.Minute)
	quick := f.conn()
	// An eviction has its snapshot when the session of a short TTL comes.
	run := a.run()
	f.checkNow()
	release := f.halt("DELETE ON clients")
	clock := a.beat().Clock
	evicting := later(func() error { _, err := a.Evict(f.ctx, clock, time.Hour, usualTTL, run); return err })
	f.blocked(a.pg().Raw())
	registering := later(func() error {
		_, _, err := quick.Register(f.ctx, registration(random(), "b", 0, random(), time.Second))
		return err
	})
	f.until("the registration waits or is done", func() bool {
		return value[bool](f, `
			SELECT cardinality(pg_blocking_pids($1::int)) > 0 OR EXISTS (SELECT FROM clients WHERE id = 'b')`,
			int64(quick.Raw().PgConn().PID()))
	})
	release()
	f.ok(evicting())
	f.ok(registering())
	if due := value[float64](f, "SELECT extract(epoch FROM next_check_at - clock_timestamp()) FROM server"); due > 1 {
		t.Fatalf("the next check is due in %f s", due)
	}
}
