package store_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/connect"
	. "github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/timeguard"
)

// live is a client whose connection holds a liveness lock, under that key.
func (f *fixture) live(id string) (c *client, key int64) {
	f.Helper()
	c, key = f.client(id), -random()/2
	f.ok(c.pg().HoldLiveness(f.ctx, c.session, key))
	return c, key
}

func (c *client) lookOut(session, digest int64) Liveness {
	c.f.Helper()
	return testkit.Must(c.pg().WatchLiveness(c.f.ctx, session, digest))(c.f)
}

// sees returns what a watching client sees.
func (c *client) sees() Liveness {
	c.f.Helper()
	return c.lookOut(0, 0)
}

// countsInTime skips a test on a server that refuses fast failover.
func (f *fixture) countsInTime() {
	f.Helper()
	if version := f.sql.PgConn().ParameterStatus("server_version"); version < "15" {
		f.Skip("fast failover is refused on PostgreSQL " + version)
	}
}

// sever ends a client's connection as the end of its process does.
func (c *client) sever() { _ = c.pg().Raw().PgConn().Conn().Close() }

// pid returns the server process of a client.
func (c *client) pid() int { return int(c.pg().Raw().PgConn().PID()) }

// seesDie severs a client, and waits until it is gone, and counted as abandoned.
func (c *client) seesDie(victim *client) {
	c.f.Helper()
	before, pid := c.sees().Ends.Abandoned, victim.pid()
	victim.sever()
	c.f.gone(pid)
	c.f.until("it is counted as abandoned", func() bool { return c.sees().Ends.Abandoned > before })
}

// seesTerminated makes the server end one of its processes, and waits until it is gone, and counted
// as killed.
func (c *client) seesTerminated(pid int) {
	c.f.Helper()
	before := c.sees().Ends.Killed
	c.f.exec("SELECT pg_terminate_backend($1)", pid)
	c.f.gone(pid)
	c.f.until("it is counted as killed", func() bool { return c.sees().Ends.Killed > before })
}

// absent returns what is known of a session whose lock a server process held.
func (f *fixture) absent(session, key int64, pid int) Absence {
	f.Helper()
	expiry := value[int64](f, `
		SELECT (extract(epoch FROM expires_at) * 1000000)::bigint FROM clients WHERE session = $1`, session)
	return Absence{Session: session, Presence: key, PID: pid, Expiry: expiry}
}

// abandon makes a session count as abandoned, and waits until it does.
func (f *fixture) abandon(w *client) {
	f.Helper()
	before := w.sees().Ends.Abandoned
	_ = f.raw().PgConn().Conn().Close()
	f.until("a session is counted as abandoned", func() bool { return w.sees().Ends.Abandoned > before })
}

// gone waits until a server process is gone.
func (f *fixture) gone(pid int) {
	f.Helper()
	f.until("the process is gone", func() bool {
		return value[int](f, "SELECT count(*) FROM pg_stat_activity WHERE pid = $1", pid) == 0
	})
}

// absence returns what a client knows that has seen the lock held, and then checks again. ends are
// the counters of the first check.
func (f *fixture) absence(w, victim *client, key int64, end func()) (a Absence, since SessionEnds) {
	f.Helper()
	seen := w.sees()
	pid := seen.Held[key]
	expect(f.TB, pid, victim.pid(), "process that holds the lock")
	end()
	return f.absent(victim.session, key, pid), seen.Ends
}

func TestEvictDisconnectedRequiresACrash(t *testing.T) {
	t.Parallel()
	dies := func(_ *fixture, w, victim *client) { w.seesDie(victim) }
	cases := map[string]struct {
		end     func(f *fixture, w, victim *client)
		change  func(f *fixture, a *Absence, run *Incarnation)
		evicted bool
	}{
		"its process crashed": {end: dies, evicted: true},
		"it lives":            {end: func(f *fixture, w, _ *client) { f.abandon(w) }},
		"it has closed the connection": {end: func(f *fixture, w, victim *client) {
			victim.pg().Close()
			f.gone(victim.pid())
		}},
		"the server has ended it": {end: func(f *fixture, w, victim *client) {
			w.seesTerminated(victim.pid())
			f.abandon(w)
		}},
		"the server has ended another": {end: func(f *fixture, w, victim *client) {
			dies(f, w, victim)
			w.seesTerminated(int(f.raw().PgConn().PID()))
		}},
		"a fatal error has ended it": {end: func(f *fixture, w, victim *client) {
			before := w.sees().Ends.Fatal
			f.ok(victim.pg().Exec(f.ctx, "SELECT pg_catalog.set_config('idle_session_timeout', '1', false)"))
			f.gone(victim.pid())
			f.until("it is counted as fatal", func() bool { return w.sees().Ends.Fatal > before })
			f.abandon(w)
		}},
		"the counters were reset": {end: func(f *fixture, w, victim *client) {
			f.exec("SELECT pg_stat_reset()")
			f.until("they are", func() bool { return w.sees().Ends.Reset > 0 })
			dies(f, w, victim)
		}},
		"it was renewed": {end: dies, change: func(f *fixture, a *Absence, _ *Incarnation) {
			f.exec("UPDATE clients SET expires_at = expires_at + interval '1 microsecond' WHERE session = $1",
				a.Session)
		}},
		"it has been here on another connection": {end: dies, change: func(f *fixture, a *Absence, _ *Incarnation) {
			other := f.conn()
			f.ok(other.HoldLiveness(f.ctx, a.Session, a.Presence-1))
			other.Close()
			f.gone(int(other.Raw().PgConn().PID()))
		}},
		"its lock is held": {
			end:    func(f *fixture, w, _ *client) { f.abandon(w) },
			change: func(_ *fixture, a *Absence, _ *Incarnation) { a.PID = 0 },
		},
		"its process at the server is not gone": {end: dies, change: func(f *fixture, a *Absence, _ *Incarnation) {
			a.PID = int(f.sql.PgConn().PID())
		}},
		"another server": {end: dies, change: func(_ *fixture, _ *Absence, run *Incarnation) {
			run.Timeline++
		}},
		"the server was restarted": {end: dies, change: func(_ *fixture, _ *Absence, run *Incarnation) {
			run.Started++
		}},
		"the server has recovered": {end: dies, change: func(_ *fixture, _ *Absence, run *Incarnation) {
			run.Marker++
		}},
	}
	for _, name := range testkit.Some(slices.Sorted(maps.Keys(cases))...) {
		test := cases[name]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := freshFixture(t)
			f.countsInTime()
			w, _ := f.live("w")
			victim, key := f.live("victim")
			w.join("l", 2)
			victim.join("l", 2)
			run := w.run()
			a, since := f.absence(w, victim, key, func() { test.end(f, w, victim) })
			if test.change != nil {
				test.change(f, &a, &run)
			}
			got := testkit.Must(w.pg().EvictDisconnected(f.ctx, []Absence{a}, since, run))(f)
			expect(t, slices.Equal(got.IDs, []string{"victim"}), test.evicted, "evicted")
			expect(t, fmt.Sprint(got.Hosts, got.PIDs) == "[host] [4711]", test.evicted, "with its host and pid")
			expect(t, slices.Equal(got.ToPlan, []string{"l"}), test.evicted, "a plan is due")
			isGone := len(f.tables().Clients) == 1 && len(f.tables().Members) == 1
			expect(t, isGone, test.evicted, "it is gone from the tables")
			isLater := value[bool](f, "SELECT next_check_at > clock_timestamp() + interval '1 second' FROM server")
			expect(t, isLater, true, "the next check is not due yet")
		})
	}
}

func TestNoMoreSessionsAreEvictedThanWereAbandoned(t *testing.T) {
	t.Parallel()
	timeguard.Run(t, noMoreSessionsAreEvictedThanWereAbandoned)
}

func noMoreSessionsAreEvictedThanWereAbandoned(t *timeguard.Try) {
	f := freshFixture(t)
	f.countsInTime()
	w, _ := f.live("w")
	victim, victimKey := f.live("victim")
	closed, closedKey := f.live("closed")
	run := w.run()
	a, since := f.absence(w, victim, victimKey, func() { w.seesDie(victim) })
	b := f.absent(closed.session, closedKey, closed.pid())
	closed.pg().Close()
	f.gone(b.PID)
	got := testkit.Must(w.pg().EvictDisconnected(f.ctx, []Absence{a, b}, since, run))(f)
	expect(t, len(got.IDs), 0, "evicted, where one of two was abandoned")
	release := f.lock("SELECT FROM clients WHERE session = $1 FOR UPDATE", victim.session)
	began := time.Now()
	got = testkit.Must(w.pg().EvictDisconnected(f.ctx, []Absence{a}, since, run))(f)
	expect(t, len(got.IDs), 0, "evicted, where it is locked")
	const most = 4 * time.Second
	if took := time.Since(began); took > most {
		t.Missed(began, most, "what is locked was waited for, for %v", took)
	}
	release()
	two := []Absence{a, {Session: random(), Presence: -random()}}
	got = testkit.Must(w.pg().EvictDisconnected(f.ctx, two, since, run))(f)
	expect(t, strings.Join(got.IDs, " "), "victim", "evicted")
}

func TestTheTwoLowestSessionsWithALockWatch(t *testing.T) {
	t.Parallel()
	f := freshFixture(t)
	f.client("without a lock")
	clients, keys := make(map[int64]*client), make(map[int64]int64)
	for i := range 4 {
		c, key := f.live(fmt.Sprint(i))
		clients[c.session], keys[c.session] = c, key
	}
	var order []int64
	for session := range clients {
		order = append(order, session)
	}
	slices.Sort(order)
	for i, session := range order {
		look := clients[session].lookOut(session, 0)
		expect(t, look.Watches, i < 2, fmt.Sprintf("number %d watches", i+1))
		expect(t, len(look.Held), map[bool]int{true: 4}[i < 2], "locks that are held")
		for session, key := range keys {
			if i < 2 {
				expect(t, look.Held[key], clients[session].pid(), "process")
			}
		}
	}
	w, last := clients[order[1]], clients[order[3]]
	known := w.sees().Digest
	expect(t, w.lookOut(w.session, known).Held == nil, true, "known keys are not returned again")
	f.exec("INSERT INTO presences VALUES (-1, -1), (-2, -2)") // sessions that have gone
	expect(t, w.lookOut(w.session, known).Watches, true, "it watches still")
	f.live("next")
	expect(t, value[int](f, "SELECT count(*) FROM presences"), 5, "sessions with a lock")
	known = w.sees().Digest
	sent := value[int](f, "SELECT cardinality(held) + cardinality(pids) FROM watch_liveness(0, $1)", known)
	expect(t, sent, 0, "nor sent")
	last.sever()
	f.until("the lock is free", func() bool { return len(w.lookOut(0, known).Free) == 1 })
	look := w.lookOut(0, known)
	expect(t, len(look.Held), 4, "locks that are held")
	expect(t, look.Free[0].Session, last.session, "the session whose lock is free")
	expect(t, look.Free[0].Presence, keys[last.session], "its lock")
}

// A tap is a network connection that a test can observe and end.
type tap struct {
	net.Conn
	t      *taps
	former []byte // in the data that is read, to be replaced
	latter []byte
}

type taps struct {
	mu     sync.Mutex // guards what follows
	events []string
	conns  []net.Conn
	deaf   bool // new connections get no answer
}

func (ts *taps) note(event string) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	ts.events = append(ts.events, event)
}

func (ts *taps) isDeaf() {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	ts.deaf = true
}

func (ts *taps) noted() string {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	return strings.Join(slices.Compact(ts.events), " ") // a connection may be closed more than once
}

func (c *tap) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if i := bytes.Index(p[:n], c.former); len(c.former) > 0 && i >= 0 {
		copy(p[i:n], c.latter)
	}
	return n, err
}

func (c *tap) Write(p []byte) (int, error) {
	if len(p) > 0 && p[0] == 'X' {
		c.t.note("farewell")
	}
	return c.Conn.Write(p)
}

func (c *tap) Close() error {
	c.t.note("close")
	return c.Conn.Close()
}

// plain returns the connection without the tap, which hides what the kernel reports.
const plain = "plain"

// fast is a connector with fast failover, through a relay that the test can end, and taps.
func (f *fixture) fast(ttl time.Duration, former, latter string) (*Connector, *taps) {
	f.Helper()
	config, ts := f.config(), new(taps)
	version := f.sql.PgConn().ParameterStatus("server_version")[:2]
	if former == "" && version < "15" { // the connection's side is the same there
		former, latter = "server_version\x00"+version, "server_version\x0015"
	}
	dial := config.DialFunc
	config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		ts.mu.Lock()
		deaf := ts.deaf
		ts.mu.Unlock()
		if deaf {
			select {
			case <-ctx.Done():
				return nil, ctx.Err()
			case <-f.Context().Done(): // or what pgx still cancels would wait for longer than the test
				return nil, f.Context().Err()
			}
		}
		server, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer listener.Close()
		mine, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			return nil, err
		}
		other, err := listener.Accept()
		if err != nil {
			return nil, err
		}
		relay := func(to, from net.Conn) {
			_, _ = io.Copy(to, from)
			_, _ = to.Close(), from.Close()
		}
		go relay(other, server)
		go relay(server, other)
		ts.mu.Lock()
		defer ts.mu.Unlock()
		ts.conns = append(ts.conns, other)
		if former == plain {
			return mine, nil
		}
		return &tap{mine, ts, []byte(former), []byte(latter)}, nil
	}
	cr := NewConnector(config, nil, f.schema, time.Second)
	cr.FastFailover = ttl
	return cr, ts
}

func TestConnectionEndIsReportedBeforeOwnClose(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	f := freshFixture(t)
	type given struct {
		*Conn
		taps *taps
	}
	severed := func(g given) { _ = g.taps.conns[0].Close() }
	for name, test := range map[string]struct {
		end  func(t *testing.T, g given)
		told string // the expected events, in order
	}{
		"closed": {func(_ *testing.T, g given) { g.Close() }, "end farewell close"},
		"a statement that was given up": {func(t *testing.T, g given) {
			g.SetDirect(false) // so that it is not canceled, and the server answers late
			ctx, cancel := context.WithTimeout(f.ctx, 10*time.Millisecond)
			defer cancel()
			if err := g.Exec(ctx, "SELECT pg_catalog.pg_sleep(0.2)"); err == nil || !g.Closed() {
				t.Errorf("it goes on: %v", err)
			}
			<-g.Raw().PgConn().CleanupDone()
		}, "end farewell close"},
		"a statement that cannot be canceled": {func(t *testing.T, g given) {
			g.taps.isDeaf()
			ctx, cancel := context.WithTimeout(f.ctx, 10*time.Millisecond)
			defer cancel()
			if err := g.Exec(ctx, "SELECT pg_catalog.pg_sleep(1)"); err == nil || !g.Closed() {
				t.Errorf("it goes on: %v", err)
			}
			g.Close()
		}, "end close"},
		"a wait that was given up": {func(t *testing.T, g given) {
			ctx, cancel := context.WithTimeout(f.ctx, 10*time.Millisecond)
			defer cancel()
			if err := g.Wait(ctx); err == nil || g.Closed() {
				t.Errorf("it has ended: %v", err)
			}
		}, ""},
		"by the other side, while it waits": {func(_ *testing.T, g given) {
			g.taps.isDeaf() // pgx cancels before all else
			severed(g)
			_ = g.Wait(f.ctx)
		}, "end"},
		"by the server, with a word": {func(_ *testing.T, g given) {
			f.exec("SELECT pg_terminate_backend($1)", g.Raw().PgConn().PID())
			_ = g.Wait(f.ctx)
			g.Close()
		}, "close"},
	} {
		t.Run(name, func(t *testing.T) {
			cr, ts := f.fast(time.Minute, "", "")
			conn := testkit.Must(cr.Connect(f.ctx, time.Minute))(f)
			defer conn.Close()
			conn.OnEnd(func() { ts.note("end") })
			test.end(t, given{conn, ts})
			expect(t, ts.noted(), test.told, "what came")
		})
	}
	t.Run("before anybody asks", func(t *testing.T) {
		cr, ts := f.fast(time.Minute, "", "")
		conn := testkit.Must(cr.Connect(f.ctx, time.Minute))(f)
		conn.Close()
		conn.OnEnd(func() { ts.note("end") })
		expect(t, strings.Contains(ts.noted(), "end"), true, "told")
	})
	t.Run("by the other side, without a reader", func(t *testing.T) {
		if runtime.GOOS != "linux" {
			t.Skip("this kernel does not tell")
		}
		if version := f.sql.PgConn().ParameterStatus("server_version"); version < "15" {
			t.Skip("fast failover is refused on PostgreSQL " + version)
		}
		cr, ts := f.fast(time.Minute, plain, "")
		conn := testkit.Must(cr.Connect(f.ctx, time.Minute))(f)
		defer conn.Close()
		conn.OnEnd(func() { ts.note("end") })
		expect(t, conn.Severed(), false, "severed at first")
		severed(given{conn, ts})
		f.until("it is severed", conn.Severed)
		expect(t, ts.noted(), "", "what came")
	})
}

func TestCutNetworkKeepsServerSessionBeyondTTL(t *testing.T) {
	t.Parallel()
	f := freshFixture(t)
	f.exec("ALTER DATABASE " + pgx.Identifier{f.sql.Config().Database}.Sanitize() + " SET idle_session_timeout = '1h'")
	cr, _ := f.fast(40*time.Second, "", "")
	conn := f.connect(cr)
	for name, want := range map[string]string{
		"tcp_user_timeout": "100000", "tcp_keepalives_idle": "100", "idle_session_timeout": "0",
	} {
		expect(t, valueOn[string](f, conn.Raw(), "SHOW "+name), want, name)
	}
}

func TestFastFailoverIsRefusedWhereTheServerCountsLate(t *testing.T) {
	t.Parallel()
	f := freshFixture(t)
	version := f.sql.PgConn().ParameterStatus("server_version")
	cr, _ := f.fast(time.Minute, "server_version\x00"+version[:2], "server_version\x0014")
	conn, err := cr.Connect(f.ctx, time.Minute)
	if !errors.Is(err, connect.ErrNoFastFailover) {
		t.Fatalf("%v, %v", conn, err)
	}
	if text := err.Error(); !strings.Contains(text, "14") || !strings.Contains(text, "15 or later") {
		t.Error(text)
	}
}

// The server ends the connection of a client, which continues with its ownerships and is about to
// connect again. A watching client checks closely, finds that the session was killed, and crashes.
// The other one, which checks at the same time, must not take that check for the client's own lock.
func TestALookAtALockIsNotTakenForTheLock(t *testing.T) {
	t.Parallel()
	f := freshFixture(t)
	f.countsInTime()
	w, _ := f.live("w")
	other, _ := f.live("other")
	victim, key := f.live("victim")
	run := w.run()
	a, since := f.absence(w, victim, key, func() { w.seesTerminated(victim.pid()) })
	looks := other.pg().Raw()
	tx := testkit.Must(looks.Begin(f.ctx))(f)
	var evicted []string
	f.ok(tx.QueryRow(f.ctx, `
		SELECT evicted FROM pgleases.evict_disconnected(ARRAY[$1::bigint], ARRAY[$2::bigint],
			ARRAY[$3::int], ARRAY[$4::bigint], $5, $6, $7, $8, $9, $10, $11, 1000, '')`,
		a.Session, a.Presence, a.PID, a.Expiry, since.Abandoned, since.Killed, since.Fatal, since.Reset,
		run.Timeline, run.Started, run.Marker).Scan(&evicted))
	expect(t, len(evicted), 0, "evicted by the first")
	seen := w.sees()
	pid, held := seen.Held[key]
	f.ok(tx.Commit(f.ctx))

	w.seesDie(other)
	if held {
		a.PID, since = pid, seen.Ends // as an engine has it that checked at that time
	}
	got := testkit.Must(w.pg().EvictDisconnected(f.ctx, []Absence{a}, since, run))(f)
	expect(t, len(got.IDs), 0, "evicted, though it lives")
	expect(t, held, false, "the lock counts as held while it is looked at")
}

// Any role may wait for a lock that it sees in pg_locks, and gets it when the client crashes.
func TestWatchReturnsOtherSessionAtALock(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	f := freshFixture(t)
	a, key := f.live("a")
	expect(t, a.sees().Stranger, 0, "stranger at first")
	stranger := f.raw()
	done := later(func() error { _, err := stranger.Exec(f.ctx, "SELECT pg_advisory_lock($1)", key); return err })
	pid := int(stranger.PgConn().PID())
	f.blocked(stranger)
	look := a.sees()
	expect(t, look.Stranger, pid, "stranger that waits")
	expect(t, len(look.Held), 1, "locks that are held")
	w := f.client("w")
	a.sever()
	f.ok(done())
	look = w.sees()
	expect(t, look.Stranger, pid, "stranger that holds it")
	expect(t, len(look.Free), 0, "locks that are free")
}

// A statement that a client has given up with its connection may arrive late, when the client has
// another connection.
func TestALateStatementTakesNoSessionToALockOfBefore(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	f := freshFixture(t)
	f.countsInTime()
	w, _ := f.live("w")
	victim := f.client("victim")
	first := -random() / 2
	second := first - 1 // the client's keys fall
	earlier := &client{Conn: f.conn(), f: f}
	f.ok(victim.pg().HoldLiveness(f.ctx, victim.session, second))
	_ = earlier.pg().HoldLiveness(f.ctx, victim.session, first) // late
	seen, run := w.sees(), w.run()
	a := f.absent(victim.session, first, earlier.pid())
	w.seesDie(earlier)
	got := testkit.Must(w.pg().EvictDisconnected(f.ctx, []Absence{a}, seen.Ends, run))(f)
	expect(t, len(got.IDs), 0, "evicted, though it lives on another connection")
	counts := value[int64](f, "SELECT presence FROM presences WHERE session = $1", victim.session)
	expect(t, counts, second, "the lock that counts")
}

// If the row cannot be written, the lock must not stay in the server's lock table, because a client
// tries again and again.
func TestNoLockIsLeftWhereItCouldNotBeWritten(t *testing.T) {
	t.Parallel()
	f := freshFixture(t)
	c := f.client("c")
	c.Conn = f.connect(f.connector(time.Second)) // waits for 250 ms
	release := f.lock("LOCK TABLE presences IN EXCLUSIVE MODE")
	for range 2 {
		if err := c.pg().HoldLiveness(f.ctx, c.session, -random()); err == nil {
			t.Fatal("it is written, though the table is locked")
		}
	}
	release()
	locks := value[int](f, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = $1",
		c.pg().Raw().PgConn().PID())
	expect(t, locks, 0, "locks")
}
