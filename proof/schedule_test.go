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

	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/timeguard"
	"github.com/pgleases/pgleases/proof/faults"
	"github.com/pgleases/pgleases/proof/oracle/schedules"
	"github.com/pgleases/pgleases/proof/pgserver"
	"github.com/pgleases/pgleases/proof/tally"
	"github.com/pgleases/pgleases/schedule"
)

var (
	scheduleFaults = flag.Int("schedule-faults", 12,
		"number of faults of processes that run schedules; behind a pooler, half as many")
	scheduleSeed = flag.Uint64("schedule-seed", 0, "seed of the faults; 0: random")
)

// Every tick has one outcome, every success has its effect once, and there is no other effect,
// under faults of processes, networks and the database. Not in parallel with other tests, because a
// fleet under attack loads both processors.
func TestEveryTickHasOneOutcomeInAFleet(t *testing.T) {
	for _, test := range []struct {
		name   string
		pooled bool
		faults int
	}{{"direct", false, *scheduleFaults}, {"through PgBouncer", true, *scheduleFaults / 2}} {
		t.Run(test.name, func(t *testing.T) {
			timeguard.Run(t, func(t *timeguard.Try) {
				server := pgserver.Private(t, committing)
				database := &faults.Database{Server: server, URL: server.URL()}
				url := server.URL()
				if test.pooled {
					url = behindPooler(t, database)
				}
				n := test.faults
				if testing.Short() {
					n /= 2
				}
				attackSchedules(t, url, database, n)
			})
		})
	}
}

// committing makes a server record commit times.
var committing = pgserver.WithSettings(map[string]string{"track_commit_timestamp": "on"})

// withSchedules creates the tables, and returns the configuration of workers that run schedules.
func withSchedules(t testing.TB, url, direct string, pooled bool) faults.Config {
	t.Helper()
	pool := testkit.Pool(t, direct, size(1))
	testkit.OK(t, schedule.Migrate(t.Context(), pool))
	testkit.Execute(t, pool, faults.SchedulesTable)
	testkit.Execute(t, pool, faults.OrdersTable)
	pool.Close()
	return faults.Config{
		URL: url, Pooled: pooled, DirectURL: direct, ProbeURL: probeURL,
		Lease: "l", Partitions: 8, TTL: time.Second, Patience: patience, Schedules: true, Orders: true,
	}
}

const effects = "ticks WHERE job = 0"

// attackSchedules injects a number of faults into a fleet, and then checks the ledger.
func attackSchedules(t *timeguard.Try, url string, database *faults.Database, total int) {
	t.Helper()
	began := time.Now()
	fleet := newFleet(t, withSchedules(t, url, database.URL, database.Bouncer != nil), 4, *scheduleSeed)
	pool := testkit.Pool(t, database.URL, size(2))
	waitForOutcomes(t, pool)
	waitFor(t, patience, "schedules run", func() bool { return count(t, pool, effects) >= len(faults.Schedules()) })
	// The fault "many clients" needs too many connections.
	fleet.Faults = without("many clients", fleet.Faults)
	database.Befall(fleet)
	fleet.Enough = func(counts map[string]int) bool { return sum(counts) >= total }
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(total)*5*time.Second+patience)
	defer cancel()
	testkit.OK(t, fleet.Run(ctx))
	if n := sum(fleet.Counts); n < total {
		tooLittle(t, began, "%d faults, not at least %d", n, total)
	}
	pool.Reset() // its connections may have ended with the server
	waitForOutcomes(t, pool)
	ctx, cancel = context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := fleet.Close(ctx); err != nil {
		t.Error(err)
	}
	l := readLedger(t, pool, fleet.Dir)
	judge(t, l)
	for _, v := range audited(t, pool) {
		t.Error(v)
	}
	tally.Faults(t, fleet.Counts)
	t.Logf("faults: %v", fleet.Counts)
	if least := l.Schedules() * int(time.Since(began).Seconds()) / 10; l.Effects() < least {
		tooLittle(t, began, "%d effects, not at least %d", l.Effects(), least)
	}
}

// A standby is promoted that missed the last runs. On it they have neither outcomes nor effects,
// and run again, once.
func TestAPromotedStandbyRunsEachTickOnce(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("has servers of its own")
	}
	timeguard.Run(t, func(t *timeguard.Try) {
		began := time.Now()
		c := newCluster(t, 2, committing)
		old, next := c.servers[0], c.servers[1]
		config := withSchedules(t, c.url(t, c.doors...), old.URL(), false)
		dir := t.TempDir()
		workers := startWorkers(t, config, dir, 3)
		pool := testkit.Pool(t, old.URL(), size(1))
		waitForOutcomes(t, pool)
		caughtUp(t, old, next)
		for _, v := range audited(t, testkit.Pool(t, next.URL(), size(1))) { // on a standby, too
			t.Error(v)
		}
		c.pipes[0].Freeze()
		before := count(t, pool, effects)
		mail := func() {
			// 40 is more than the number of ids that a server reserves and logs at a time.
			testkit.OK(t, faults.Mail(t.Context(), pool, 40))
			waitForOutcomes(t, pool)
		}
		mail()
		waitFor(t, patience, "the standby has missed runs", func() bool {
			return count(t, pool, effects) > before+len(faults.Schedules())
		})
		pool.Close()
		testkit.OK(t, old.Kill())
		testkit.OK(t, next.Promote(t.Context()))
		tally.Fault(t, "promotion that lost commits")
		pool = testkit.Pool(t, next.URL(), size(1))
		if n := count(t, pool, effects); n > before+len(faults.Schedules()) {
			tooLittle(t, began, "the standby had %d effects, and %d when it was cut off", n, before)
		}
		mail()
		closeWorkers(t, workers)
		l := readLedger(t, pool, dir)
		l.Promoted = true
		judge(t, l)
		for _, v := range audited(t, pool) {
			t.Error(v)
		}
	})
}

// waitForOutcomes waits until every tick up to now of schedules of these kinds, or of all, has its
// outcome, and every job enqueued by now.
func waitForOutcomes(t testing.TB, pool *pgxpool.Pool, kinds ...string) {
	t.Helper()
	until := testkit.Value[time.Time](t, pool, "SELECT clock_timestamp()")
	orders := testkit.Value[int64](t, pool, "SELECT coalesce(max(n), 0) FROM orders")
	// Orders run after all late ticks. An order whose transaction took long is found after a
	// minute.
	waitFor(t, 5*patience, "every order up to now has its outcome", func() bool {
		return count(t, pool, `(SELECT job, max(n) AS n FROM orders GROUP BY job) AS o
			JOIN pgleases.jobs AS j ON j.id = o.job WHERE o.n <= $1`, orders) == 0
	})
	// After many faults a process may have to catch up for minutes.
	for began, wants := time.Now(), outcomeless(t, pool, until, kinds); len(wants) > 0; {
		before, since := wants, time.Now()
		if !comesTrue(patience, func() bool {
			wants = outcomeless(t, pool, until, kinds)
			return !slices.Equal(wants, before)
		}) || time.Since(began) > 10*patience {
			missed(t, since, patience, "not within %v: another of the ticks up to %v has its outcome: %v",
				patience, until, wants)
		}
	}
}

// outcomeless returns the schedules that have a tick up to an instant without an outcome, and what
// is known of the tick.
func outcomeless(t testing.TB, pool *pgxpool.Pool, until time.Time, kinds []string) (names []string) {
	all := testkit.Must(schedules.ReadSchedules(t.Context(), pool))(t)
	for _, s := range faults.Schedules(kinds...) {
		if have, ok := all[s.Name]; !ok || len(have.Ticks(have.Cursor, until)) > 0 {
			names = append(names, fmt.Sprintf("%s, which has come as far as %v", s.Name, have.Cursor))
		}
	}
	return names
}

func readLedger(t testing.TB, pool *pgxpool.Pool, dir string) *schedules.Ledger {
	t.Helper()
	return testkit.Must(schedules.Read(t.Context(), pool, dir))(t)
}

// judge reports the violations that a ledger has, and records what it has looked at.
func judge(t testing.TB, l *schedules.Ledger) {
	t.Helper()
	violations := l.Check()
	for _, v := range violations {
		t.Error(v)
	}
	for things, n := range l.Checked() {
		tally.Checked(t, things, n)
	}
	tally.Violations(t, "schedules and jobs", len(violations))
	t.Log(l)
}
