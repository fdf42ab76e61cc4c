//go:build unix

package proof_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/timeguard"
	"github.com/pgleases/pgleases/proof/faults"
	"github.com/pgleases/pgleases/proof/oracle"
	"github.com/pgleases/pgleases/proof/oracle/writes"
	"github.com/pgleases/pgleases/proof/pgserver"
	"github.com/pgleases/pgleases/proof/tally"
)

// databaseFaults are faults of a server under load.
var databaseFaults = []struct {
	name  string
	mutes bool // a session may end without a message from the server
	do    func(context.Context, *pgserver.Server) error
}{
	// All backends end, and the server recovers as after a crash. Neither its start time nor its
	// timeline shows that.
	{"kill -9 of a backend", true, func(ctx context.Context, s *pgserver.Server) error {
		return (&faults.Database{Server: s, URL: s.URL()}).KillBackend(ctx)
	}},
	{"fast restart", false, func(ctx context.Context, s *pgserver.Server) error {
		return s.Restart(ctx, pgserver.Fast)
	}},
	{"immediate restart", true, func(ctx context.Context, s *pgserver.Server) error {
		return s.Restart(ctx, pgserver.Immediate)
	}},
}

// Short outages of the database take no partition, and no partition has two owners. Each server has
// clients whose partitions only the fault could take, and clients whose partitions keep moving.
func TestShortOutageKeepsOwnership(t *testing.T) {
	t.Parallel()
	rounds := 15
	if brief() {
		rounds = 8
	}
	for _, fault := range databaseFaults {
		t.Run(fault.name, func(t *testing.T) {
			t.Parallel()
			timeguard.Run(t, func(t *timeguard.Try) {
				server := pgserver.Private(t)
				url := server.URL()
				// A short heartbeat makes short rounds.
				steady := newSteady(t, url, 6*time.Second, 200*time.Millisecond)
				steady.loses = fault.mutes && fast(t, steady.pool)
				moving := newMoving(t, url)
				history := newHistory(t, url)
				began := time.Now()
				for round := range rounds {
					moving.writes(t)
					steady.survives(t, round, func(ctx context.Context) error { return fault.do(ctx, server) })
					tally.Fault(t, fault.name)
					if t.Failed() {
						break
					}
				}
				writes := moving.stop(t)
				steady.stop(t)
				history.stop(t)
				t.Logf("%d rounds; server down: %s; then until all have heartbeat: %s; %d reads; %d epochs of %d",
					len(steady.down), figures(steady.down), figures(steady.silent),
					steady.reads, len(history.owners), len(history.newest))
				zombies := moving.effects.Zombies.Load()
				t.Logf("%d guarded writes, %d refused, %d to zombies; gains of the moving: %d",
					writes, moving.effects.Refused.Load(), zombies, moving.gains)
				if zombies == 0 || len(history.owners) < len(history.newest)+rounds/2 {
					tooLittle(t, began, "%d writes to zombies, %d epochs", zombies, len(history.owners))
				}
			})
		})
	}
}

// The hardest outage: heartbeats wait for no flush, so a crash loses the last ones, and then all
// clients seem to have expired long ago.
func TestLostHeartbeatsEvictNoClient(t *testing.T) {
	t.Parallel()
	t.Run("lost", func(t *testing.T) {
		t.Parallel()
		if quiet := crashAfterHeartbeats(t, "", ""); !quiet {
			t.Error("the log was written all the time")
		}
	})
	t.Run("as on Aurora", func(t *testing.T) { // the crash leaves the boot marker, so no heartbeat may be lost
		t.Parallel()
		const aurora = "CREATE FUNCTION pg_catalog.aurora_version() RETURNS text LANGUAGE sql AS 'SELECT version()'"
		if quiet := crashAfterHeartbeats(t, aurora, "ALTER TABLE pgleases.boot_marker SET LOGGED"); quiet {
			t.Error("heartbeats were not written to the log")
		}
	})
}

// crashAfterHeartbeats crashes a server under clients, when it has written nothing to the
// write-ahead log for longer than a TTL, or has written all the time. It executes one statement
// before the clients are opened, and one afterwards.
func crashAfterHeartbeats(t *testing.T, before, afterwards string) (quiet bool) {
	timeguard.Run(t, func(t *timeguard.Try) {
		rounds := 3
		if brief() {
			rounds = 1
		}
		const ttl, flushed = 5 * time.Second, 10 * time.Second
		settings := map[string]string{"wal_writer_delay": flushed.String(), "autovacuum": "off"}
		server := pgserver.Private(t, pgserver.WithSettings(settings))
		url := server.URL()
		testkit.Execute(t, testkit.Pool(t, url), before)
		steady := newSteady(t, url, ttl, 500*time.Millisecond, comesBackLate(t, url, 750*time.Millisecond))
		steady.loses = fast(t, steady.pool)
		testkit.Execute(t, steady.pool, afterwards)
		for round := range rounds {
			quiet = withoutFlush(t, url, ttl+ttl/6, flushed+ttl+2*ttl/6)
			steady.survives(t, round, (&faults.Database{Server: server, URL: url}).KillBackend)
			tally.Fault(t, "crash that loses heartbeats")
			if t.Failed() {
				break
			}
		}
		steady.stop(t)
		t.Logf("%d rounds; server down: %s; then until all have heartbeat: %s",
			len(steady.down), figures(steady.down), figures(steady.silent))
	})
	return quiet
}

// withoutFlush waits until the server has written nothing to the write-ahead log for a time, and
// reports whether that was so. A lock prevents the expiry check from writing. The check does not
// wait for the lock, and the crash ends it.
func withoutFlush(t testing.TB, url string, quiet, limit time.Duration) bool {
	locker, reader := connection(t, url), connection(t, url)
	testkit.Must(locker.Exec(t.Context(), "BEGIN; SELECT FROM pgleases.server FOR UPDATE"))(t)
	var written string
	since := time.Now()
	return comesTrue(limit, func() bool {
		var now string
		testkit.OK(t, reader.QueryRow(t.Context(), "SELECT pg_current_wal_lsn()::text").Scan(&now))
		if now != written {
			written, since = now, time.Now()
		}
		return time.Since(since) >= quiet
	})
}

// steady are clients that share a lease whose partitions do not move.
type steady struct {
	clients []*pgleases.Client
	leases  []*pgleases.Lease
	owned   [][]pgleases.Partition
	changed []<-chan struct{}
	pool    *pgxpool.Pool
	// The fault may end a connection without a message, and the trust with it; the client then gets
	// its partitions again.
	loses   bool
	session string // each client's first session; another session shows that it was evicted
	ttl     time.Duration
	bears   time.Duration // the longest time without a heartbeat
	opened  time.Time
	began   time.Time // when the last round began
	oracle  func() []oracle.Log
	down    []time.Duration // how long the server was down
	silent  []time.Duration // from then to the last client's first heartbeat
	reads   int64
}

// comesBackLate delays a client's reconnect. Until then its session looks expired to the others.
func comesBackLate(t testing.TB, url string, delay time.Duration) pgleases.Option {
	config := testkit.Must(pgx.ParseConfig(url))(t)
	var before atomic.Bool
	dial := config.DialFunc
	config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		if before.Swap(true) {
			pause(ctx, delay)
		}
		return dial(ctx, network, address)
	}
	return pgleases.WithConnConfig(config)
}

// newSteady opens the clients; the options are for the last one.
func newSteady(t testing.TB, url string, ttl, heartbeat time.Duration, last ...pgleases.Option) *steady {
	s := &steady{opened: time.Now(), began: time.Now(), ttl: ttl, bears: bears(ttl, heartbeat)}
	s.pool = testkit.Pool(t, url, size(4))
	leases := make(map[string]*pgleases.Lease)
	for i := range 3 {
		id := fmt.Sprintf("steady-%d", i)
		opts := []pgleases.Option{pgleases.WithTTL(ttl), pgleases.WithHeartbeat(heartbeat), quietly(t)}
		if i == 2 {
			opts = append(opts, last...)
		}
		c := opened(t, url, id, opts...)
		l := joined(t, c, "steady", 32, pgleases.WithHandoffDelay(0))
		s.clients, s.leases = append(s.clients, c), append(s.leases, l)
		leases[id] = l
	}
	waitFor(t, patience, "the steady clients share their lease", func() bool { return shared(s.leases...) })
	s.session = s.sessions(t)
	s.oracle = watched(t, leases)
	for _, l := range s.leases {
		s.changed = append(s.changed, l.Changed())
		var owned []pgleases.Partition
		for _, n := range l.Values() {
			p, ok := l.Partition(n)
			if !ok {
				missed(t, s.began, s.bears, "partition %d moved without a fault", n)
			}
			owned = append(owned, p)
		}
		s.owned = append(s.owned, owned)
	}
	return s
}

// survives runs a fault, which returns when it is over, and checks that no client lost a partition.
func (s *steady) survives(t testing.TB, round int, fault func(context.Context) error) {
	t.Helper()
	began := time.Now()
	s.began = began
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	testkit.OK(t, fault(ctx))
	back := time.Now()
	s.down = append(s.down, back.Sub(began))
	s.confirmed(t, back)
	s.silent = append(s.silent, time.Since(back))
	s.check(t, round)
}

// confirmed waits until all clients have sent a successful heartbeat after that moment.
func (s *steady) confirmed(t testing.TB, since time.Time) {
	t.Helper()
	for i, c := range s.clients {
		ok := comesTrue(s.ttl, func() bool { return c.Stats().HeartbeatAge < time.Since(since) })
		if !ok {
			missed(t, since, s.ttl, "%s: no heartbeat for %v, %v after the server came back",
				c.ID(), c.Stats().HeartbeatAge, time.Since(since))
		}
		// A client that lost its trust has it again once it has read what it owns.
		if !s.loses && s.leases[i].TrustDeadline().IsZero() {
			missed(t, s.began, s.bears, "%s is not trusted after a heartbeat", c.ID())
		}
	}
}

// sessions returns the session of each client. It retries, because the fault may have broken
// connections of the pool.
func (s *steady) sessions(t testing.TB) (all string) {
	t.Helper()
	waitFor(t, patience, "the sessions are known", func() bool {
		return s.pool.QueryRow(t.Context(), `SELECT string_agg(session::text, ' ' ORDER BY id)
			FROM pgleases.clients WHERE id LIKE 'steady-%'`).Scan(&all) == nil
	})
	return all
}

// check checks that every client still owns what it did at first, without a break and in the
// database too, and that no client was evicted.
func (s *steady) check(t testing.TB, round int) {
	t.Helper()
	if now := s.sessions(t); now != s.session {
		missed(t, s.began, s.bears, "round %d: of the sessions %s some were evicted: %s", round, s.session, now)
	}
	for i, l := range s.leases {
		if s.loses {
			s.takeAnew(t, i)
		}
		select {
		case <-s.changed[i]:
			missed(t, s.began, s.bears, "round %d: something changed for %s: it owns %v of %v now",
				round, s.clients[i].ID(), l.Values(), s.owned[i])
		default:
		}
		losses := s.clients[i].Stats().Losses
		losses.Handoff = 0 // from when it shared with later clients
		if s.loses {
			losses.TrustLost = 0
		}
		if losses != (pgleases.Losses{}) {
			missed(t, s.began, s.bears, "round %d: %s lost ownerships: %+v", round, s.clients[i].ID(), losses)
		}
		p := s.owned[i][rand.N(len(s.owned[i]))]
		if err := s.guarded(t, l, p); err != nil {
			missed(t, s.began, s.bears, "round %d: %s: %v", round, s.clients[i].ID(), err)
		}
	}
}

// takeAnew waits until a client owns what it did at first, under the same or later epochs, which
// count from now on.
func (s *steady) takeAnew(t testing.TB, i int) {
	t.Helper()
	l, had := s.leases[i], s.owned[i]
	waitFor(t, patience, s.clients[i].ID()+" owns what it did", func() bool {
		s.changed[i], s.owned[i] = l.Changed(), nil
		for _, before := range had {
			if p, ok := l.Partition(before.Number); ok && p.Epoch >= before.Epoch {
				s.owned[i] = append(s.owned[i], p)
			}
		}
		return len(s.owned[i]) == len(had) && len(l.Values()) == len(had)
	})
}

// guarded checks that Guard passes. It retries, because the fault may have broken connections of
// the pool.
func (s *steady) guarded(t testing.TB, l *pgleases.Lease, p pgleases.Partition) error {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var err error
	comesTrue(patience, func() bool {
		err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error { return l.Guard(ctx, tx, p) })
		return err == nil || faults.Refused(err)
	})
	return err
}

func (s *steady) stop(t testing.TB) {
	logs := s.oracle()
	verify(t, logs)
	for i, log := range logs { // ordered by client
		s.reads += log.Reads
		if n := len(log.Intervals); n != len(s.owned[i]) && !s.loses {
			missed(t, s.opened, s.bears, "%s: %d intervals of %d ownerships", log.Client, n, len(s.owned[i]))
		}
	}
}

// moving are clients whose partitions keep moving, under guarded writes.
type moving struct {
	clients []*pgleases.Client
	oracle  func() []oracle.Log
	effects *faults.Effects
	end     context.CancelFunc
	wait    sync.WaitGroup
	gains   int64
}

func newMoving(t testing.TB, url string) *moving { return newMovingOf(t, url, 2) }

// newMovingOf starts so many goroutines for each client that write.
func newMovingOf(t testing.TB, url string, writers int) *moving {
	pool := testkit.Pool(t, url, size(8))
	m := &moving{effects: faults.NewEffects(pool, "moving")}
	const partitions = 8
	testkit.OK(t, m.effects.Create(t.Context(), partitions))
	ctx, cancel := context.WithCancel(context.Background())
	m.end = func() { cancel(); m.wait.Wait() }
	t.Cleanup(m.end)
	leases := make(map[string]*pgleases.Lease)
	for i := range 3 {
		id := fmt.Sprintf("moving-%d", i)
		c := opened(t, url, id, pgleases.WithTTL(time.Second), pgleases.WithHeartbeat(200*time.Millisecond), quietly(t))
		l := joined(t, c, "moving", partitions, pgleases.WithHandoffDelay(0))
		m.clients = append(m.clients, c)
		leases[id] = l
		for range writers {
			m.wait.Go(func() { m.effects.Write(ctx, l, id) })
		}
		m.wait.Go(func() { // moves some partitions
			for ctx.Err() == nil {
				setting, cancel := context.WithTimeout(ctx, time.Second)
				_ = l.SetWeight(setting, rand.N(3)) // may fail while the server is down
				cancel()
				pause(ctx, rand.N(300*time.Millisecond))
			}
		})
	}
	m.oracle = watched(t, leases)
	return m
}

// writes waits for some more guarded writes.
func (m *moving) writes(t testing.TB) {
	t.Helper()
	enough := m.effects.Written.Load() + 5
	waitFor(t, patience, "guarded writes", func() bool { return m.effects.Written.Load() >= enough })
}

// gained returns how often partitions were gained.
func (m *moving) gained() (n int64) {
	for _, c := range m.clients {
		n += c.Stats().Gains
	}
	return n
}

// stop returns the number of guarded writes.
func (m *moving) stop(t testing.TB) int {
	m.end()
	verify(t, m.oracle())
	m.gains = m.gained()
	var ledger *writes.Ledger
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var err error
	if !comesTrue(patience, func() bool { // the pool's connections may be broken
		ledger, err = m.effects.Ledger(ctx)
		return err == nil
	}) {
		t.Fatal(err)
	}
	late := weighedWrites(t, ledger)
	if len(late) > 0 {
		t.Errorf("%d zombie writes: %s", len(late), strings.Join(late[:min(10, len(late))], "\n"))
	}
	return len(ledger.Writes)
}

// A history says which session owned which partition under which epoch, according to the tables.
type history struct {
	owners map[epochKey]int64 // session; 0: no owner
	newest map[partitionKey]int64
	stop   func(testing.TB)
}

type partitionKey struct {
	lease     string
	partition int
}

type epochKey struct {
	partitionKey
	epoch int64
}

// newHistory polls the table, on a connection that it replaces when it breaks.
func newHistory(t testing.TB, url string) *history {
	h := &history{owners: make(map[epochKey]int64), newest: make(map[partitionKey]int64)}
	ctx, cancel := context.WithCancel(context.Background())
	wrong := make(map[string]bool)
	var looks atomic.Int64
	var wait sync.WaitGroup
	wait.Go(func() {
		for ctx.Err() == nil {
			conn, err := pgx.Connect(ctx, url)
			if err != nil {
				pause(ctx, 50*time.Millisecond)
				continue
			}
			for h.look(ctx, conn, wrong) == nil {
				looks.Add(1)
				pause(ctx, 10*time.Millisecond)
			}
			_ = conn.Close(context.Background())
		}
	})
	end := func() { cancel(); wait.Wait() }
	t.Cleanup(end)
	h.stop = func(t testing.TB) {
		// One look at the state after the last fault.
		before := looks.Load()
		waitFor(t, patience, "a look at the table", func() bool { return looks.Load() > before+1 })
		end()
		for _, w := range slices.Sorted(maps.Keys(wrong)) {
			t.Error(w)
		}
	}
	return h
}

func (h *history) look(ctx context.Context, conn *pgx.Conn, wrong map[string]bool) error {
	rows, err := conn.Query(ctx, "SELECT lease, partition, epoch, coalesce(owner, 0) FROM pgleases.partitions")
	if err != nil {
		return err
	}
	var k partitionKey
	var epoch, owner int64
	_, err = pgx.ForEachRow(rows, []any{&k.lease, &k.partition, &epoch, &owner}, func() error {
		if before, known := h.owners[epochKey{k, epoch}]; known && before != owner {
			owners := fmt.Sprintf("epoch %d has two owners: %d, %d", epoch, before, owner)
			wrong[fmt.Sprintf("partition %d of %s: %s", k.partition, k.lease, owners)] = true
		}
		if epoch < h.newest[k] {
			wrong[fmt.Sprintf("partition %d of %s: epoch %d after %d", k.partition, k.lease, epoch, h.newest[k])] = true
		}
		h.owners[epochKey{k, epoch}] = owner
		h.newest[k] = epoch
		return nil
	})
	return err
}
