//go:build unix

package proof_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/timeguard"
	"github.com/pgleases/pgleases/proof/faults"
	"github.com/pgleases/pgleases/proof/oracle"
	"github.com/pgleases/pgleases/proof/oracle/leases"
	"github.com/pgleases/pgleases/proof/pgserver"
	"github.com/pgleases/pgleases/proof/tally"
)

// Tests of fast failover, with a TTL that no session reaches.

const longTTL = 30 * time.Second

var failoverKills = flag.Int("failover-kills", 6, "number of processes with fast failover to kill")

// A troop is a set of worker processes with fast failover that share one lease.
type troop struct {
	*timeguard.Try
	url, dir string
	ttl      time.Duration
	made     int
	living   []*faults.Process
}

const troopPartitions = 20

// needFastFailover skips the test on a PostgreSQL version without fast failover.
func needFastFailover(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	if !hasFastFailover(t, pool) {
		t.Skip("fast failover needs PostgreSQL 15")
	}
}

func hasFastFailover(t testing.TB, pool *pgxpool.Pool) bool {
	t.Helper()
	return testkit.Value[int](t, pool, "SELECT current_setting('server_version_num')::int") >= 150000
}

func newTroop(t *timeguard.Try, url string, size int, ttl time.Duration) *troop {
	needFastFailover(t, testkit.Pool(t, url))
	tr := &troop{Try: t, url: url, dir: t.TempDir(), ttl: ttl}
	for range size {
		tr.start(url)
	}
	for _, p := range tr.living {
		hasJoined(t, p)
	}
	tr.owned("at first")
	return tr
}

func (tr *troop) start(url string) *faults.Process {
	tr.Helper()
	tr.made++
	id := fmt.Sprintf("client-%d", tr.made)
	p := startWorker(tr, faults.Config{
		URL: url, DirectURL: tr.url, ID: id, Log: filepath.Join(tr.dir, id+".log"),
		Lease: "work", Partitions: troopPartitions, TTL: tr.ttl, Fast: true,
	})
	tr.living = append(tr.living, p)
	return p
}

// owned waits until the live processes own all partitions.
func (tr *troop) owned(when string) {
	tr.Helper()
	waitFor(tr, patience, "the live processes own all "+when, func() bool {
		var all []int
		for _, p := range tr.living {
			all = append(all, held(tr, p)...)
		}
		slices.Sort(all)
		return len(all) == troopPartitions && len(slices.Compact(all)) == troopPartitions
	})
}

// report closes the troop and returns the oracle's report.
func (tr *troop) report() oracle.Report {
	tr.Helper()
	closeWorkers(tr, tr.living)
	return verifyDir(tr, tr.dir)
}

// The figure needs a machine that keeps time for a minute, so the short tests leave it out.
func TestKilledClientIsReplacedInHalfASecond(t *testing.T) {
	if testing.Short() {
		t.Skip("takes up to a minute, and needs a machine with little else to do")
	}
	timeguard.Run(t, func(t *timeguard.Try) {
		since := time.Now()
		tr := newTroop(t, direct(t), 5, longTTL)
		type death struct {
			client string
			at     oracle.Instant
		}
		var deaths []death
		for n := range *failoverKills {
			// The watching clients must have seen the newest client. The kill is at a random
			// moment.
			<-time.After(time.Second + rand.N(200*time.Millisecond))
			i := rand.N(len(tr.living))
			victim := tr.living[i]
			tr.living = slices.Delete(tr.living, i, i+1)
			at := oracle.Now()
			victim.Kill()
			tally.Fault(t, "kill")
			deaths = append(deaths, death{victim.Config.ID, at})
			tr.owned(fmt.Sprintf("after death %d", n+1))
			hasJoined(t, tr.start(tr.url))
		}
		tr.owned("at last")
		tr.report()
		logs := testkit.Must(leases.Read(tr.dir))(t)
		var took []time.Duration
		for _, d := range deaths {
			var longest time.Duration
			for _, log := range logs {
				for _, lost := range log.Intervals {
					if log.Client != d.client || !lost.Open {
						continue
					}
					next := longTTL
					for _, other := range logs {
						for _, i := range other.Intervals {
							if i.Partition == lost.Partition && i.First > d.at && other.Client != d.client {
								next = min(next, i.First.Sub(d.at))
							}
						}
					}
					longest = max(longest, next)
				}
			}
			if longest > 0 {
				took = append(took, longest)
			}
		}
		slices.Sort(took)
		if len(took) < len(deaths)*9/10 {
			t.Fatalf("only %d of %d killed processes owned partitions", len(took), len(deaths))
		}
		p95 := took[len(took)*95/100]
		t.Logf("from kill -9 to all owned again, TTL %v, five clients: median %v, p95 %v, max %v of %d",
			longTTL, median(took), p95, slices.Max(took), len(took))
		if p95 > 500*time.Millisecond {
			missed(t, since, 500*time.Millisecond, "95 %% were owned again within %v, not 500 ms", p95)
		}
	})
}

var failoverTerror = flag.Duration("failover-terror", 6*time.Second,
	"how long the server keeps ending connections of clients with fast failover")

// The server ends the connections of live clients, one after the other, restarts, and recovers from
// crashes. Other sessions are abandoned meanwhile, like those of killed processes.
func TestEndedConnectionsEvictNoLiveClient(t *testing.T) {
	timeguard.Run(t, func(t *timeguard.Try) {
		server := pgserver.Private(t)
		tr := newTroop(t, server.URL(), 4, longTTL)
		database := &faults.Database{Server: server, URL: server.URL()}
		ctx, cancel := context.WithCancel(t.Context())
		var wait sync.WaitGroup
		abandoned := 0
		wait.Go(func() { // the count of abandoned sessions excludes them
			for ctx.Err() == nil {
				if conn, err := pgx.Connect(ctx, server.URL()); err == nil {
					_ = conn.PgConn().Conn().Close()
					abandoned++
				}
				pause(ctx, 20*time.Millisecond)
			}
		})
		terminated := 0
		terrify := func(during time.Duration) {
			conn := connection(t, server.URL())
			for began := time.Now(); time.Since(began) < during; pause(ctx, rand.N(200*time.Millisecond)) {
				var n int
				err := conn.QueryRow(ctx, `SELECT count(pg_terminate_backend(pid))
					FROM (SELECT pid FROM pg_stat_activity
						WHERE application_name = 'pgleases' ORDER BY random() LIMIT 1) AS one`).Scan(&n)
				testkit.OK(t, err)
				terminated += n
			}
		}
		within, stop := context.WithTimeout(ctx, 4*patience)
		defer stop()
		for _, fault := range []func() error{
			func() error { return server.Restart(within, pgserver.Fast) },
			func() error { return server.Restart(within, pgserver.Immediate) },
			func() error { return database.KillBackend(within) },
		} {
			terrify(*failoverTerror / 3)
			testkit.OK(t, fault())
			tally.Fault(t, "restart or crash of the server")
		}
		terrify(*failoverTerror / 3)
		cancel()
		wait.Wait()
		tr.owned("at last")
		tr.noneEvicted()
		tally.Faults(t, map[string]int{"session abandoned": abandoned, "terminated connection": terminated})
		t.Logf("%d sessions were abandoned, %d of clients terminated: %v", abandoned, terminated, tr.report())
		if terminated < 10 || abandoned < terminated/2 {
			t.Errorf("the test covered too little: %d, %d", terminated, abandoned)
		}
	})
}

// The server ends the connection of a client. The client learns of that late, and needs seconds to
// reconnect. It continues with what it owns, and is not evicted, although another session is
// abandoned at the same time.
func TestTerminatedConnectionIsNotEvicted(t *testing.T) {
	timeguard.Run(t, func(t *timeguard.Try) {
		url := direct(t)
		way := newProxy(t, url)
		tr := newTroop(t, url, 2, longTTL)
		victim := tr.start(way.URL())
		hasJoined(t, victim)
		tr.owned("at first")
		pool := testkit.Pool(t, url)
		presence := func() int64 {
			return testkit.Value[int64](t, pool, `SELECT presence
				FROM pgleases.presences JOIN pgleases.clients USING (session) WHERE id = $1`, victim.Config.ID)
		}
		for range 2 {
			<-time.After(time.Second) // so that the watching clients have seen the present locks
			before := presence()
			way.Slow(400 * time.Millisecond)
			if n := testkit.Value[int](t, pool, `SELECT count(pg_terminate_backend(pid)) FROM pg_locks
				WHERE locktype = 'advisory' AND (classid::bigint << 32) | objid::bigint = $1`, before); n != 1 {
				t.Fatalf("%d connections of %s", n, victim.Config.ID)
			}
			tally.Fault(t, "terminated connection")
			_ = connection(t, url).PgConn().Conn().Close()
			waitFor(t, patience, "the client is back", func() bool { return presence() != before })
			way.Thaw()
		}
		tr.noneEvicted()
		if strings.Contains(victim.Output(), "lost") {
			t.Errorf("%s lost something:\n%s", victim.Config.ID, victim.Output())
		}
		t.Log(tr.report())
	})
}

// noneEvicted fails the test if a client was evicted.
func (tr *troop) noneEvicted() {
	tr.Helper()
	for _, p := range tr.living {
		for line := range strings.Lines(p.Output()) {
			if strings.Contains(line, "evicted") {
				tr.Errorf("%s: %s", p.Config.ID, line)
			}
		}
	}
}

var failoverCuts = flag.Int("failover-cuts", 6,
	"number of connections of clients with fast failover that the network cuts")

// A process is stopped, and its connection ends meanwhile. The others take over, and it must not
// show a partition when it continues. Other processes lose their connections while they run.
func TestCutConnectionKeepsOneOwner(t *testing.T) {
	timeguard.Run(t, func(t *timeguard.Try) {
		url := direct(t)
		ways := []*faults.Proxy{newProxy(t, url), newProxy(t, url), newProxy(t, url)}
		tr := newTroop(t, url, 2, longTTL)
		victims := make([]*faults.Process, len(ways))
		for i := range ways {
			victims[i] = tr.start(ways[i].URL())
			hasJoined(t, victims[i])
		}
		// The text ever also matches evictions after a TTL.
		const soon, ever = "evicted sessions whose connection has ended", "pgleases: evicted "
		evictions := func(words string) (n int) {
			for _, p := range tr.living {
				n += strings.Count(p.Output(), words)
			}
			return n
		}
		for n := range *failoverCuts {
			tr.owned(fmt.Sprintf("before cut %d", n+1))
			<-time.After(time.Second) // so that the watching clients have seen the present locks
			i, before := n%len(ways), evictions(ever)
			stopped := n%4 < 3
			if stopped {
				testkit.OK(t, victims[i].Pause())
				ways[i].Cut()
				tally.Fault(t, "pause, and a cut")
			} else {
				ways[i].Reset() // it continues, and cannot connect
				tally.Fault(t, "reset")
			}
			if n%2 == 0 {
				waitFor(t, patience, "the others evict it", func() bool { return evictions(ever) > before })
			} else {
				<-time.After(rand.N(1200 * time.Millisecond)) // what readers tolerate, and more
			}
			ways[i].Thaw()
			if stopped {
				testkit.OK(t, victims[i].Resume())
			}
		}
		tr.owned("at last")
		t.Logf("%d evictions, %d of them soon: %v", evictions(ever), evictions(soon), tr.report())
		if evictions(soon) == 0 {
			t.Error("no client was evicted when the connection ended")
		}
	})
}

// Behind PgBouncer a session's lock says nothing about its client. So a client with fast failover
// is refused, with an error that says what to do.
func TestFastFailoverIsRefusedBehindAPooler(t *testing.T) {
	t.Parallel()
	past := direct(t)
	needFastFailover(t, testkit.Pool(t, past))
	for _, mode := range []string{"transaction", "session"} {
		through := bouncerTo(t, past, pgserver.WithBouncerSettings(map[string]string{"pool_mode": mode}))
		c, err := pgleases.Open(t.Context(), through, pgleases.WithFastFailover(), quietly(t))
		if err == nil {
			shut(t, c)
		}
		for _, says := range []string{"WithFastFailover", "pooler", "WithConnConfig"} {
			if err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("%s mode: %v, without %s", mode, err, says)
			}
		}
		config := testkit.Must(pgx.ParseConfig(past))(t)
		pool := testkit.Pool(t, through)
		c, err = pgleases.NewClient(t.Context(), pool,
			pgleases.WithFastFailover(), pgleases.WithConnConfig(config), quietly(t))
		if err != nil {
			t.Errorf("%s mode, past it: %v", mode, err)
			continue
		}
		shut(t, c)
	}
}

// A poll of the locks that takes longer than the poll interval leaves time for less urgent tasks:
// plans, and the client's end.
func TestSlowPollsDelayNoOtherTask(t *testing.T) {
	t.Parallel()
	url := direct(t)
	needFastFailover(t, testkit.Pool(t, url))
	way := newProxy(t, url)
	c := opened(t, way.URL(), "far", pgleases.WithTTL(longTTL), pgleases.WithFastFailover(), quietly(t))
	way.Slow(150 * time.Millisecond)
	l := joined(t, c, "work", 4)
	waitFor(t, patience, "it owns all", func() bool { return len(l.Values()) == 4 })
	shut(t, c)
}
