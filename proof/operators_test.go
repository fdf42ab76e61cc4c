//go:build unix

package proof_test

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/timeguard"
	"github.com/pgleases/pgleases/proof/faults"
	"github.com/pgleases/pgleases/proof/pgserver"
	"github.com/pgleases/pgleases/proof/tally"
)

var (
	operatorFaults = flag.Int("operator-faults", 30, "number of faults, including operators' verbs")
	operatorSeed   = flag.Uint64("operator-seed", 0, "seed of the faults; 0: random")
)

// Operators change a fleet at random, several at once, while faults hit processes, networks and the
// database. No partition has two owners. Once no override is left, all clients work again with even
// shares.
func TestOperatedFleetKeepsOneOwner(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("has a server of its own")
	}
	timeguard.Run(t, func(t *timeguard.Try) {
		const partitions = 16
		total := *operatorFaults
		began := time.Now()
		server := pgserver.Private(t)
		pool := testkit.Pool(t, server.URL(), size(6))
		effects := faults.NewEffects(pool, "l")
		testkit.OK(t, effects.Create(t.Context(), partitions))
		config := faults.Config{URL: server.URL(), Lease: "l", Partitions: partitions, TTL: time.Second, Effects: true}
		fleet := newFleet(t, config, 5, *operatorSeed)
		database := &faults.Database{Server: server, URL: server.URL()}
		operators := faults.NewOperators(pool, "l")
		// The fault "many clients" needs too many connections.
		fleet.Faults = without("many clients", fleet.Faults)
		database.Befall(fleet)
		operators.Befall(fleet)
		fleet.Enough = func(counts map[string]int) bool { return sum(counts) >= total }
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(total)*3*time.Second+patience)
		defer cancel()
		testkit.OK(t, fleet.Run(ctx))
		pool.Reset() // its connections may have ended with the server
		ended := time.Now()
		ctx, cancel = context.WithTimeout(t.Context(), patience)
		defer cancel()
		testkit.OK(t, operators.TakeAllBack(ctx))
		if err := fleet.Settled(ctx); err != nil {
			t.Missed(ended, patience, "%v", err)
		}
		waitFor(t, patience, "shares are even, and no move is pending", func() bool {
			var uneven, moving int
			err := pool.QueryRow(ctx, `SELECT
				(SELECT count(*) FROM pgleases.members_status WHERE abs(owned - share) >= 1),
				(SELECT count(*) FROM pgleases.status WHERE owner IS NULL OR moving_to IS NOT NULL)`).Scan(&uneven, &moving)
			return err == nil && uneven+moving == 0
		})
		settled := time.Since(ended)
		ctx, cancel = context.WithTimeout(t.Context(), patience)
		defer cancel()
		if err := fleet.Close(ctx); err != nil {
			t.Error(err)
		}
		report := testkit.Must(fleet.Report())(t)
		for _, violation := range report.Violations {
			t.Error(violation)
		}
		ledger := testkit.Must(effects.Ledger(t.Context()))(t)
		weighed(t, report)
		tally.Faults(t, fleet.Counts)
		for _, late := range weighedWrites(t, ledger) {
			t.Errorf("zombie: %s", late)
		}
		if err := ledger.Linearizable(fleet.Dir, patience); err != nil {
			t.Error(err)
		}
		for _, o := range fleet.Overdue {
			t.MissedAt(o.From, o.To, o.Within, "%s", o.Text)
		}
		t.Logf("%v; %d guarded writes; settled after %v; faults: %v; carried out: %v",
			report, len(ledger.Writes), settled.Round(time.Millisecond), fleet.Counts, operators.Given)
		least := total / 200 // of each verb
		verbs := []string{"drain", "cordon", "pause", "freeze", "pin", "undrain", "uncordon", "unfreeze", "unpin"}
		for _, verb := range verbs {
			if operators.Given[verb] < least {
				t.Errorf("%s was carried out %d times only", verb, operators.Given[verb])
			}
		}
		if n := sum(fleet.Counts); n < total || sum(operators.Given) < total/4 || len(ledger.Writes) < 3*total {
			tooLittle(t, began, "%d faults, %v carried out, %d guarded writes", n, operators.Given, len(ledger.Writes))
		}
	})
}

// operated are worker processes by ID, each behind a proxy.
type operated struct {
	t       *timeguard.Try
	url     string // of the server
	dir     string
	server  *pgserver.Server
	pool    *pgxpool.Pool
	started int
	procs   map[string]*faults.Process
	proxy   map[string]*faults.Proxy
}

func (s *operated) start(id string, ttl time.Duration) {
	s.t.Helper()
	proxy := newProxy(s.t, s.url)
	s.started++
	config := worker(proxy.URL(), "l", 12, s.dir, id, s.started)
	config.DirectURL, config.TTL = s.url, ttl
	s.procs[id], s.proxy[id] = startWorker(s.t, config), proxy
	hasJoined(s.t, s.procs[id])
}

func (s *operated) says(verb string, args ...any) {
	s.t.Helper()
	testkit.Execute(s.t, s.pool, "SELECT pgleases."+fmt.Sprintf(verb, args...))
}

// owners returns the client IDs by partition; empty: no owner.
func (s *operated) owners() []string {
	s.t.Helper()
	const all = "SELECT array_agg(coalesce(owner, '') ORDER BY partition) FROM pgleases.status"
	return testkit.Value[[]string](s.t, s.pool, all)
}

// others waits until every partition has an owner, and a process none.
func (s *operated) others(what, without string) {
	s.t.Helper()
	waitFor(s.t, patience, what, func() bool {
		owners := s.owners()
		return !slices.Contains(owners, without) && !slices.Contains(owners, "")
	})
}

// share waits until each process owns a number of partitions, by the tables and by its Values.
func (s *operated) share(what string, want map[string]int) {
	s.t.Helper()
	waitFor(s.t, patience, fmt.Sprintf("%s: %v", what, want), func() bool {
		owned := make(map[string]int)
		for _, id := range s.owners() {
			owned[id]++
		}
		for id, n := range want {
			if owned[id] != n || len(held(s.t, s.procs[id])) != n {
				return false
			}
		}
		return count(s.t, s.pool, "pgleases.status WHERE moving_to IS NOT NULL") == 0
	})
}

// Each verb keeps its promise for processes that are killed, stopped and cut off, and over a
// restart of the server.
func TestOperatorsVerbsHoldUnderFaults(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("has a server of its own")
	}
	timeguard.Run(t, func(t *timeguard.Try) {
		const ttl, long = time.Second, 3 * time.Second
		server := pgserver.Private(t)
		s := &operated{t: t, url: server.URL(), dir: t.TempDir(), server: server, pool: testkit.Pool(t, server.URL()),
			procs: make(map[string]*faults.Process), proxy: make(map[string]*faults.Proxy)}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		for _, id := range []string{"a", "b", "c"} {
			s.start(id, ttl)
		}
		s.share("all have a third", map[string]int{"a": 4, "b": 4, "c": 4})

		// An override survives the restart of the server, and the end of the process: no client
		// owns a paused lease, and no guard passes.
		const all = "SELECT array_agg(epoch ORDER BY partition) FROM pgleases.partitions"
		epochs := testkit.Value[[]int64](t, s.pool, all)
		s.says("pause('l', 'r')")
		testkit.OK(t, server.Restart(ctx, pgserver.Immediate))
		tally.Fault(t, "immediate restart")
		s.pool.Reset()
		s.procs["c"].Kill()
		tally.Fault(t, "kill")
		s.start("c", ttl)
		s.share("no client owns a paused lease", map[string]int{"a": 0, "b": 0, "c": 0})
		for n, epoch := range epochs {
			if _, err := s.pool.Exec(ctx, "SELECT pgleases.guard('l', $1, $2)", n, epoch); err == nil {
				t.Errorf("partition %d: a guard passes in a paused lease", n)
			}
		}
		s.says("resume('l', 'r')")
		s.share("after a pause", map[string]int{"a": 4, "b": 4, "c": 4})

		// Of a frozen lease, only the partitions of a killed process move. A join moves none, and a
		// process that was stopped or cut off for less than its TTL loses none.
		s.says("freeze('l', 'r')")
		before := s.owners()
		s.start("d", ttl)
		frozen := testkit.Value[time.Time](t, s.pool, "SELECT clock_timestamp()")
		began := time.Now()
		s.proxy["a"].Cut()
		tally.Fault(t, "cut")
		s.procs["c"].Kill()
		tally.Fault(t, "kill")
		s.others("the killed client's partitions are owned", "c")
		const others = `SELECT coalesce(string_agg(from_id, ', '), '') FROM pgleases.events
			WHERE cause = 'evicted' AND from_id <> 'c' AND at > $1`
		if ids := testkit.Value[string](t, s.pool, others, frozen); ids != "" {
			t.Missed(began, ttl, "%s, cut off for a moment or not at all, did not send a heartbeat in time", ids)
		}
		for i, id := range s.owners() {
			if before[i] != "c" && before[i] != id {
				t.Errorf("partition %d of a frozen lease went from %s to %s", i, before[i], id)
			}
			if before[i] == "c" && id != "d" {
				t.Errorf("partition %d of a frozen lease went to %s, and not to the client with the fewest", i, id)
			}
		}
		s.says("unfreeze('l', 'r')")
		s.share("after a freeze", map[string]int{"a": 4, "b": 4, "d": 4})

		// A pinned partition moves to another client while its client is away, and returns with it.
		p := slices.Index(s.owners(), "b")
		s.says("pin('l', %d, 'd', 'r')", p)
		waitFor(t, patience, "it is where it is pinned", func() bool { return s.owners()[p] == "d" })
		s.procs["d"].Kill()
		tally.Fault(t, "kill")
		waitFor(t, patience, "it falls back", func() bool { return s.owners()[p] != "d" && s.owners()[p] != "" })
		s.start("d", long)
		waitFor(t, patience, "it returns", func() bool { return s.owners()[p] == "d" })
		s.says("unpin('l', %d, 'r')", p)
		s.share("after a pin", map[string]int{"a": 4, "b": 4, "d": 4})

		// A drain of a stopped process waits for it, at most for its TTL.
		testkit.OK(t, s.procs["a"].Pause())
		tally.Fault(t, "pause")
		s.says("drain('a', 'r')")
		s.others("the others have what a had", "a")
		testkit.OK(t, s.procs["a"].Resume())
		s.share("a is drained", map[string]int{"a": 0, "b": 6, "d": 6})
		s.says("undrain('a', 'r')")
		s.share("a is back", map[string]int{"a": 4, "b": 4, "d": 4})

		// An evicted client ends. If the network of an evicted client hangs and it continues its
		// work, the others take over its partitions when its session is over. The oracle compares
		// that with what it shows. Before, b has watched the clock for long enough.
		s.proxy["d"].Freeze()
		tally.Fault(t, "freeze")
		s.says("evict_client('d', 'r')")
		began = time.Now()
		s.share("what it had is taken over", map[string]int{"a": 6, "b": 6})
		if took := time.Since(began); took > long+bears(ttl, ttl/3) {
			t.Missed(began, long+bears(ttl, ttl/3), "what an evicted process had was taken over after %v", took)
		}
		began = time.Now()
		s.says("evict_client('b', 'r')")
		waitFor(t, patience, "b, which still runs, shows no partition", func() bool {
			return len(held(t, s.procs["b"])) == 0
		})
		if took := time.Since(began); took > ttl/3+bears(ttl, ttl/3) {
			t.Missed(began, ttl/3+bears(ttl, ttl/3),
				"b, which still ran, showed its partitions for %v after it was evicted", took)
		}
		s.share("what both had is taken over", map[string]int{"a": 12})
		s.proxy["d"].Thaw()
		for _, id := range []string{"b", "d"} {
			if ended, err := s.procs[id].Ended(ctx); err != nil || ended.Error != pgleases.ErrEvicted.Error() {
				t.Errorf("%s ended with %+v, %v", id, ended, err)
			}
		}
		s.start("b", ttl) // a new process with its ID is accepted
		s.share("a new one is let in", map[string]int{"a": 6, "b": 6})
		report := verifyDir(t, s.dir)
		if report.Intervals < 40 {
			t.Errorf("%v: the test covered too little", report)
		}
		t.Log(report)
	})
}
