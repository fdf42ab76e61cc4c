//go:build unix

package proof_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/timeguard"
	"github.com/pgleases/pgleases/proof/pgserver"
)

// The cost and durability of statements, on servers without other load. The statements are sent one
// by one, as the engine sends them.

// A session is a session on a server of its own.
type session struct {
	*store.Conn
	t       testing.TB
	id      int64
	server  *pgserver.Server
	watcher *pgx.Conn // observes from a second connection
}

// newSession creates the tables and registers.
func newSession(t testing.TB, server *pgserver.Server, name string) *session {
	t.Helper()
	watcher := testkit.Must(pgx.Connect(t.Context(), server.URL()))(t)
	t.Cleanup(func() { _ = watcher.Close(context.Background()) })
	s := &session{t: t, id: rand.Int64N(1<<62) + 1, server: server, watcher: watcher}
	s.ok(store.Engine.Migrate(t.Context(), watcher, "pgleases"))
	s.connect()
	incarnation, _, err := s.Register(t.Context(), store.Registration{
		Session: s.id, ID: name, Process: s.id, TTL: time.Minute, Host: "host", PID: 1, StartedAt: time.Now(),
	})
	s.ok(err)
	if incarnation == 0 {
		t.Fatalf("%s was not registered", name)
	}
	return s
}

// connect opens the session's connection, once the server accepts connections.
func (s *session) connect() {
	s.t.Helper()
	config, err := pgx.ParseConfig(s.server.URL())
	s.ok(err)
	var conn *store.Conn
	until(s.t, "the server takes connections", func() bool {
		conn, err = store.NewConnector(config, nil, "pgleases", 20*time.Second).Connect(s.t.Context(), time.Second)
		return err == nil
	})
	s.t.Cleanup(conn.Close)
	s.Conn = conn
}

func (s *session) ok(err error) {
	s.t.Helper()
	testkit.OK(s.t, err)
}

func (s *session) beat() store.Beat {
	s.t.Helper()
	beat, err := s.Heartbeat(s.t.Context(), s.id, 0, store.Renewal{})
	s.ok(err)
	return beat
}

// marked marks the server incarnation, and returns it.
func (s *session) marked() store.Incarnation {
	s.t.Helper()
	s.ok(s.SetMarker(s.t.Context(), rand.Int64N(1<<62)+1))
	return s.beat().Server
}

func (s *session) join(lease string, partitions int) {
	s.t.Helper()
	_, err := s.Join(s.t.Context(), s.id, lease, partitions, store.Terms{Weight: 1}, 1)
	s.ok(err)
}

// give gives the partitions of a lease to sessions.
func (s *session) give(lease string, targets ...int64) {
	s.t.Helper()
	read, err := s.Snapshot(s.t.Context(), []string{lease}, false)
	s.ok(err)
	var moves []store.Move
	for i, target := range targets {
		moves = append(moves, store.Move{Lease: lease, Partition: i, Target: target})
	}
	next := store.NextPlan{After: 50 * time.Millisecond, OnlyLeftOver: true}
	applied, err := s.Apply(s.t.Context(), read, moves, next)
	s.ok(err)
	if !applied.Applied {
		s.t.Fatal("a plan was not applied")
	}
}

// asks returns the only value of a query.
func asks[T any](s *session, query string) (v T) {
	s.t.Helper()
	s.ok(s.watcher.QueryRow(s.t.Context(), query).Scan(&v))
	return v
}

func (s *session) does(statement string) {
	s.t.Helper()
	_, err := s.watcher.Exec(s.t.Context(), statement, pgx.QueryExecModeSimpleProtocol)
	s.ok(err)
}

// quiet returns a server without other writes: only the test's statements write to its log and
// disk. No snapshot of autovacuum keeps old rows.
func quiet(t testing.TB) *pgserver.Server {
	t.Helper()
	return pgserver.Private(t, pgserver.WithSettings(map[string]string{
		"wal_level": "minimal", "max_wal_senders": "0", "autovacuum": "off", "wal_writer_delay": "10s",
	}))
}

func TestMarkerAndStartTimeDetectRestarts(t *testing.T) {
	t.Parallel()
	timeguard.Run(t, func(t *timeguard.Try) {
		server := pgserver.Private(t)
		s := newSession(t, server, "a")
		if marker := s.beat().Server.Marker; marker != 0 {
			t.Errorf("before one was drawn, the boot marker is %d, not 0", marker)
		}
		run := s.marked()
		if again := s.marked(); again != run {
			t.Errorf("marked again, the run %+v became %+v", run, again)
		}

		// Killing one backend makes the server restart all others.
		s.ok(server.Signal(int(s.watcher.PgConn().PID()), syscall.SIGKILL))
		until(t, "the server has noticed", func() bool {
			_, err := s.Heartbeat(t.Context(), s.id, 0, store.Renewal{})
			return err != nil
		})
		s.connect()
		crashed := s.beat()
		want := store.Incarnation{Timeline: run.Timeline, Started: run.Started}
		if crashed.Server != want || !crashed.Alive {
			t.Errorf("after a crash the incarnation is %+v, not %+v, and the session lives: %v",
				crashed.Server, want, crashed.Alive)
		}
		marked := s.marked()
		if marked.Marker == run.Marker || marked.Marker == 0 {
			t.Errorf("after a crash marker %d follows %d", marked.Marker, run.Marker)
		}
		s.ok(server.Restart(t.Context(), pgserver.Fast))
		s.connect()
		restarted := s.beat().Server
		same := restarted.Marker == marked.Marker && restarted.Timeline == run.Timeline
		if !same || restarted.Started <= run.Started {
			t.Errorf("after a restart the incarnation is %+v, before it was %+v", restarted, marked)
		}
	})
}

// A heartbeat is one HOT update of one row, costs little log, and waits for no flush.
func TestAHeartbeatCostsLittle(t *testing.T) {
	t.Parallel()
	timeguard.Run(t, func(t *timeguard.Try) {
		s := newSession(t, quiet(t), "a")
		for l := range 20 {
			s.join(fmt.Sprint("l", l), 8)
		}
		s.marked() // with a heartbeat
		const before, beats = 200, 1000
		for range before { // full-page images
			s.beat()
		}
		insert := func() int64 { return asks[int64](s, "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint") }
		written := insert()
		flushes, last := 0, ""
		start := time.Now()
		for range beats {
			s.beat()
			if flushed := asks[string](s, "SELECT pg_current_wal_flush_lsn()::text"); flushed != last {
				flushes++
				last = flushed
			}
		}
		perBeat := float64(insert()-written) / beats
		t.Logf("%.1f bytes of log per heartbeat, %d flushes in %v of %d heartbeats",
			perBeat, flushes-1, time.Since(start), beats)
		if perBeat > 130 {
			t.Errorf("a heartbeat writes %.1f bytes of log, not 130 at most", perBeat)
		}
		if limit := 2 + int(10*time.Since(start).Seconds()); flushes > limit {
			missed(t, start, time.Since(start), "%d flushes in %v, not %d at most", flushes, time.Since(start), limit)
		}
		s.Conn.Close() // reports its statistics
		const all = 1 + before + beats
		until(t, "the statistics are all there", func() bool {
			return asks[int](s, "SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = 'clients'") >= all
		})
		updates := asks[int](s, "SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = 'clients'")
		hot := asks[int](s, "SELECT n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'clients'")
		others := asks[int](s, `SELECT sum(n_tup_upd)::int FROM pg_stat_user_tables
			WHERE relname NOT IN ('clients', 'server')`)
		if updates != all || hot < all*99/100 || others != 0 {
			t.Errorf("%d heartbeats were %d updates, %d of them HOT, and %d of other tables", all, updates, hot, others)
		}
	})
}

func TestWritesAreDurableUnderAnySetting(t *testing.T) {
	t.Parallel()
	timeguard.Run(t, func(t *timeguard.Try) {
		server := quiet(t)
		first := newSession(t, server, "first")
		first.does(asynchronous)
		flushed := ""
		// waited reports whether a statement waited for the disk since the last call. No other
		// activity flushes the log soon.
		waited := func() bool {
			before := flushed
			flushed = asks[string](first, "SELECT pg_current_wal_flush_lsn()::text")
			return flushed != before
		}
		durable := func(what string) {
			t.Helper()
			if !waited() {
				t.Errorf("%s is not on disk", what)
			}
		}
		waited()
		a := newSession(t, server, "a")
		durable("a registration")
		b := newSession(t, server, "b")
		run := a.marked()
		waited()
		a.join("l", 4)
		durable("a join that makes the lease")
		b.join("l", 4)
		durable("a join")
		a.give("l", a.id, a.id, b.id, b.id)
		durable("an apply that gives")
		a.give("l", b.id)
		durable("an apply that asks")
		epoch := asks[int64](first, "SELECT epoch FROM pgleases.partitions WHERE lease = 'l' AND partition = 0")
		release := func(partition int, leaving ...store.Leave) {
			t.Helper()
			of := []store.Release{{Lease: "l", Partition: partition, Epoch: epoch}}
			_, err := a.Release(t.Context(), a.id, of, leaving, 1)
			a.ok(err)
		}
		release(0)
		durable("a release")
		a.ok(a.Fence(t.Context(), a.id, []store.Release{{Lease: "l", Partition: 1, Epoch: epoch}}))
		durable("a fence")
		epoch++
		release(1, store.Leave{Lease: "l", Now: true})
		durable("leaving")
		claimed, err := b.Claim(t.Context(), []string{"l"})
		b.ok(err)
		if len(claimed) != 1 {
			t.Errorf("claimed %q, not l", claimed)
		}
		durable("a claim")
		gone, err := a.End(t.Context(), a.id)
		a.ok(err)
		if !gone {
			t.Error("the session that left all is still there")
		}
		durable("the end of a session")

		first.does(`UPDATE pgleases.clients SET expires_at = clock_timestamp() - interval '1 hour' WHERE id = 'b';
		UPDATE pgleases.server SET next_check_at = clock_timestamp()`)
		c := newSession(t, server, "c")
		clock := c.beat().Clock
		waited()
		evicted, err := c.Evict(t.Context(), clock, time.Hour, 6*time.Second, run)
		c.ok(err)
		if len(evicted.IDs) != 1 {
			t.Errorf("evicted are %q, not b", evicted.IDs)
		}
		durable("an eviction")
		first.does("UPDATE pgleases.server SET accepted_timeline = 77")
		waited()
		generation, err := c.AcceptServer(t.Context(), time.Hour, run, 0)
		c.ok(err)
		if generation == 0 {
			t.Error("the server was not accepted")
		}
		durable("a settlement")
		c.beat()
		if waited() {
			t.Error("a heartbeat waits for the disk, or this test would not notice")
		}
		first.does("SET synchronous_commit = remote_write") // a stricter setting stays
		setting := asks[string](first, `SELECT CASE WHEN pgleases.settings(true, 1)
			THEN current_setting('synchronous_commit') END`)
		if setting != "remote_write" {
			t.Errorf("with remote_write set, %s is", setting)
		}
	})
}
