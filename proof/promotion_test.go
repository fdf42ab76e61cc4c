//go:build unix

package proof_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/timeguard"
	"github.com/pgleases/pgleases/proof/faults"
	"github.com/pgleases/pgleases/proof/oracle"
	"github.com/pgleases/pgleases/proof/oracle/locks"
	"github.com/pgleases/pgleases/proof/pgserver"
	"github.com/pgleases/pgleases/proof/tally"
)

// An asynchronous standby is promoted that missed the last handoffs. In each round there are
// clients whose partitions keep moving under guarded writes, and also:
//
//   - clients whose partitions did not move lately, so that both servers agree on them ("steady")
//   - clients that own partitions according to the standby, but have handed them over ("crew")
//   - a client that received them, which the standby does not know, and which can reach neither
//     server ("late"): the standby's state must not be accepted before that client has stopped
//   - a client that the standby knows, and that can reach neither server ("gone")
func TestAPromotedStandbyKeepsOneOwner(t *testing.T) {
	t.Parallel()
	timeguard.Run(t, func(t *timeguard.Try) {
		rounds := 3
		if brief() {
			rounds = 1
		}
		const ttl, shortTTL, heartbeat = 4 * time.Second, time.Second, 200 * time.Millisecond
		const silence = ttl - ttl/20 - heartbeat // a shorter one costs nothing
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		random := rand.New(rand.NewPCG(seed, 0))
		cutOff := random.IntN(2) == 0 // else stopped; alternating

		since := time.Now()
		c := newCluster(t, rounds+1)
		url := c.url(t, c.doors...)
		steady := newSteady(t, url, ttl, heartbeat)
		// A client whose statements get no answer gives up before all clients are back.
		soon := fast(t, steady.pool)
		moving := newMoving(t, url)
		const partitions = 8
		var logs []oracle.Log
		var watches []func() []oracle.Log
		join := func(url, id string, ttl time.Duration) (*pgleases.Client, *pgleases.Lease) {
			client := opened(t, url, id, pgleases.WithTTL(ttl), pgleases.WithHeartbeat(heartbeat), quietly(t))
			lease := joined(t, client, "crew", partitions, pgleases.WithHandoffDelay(0))
			watches = append(watches, watched(t, map[string]*pgleases.Lease{id: lease}))
			return client, lease
		}
		var clients []*pgleases.Client
		var crew []*pgleases.Lease
		for i := range 2 {
			client, lease := join(url, fmt.Sprintf("crew-%d", i), shortTTL)
			clients, crew = append(clients, client), append(crew, lease)
		}

		highest := make(map[partitionKey]int64)
		excused := false
		var promoted, returned, accepted, complete []time.Duration
		var unseen, lateHeld []int
		for round := range rounds {
			old, next := c.servers[round], c.servers[round+1]
			ways := []*faults.Proxy{newProxy(t, old.URL()), newProxy(t, next.URL())}
			apart := c.url(t, ways...)
			gone, goneLease := join(apart, fmt.Sprintf("gone-%d", round), ttl)
			withGone := append(crew, goneLease)
			waitFor(t, patience, "the lease is shared with the one that will be gone", func() bool {
				return shared(withGone...)
			})
			testkit.Must(connection(t, old.URL()).Exec(t.Context(), "CREATE TABLE IF NOT EXISTS missed (round int)"))(t)
			caughtUp(t, old, next)

			c.pipes[round].Freeze()
			late, lateLease := join(apart, fmt.Sprintf("late-%d", round), ttl)
			withLate := append(withGone, lateLease)
			waitFor(t, patience, "the late one has its share", func() bool { return shared(withLate...) })
			moving.writes(t)
			commitMissed(t, old, round)
			// At any moment between heartbeats.
			pause(t.Context(), time.Duration(random.Int64N(int64(heartbeat))))

			before := epochsOn(t, old)
			cut := time.Now()
			if cutOff {
				c.doors[round].Freeze()
			} else {
				testkit.OK(t, old.Kill())
			}
			ways[0].Freeze()
			ways[1].Freeze()
			testkit.OK(t, next.Promote(t.Context()))
			tally.Fault(t, "promotion that lost commits")
			began := time.Now()
			conn := connection(t, next.URL())
			promoted = append(promoted, began.Sub(cut))
			hasMissed(t, conn, round)
			lost := 0
			for k, epoch := range epochsOn(t, next) {
				if epoch < before[k] {
					lost++
				}
			}
			unseen = append(unseen, lost)

			for _, client := range append(slices.Clone(clients), steady.clients...) {
				waitFor(t, patience, client.ID()+" has found the new primary",
					func() bool { return client.Stats().HeartbeatAge < time.Since(began) })
			}
			back := time.Now()
			lateHeld = append(lateHeld, len(lateLease.Values()))
			waitFor(t, slack, "the moving clients show no more than the new primary confirms",
				func() bool { return confirmed(t, conn, moving) })
			returned = append(returned, back.Sub(began))
			if back.Sub(cut) > silence {
				excused = true
				t.Logf("round %d: %v without heartbeats, which not all of the steady need survive",
					round, back.Sub(cut))
			}
			// This ends the waits for the old primary, most of all the writers'.
			testkit.OK(t, old.Kill())
			c.doors[round].Thaw()

			const accepts = "SELECT accepted_timeline = pgleases.timeline() FROM pgleases.server"
			waitFor(t, patience, "the new timeline is accepted", func() bool {
				var done bool
				testkit.OK(t, conn.QueryRow(t.Context(), accepts).Scan(&done))
				return done
			})
			accepted = append(accepted, time.Since(began))
			waitFor(t, patience, "the crew owns everything", func() bool { return shared(crew...) })
			complete = append(complete, time.Since(began))
			if took, most := accepted[round], returned[round]+ttl+heartbeat+2*slack; took > most {
				missed(t, began, most, "round %d: accepted after %v, not %v", round, took, most)
			}
			if took, most := complete[round], accepted[round]+ttl+slack; took > most {
				missed(t, began, most, "round %d: every partition owned after %v, not %v", round, took, most)
			}
			waitFor(t, patience, "the steady clients have seen the new server generation", func() bool {
				return !slices.ContainsFunc(steady.leases, func(l *pgleases.Lease) bool {
					for _, n := range l.Values() {
						if p, ok := l.Partition(n); ok && p.Epoch <= before[partitionKey{l.Name(), n}] {
							return true
						}
					}
					return len(l.Values()) == 0
				})
			})
			for k, epoch := range before {
				highest[k] = max(highest[k], epoch)
			}
			waitFor(t, patience, "every partition has a new epoch above all earlier epochs", func() bool {
				for k, epoch := range epochsOn(t, next) {
					if epoch <= highest[k] {
						return false
					}
				}
				return true
			})
			for _, client := range []*pgleases.Client{gone, late} {
				_ = client.Close(canceled(nil)) // it has no partitions, and no server to send to
			}
			cutOff = !cutOff
			if t.Failed() {
				break
			}
		}

		writes := moving.stop(t)
		steadyLogs := steady.oracle()
		verify(t, steadyLogs)
		for i, log := range steadyLogs { // ordered by client
			// One under each server generation's epoch, and no other client ever.
			if want := len(steady.owned[i]) * (1 + len(complete)); len(log.Intervals) != want && !excused {
				missed(t, since, bears(ttl, heartbeat), "%s: %d intervals of ownership, not %d",
					log.Client, len(log.Intervals), want)
			}
		}
		for _, watch := range watches {
			logs = append(logs, watch()...)
		}
		report := verify(t, logs)
		t.Logf("%d rounds; after the cut, promoted: %s; after that, all clients back: %s; "+
			"accepted: %s; everything owned: %s; handoffs missed: %v; held by the late one meanwhile: %v; %v",
			len(complete), figures(promoted), figures(returned),
			figures(accepted), figures(complete), unseen, lateHeld, report)
		t.Logf("%d guarded writes, %d refused, %d to zombies",
			writes, moving.effects.Refused.Load(), moving.effects.Zombies.Load())
		held := slices.Max(lateHeld) > 0 || excused || soon
		if slices.Min(unseen) < partitions/4 || !held || moving.effects.Zombies.Load() == 0 {
			zombies := moving.effects.Zombies.Load()
			tooLittle(t, since, "%v handoffs missed, %v held, %d to zombies", unseen, lateHeld, zombies)
		}
	})
}

// The same for locks: a standby that missed the last acquisitions and releases grants no lock
// twice, and no token repeats.
func TestAPromotedStandbyGivesNoLockTwice(t *testing.T) {
	t.Parallel()
	timeguard.Run(t, func(t *timeguard.Try) {
		const names, ttl = 4, 2 * time.Second
		began := time.Now()
		c := newCluster(t, 2)
		url, dir := c.url(t, c.doors...), t.TempDir()
		effects := faults.NewEffects(testkit.Pool(t, c.servers[0].URL(), size(1)), faults.LocksName)
		testkit.OK(t, effects.Create(t.Context(), names))
		config := faults.Config{URL: url, TTL: ttl, Locks: names, Effects: true, Patience: patience}
		workers := startWorkers(t, config, dir, 4)
		taken := func(since oracle.Instant, times int) func() bool {
			return func() bool {
				logs := testkit.Must(locks.Read(dir))(t)
				gains := oracle.GainsSince(logs, since)
				return len(gains) == names && slices.Min(slices.Collect(maps.Values(gains))) >= times
			}
		}
		waitFor(t, patience, "all locks come and go", taken(oracle.Now(), 3))
		old, next := c.servers[0], c.servers[1]
		caughtUp(t, old, next)
		c.pipes[0].Freeze()
		waitFor(t, patience, "the standby has missed a change of each lock", taken(oracle.Now(), 3))
		if rand.N(2) == 0 {
			c.doors[0].Freeze() // it runs on, unreachable for its clients
		} else {
			testkit.OK(t, old.Kill())
		}
		testkit.OK(t, next.Promote(t.Context()))
		tally.Fault(t, "promotion that lost commits")
		promoted := oracle.Now()
		waitFor(t, patience, "all locks come and go on the new primary", taken(promoted, 2))
		testkit.OK(t, old.Kill())
		c.doors[0].Thaw()
		for _, w := range workers {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			ended, err := w.Close(ctx)
			cancel()
			if err != nil {
				t.Error(err)
			}
			if ended.Left != "" {
				missed(t, began, bears(ttl, ttl/3), "%s closed: %s", w.Config.ID, ended.Left)
			}
		}
		logs := testkit.Must(locks.Read(dir))(t)
		effects = faults.NewEffects(testkit.Pool(t, next.URL(), size(1)), faults.LocksName)
		ledger := testkit.Must(effects.Ledger(t.Context()))(t)
		late := weighedWrites(t, ledger)
		if len(late) > 0 {
			t.Errorf("of %d writes under locks, these came late: %v", len(ledger.Writes), late)
		}
		if err := ledger.Linearizable(dir, patience); err != nil {
			t.Error(err)
		}
		t.Logf("%v; %d guarded writes", verify(t, logs), len(ledger.Writes))
	})
}

// A cluster is a primary and standbys, each of which follows the server before it.
type cluster struct {
	servers []*pgserver.Server
	doors   []*faults.Proxy // the clients' way to each server
	pipes   []*faults.Proxy // each server's way to the standby that follows it
}

func newCluster(t testing.TB, size int, opts ...pgserver.Option) *cluster {
	t.Helper()
	c := &cluster{servers: []*pgserver.Server{pgserver.Private(t, opts...)}}
	for i := range size {
		c.doors = append(c.doors, newProxy(t, c.servers[i].URL()))
		if i+1 == size {
			break
		}
		c.pipes = append(c.pipes, newProxy(t, c.servers[i].URL()))
		host, port := address(t, c.pipes[i].URL())
		standby, err := c.servers[0].Standby(t.Context(), pgserver.WithSettings(map[string]string{
			"primary_conninfo": fmt.Sprintf("host=%s port=%d user=postgres", host, port),
		}))
		testkit.OK(t, err)
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("%s, the end of its log:\n%s", standby.Describe(), standby.Log())
			}
			if err := standby.Stop(); err != nil {
				t.Error(err)
			}
		})
		c.servers = append(c.servers, standby)
	}
	return c
}

// url returns the connection string of the primary, with all of these ways as its hosts.
func (c *cluster) url(t testing.TB, ways ...*faults.Proxy) string {
	t.Helper()
	var hosts []string
	for _, way := range ways {
		host, port := address(t, way.URL())
		hosts = append(hosts, fmt.Sprintf("%s:%d", host, port))
	}
	return "postgres://postgres@" + strings.Join(hosts, ",") + "/postgres" +
		"?sslmode=disable&target_session_attrs=read-write&connect_timeout=1"
}

func address(t testing.TB, url string) (host string, port uint16) {
	t.Helper()
	config := testkit.Must(pgx.ParseConfig(url))(t)
	return config.Host, config.Port
}

// connection opens a connection, which is closed at the end of the test.
func connection(t testing.TB, url string) *pgx.Conn {
	t.Helper()
	conn := testkit.Must(pgx.Connect(t.Context(), url))(t)
	t.Cleanup(func() { _ = conn.Close(context.Background()) }) // the server may be gone
	return conn
}

// caughtUp waits until a standby has everything that its primary has written up to now.
func caughtUp(t testing.TB, primary, standby *pgserver.Server) {
	t.Helper()
	var written string
	conn := connection(t, primary.URL())
	testkit.OK(t, conn.QueryRow(t.Context(), "SELECT pg_current_wal_lsn()::text").Scan(&written))
	conn = connection(t, standby.URL())
	const replayed = "SELECT pg_last_wal_replay_lsn() >= $1::text::pg_lsn"
	waitFor(t, patience, "the standby has caught up", func() bool {
		var has bool
		testkit.OK(t, conn.QueryRow(t.Context(), replayed, written).Scan(&has))
		return has
	})
}

// lostCommits is how many further transactions a standby misses in each round.
const lostCommits = 1000

// commitMissed commits that many guarded transactions.
func commitMissed(t testing.TB, primary *pgserver.Server, round int) {
	t.Helper()
	testkit.Must(connection(t, primary.URL()).Exec(t.Context(), fmt.Sprintf(`DO $$
BEGIN
    FOR i IN 1..%d LOOP
        PERFORM pgleases.guard('steady', 0, (SELECT p.epoch FROM pgleases.partitions AS p WHERE p.lease = 'steady' AND p.partition = 0));
        INSERT INTO missed VALUES (%d);
        COMMIT;
    END LOOP;
END $$`, lostCommits, round)))(t)
}

// hasMissed checks that a promoted standby lacks them.
func hasMissed(t testing.TB, conn *pgx.Conn, round int) {
	t.Helper()
	var has int
	testkit.OK(t, conn.QueryRow(t.Context(), "SELECT count(*) FROM missed WHERE round = $1", round).Scan(&has))
	if has > 0 {
		t.Errorf("the promoted standby has %d of the transactions that it should have missed", has)
	}
	tally.Checked(t, "lost commits", lostCommits-has)
}

// confirmed reports whether a server's tables agree with what the moving clients show.
func confirmed(t testing.TB, conn *pgx.Conn, m *moving) bool {
	t.Helper()
	rows := testkit.Must(conn.Query(t.Context(), `SELECT partition, coalesce(owner_id, ''), epoch
		FROM pgleases.partitions WHERE lease = 'moving'`))(t)
	type ownership struct {
		owner string
		epoch int64
	}
	owned := make(map[int]ownership)
	var n int
	var o ownership
	testkit.Must(pgx.ForEachRow(rows, []any{&n, &o.owner, &o.epoch}, func() error { owned[n] = o; return nil }))(t)
	for _, c := range m.clients {
		// Joins the same lease again.
		l := joined(t, c, "moving", len(owned), pgleases.WithHandoffDelay(0))
		for _, n := range l.Values() {
			if p, ok := l.Partition(n); ok && owned[n] != (ownership{c.ID(), p.Epoch}) {
				return false
			}
		}
	}
	return true
}

// epochsOn returns the epochs of all partitions on a server.
func epochsOn(t testing.TB, s *pgserver.Server) map[partitionKey]int64 {
	t.Helper()
	h := &history{owners: make(map[epochKey]int64), newest: make(map[partitionKey]int64)}
	testkit.OK(t, h.look(t.Context(), connection(t, s.URL()), make(map[string]bool)))
	return h.newest
}
