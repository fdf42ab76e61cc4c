//go:build unix

package proof_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/timeguard"
	"github.com/pgleases/pgleases/proof/faults"
	"github.com/pgleases/pgleases/proof/oracle"
	"github.com/pgleases/pgleases/proof/pgserver"
	"github.com/pgleases/pgleases/proof/tally"
)

// 200 faults, each kind at least three times: one owner, epochs that rise, and every partition gets
// an owner. The seed of a failure determines the faults, not their times.
func TestOnePartitionOneOwnerUnderFaults(t *testing.T) {
	t.Parallel()
	timeguard.Run(t, func(t *timeguard.Try) {
		seed := rand.Uint64()
		if testing.Short() { // on any database, which others may use too
			check(t, attack(t, seed, 10*time.Second, pgtest.Database(t), nil, func(*faults.Fleet) {}), 10, 0)
			return
		}
		total, each := 200, 3
		if raceDetector {
			total, each = 50, 1
		}
		disk, options := smallDisk(t)
		server := pgserver.Private(t, options...)
		database := &faults.Database{Server: server, URL: server.URL(), Disk: disk}
		check(t, attack(t, seed, 3*time.Minute, server.URL(), database, func(f *faults.Fleet) {
			f.Enough = func(counts map[string]int) bool {
				return sum(counts) >= total && slices.Min(slices.Collect(maps.Values(counts))) >= each
			}
		}), total, each)
	})
}

func sum(counts map[string]int) (total int) {
	for _, n := range counts {
		total += n
	}
	return total
}

// An episode holds the results of an attack on a fleet.
type episode struct {
	began      time.Time
	Seed       uint64
	Pooled     bool
	Alone      bool // one fault at a time
	Seconds    float64
	Faults     map[string]int // by kind
	Clients    int
	Intervals  int
	Reads      int64
	Overlaps   int
	Writes     int   // committed under Guard
	Locks      int   // intervals during which a lock was held
	LockWrites int   // committed under a lock's Guard
	Refused    int64 // guards of zombies
	// Longest time in ms that a partition had no owner, by kind of fault.
	Worst      map[string]float64
	Violations []string // of any promise
}

// attack injects faults into a fleet for a time. If database is nil, the database has no faults.
func attack(
	t *timeguard.Try, seed uint64, duration time.Duration,
	url string, database *faults.Database, how func(*faults.Fleet),
) episode {
	t.Helper()
	const partitions, locks, ttl = 16, 6, time.Second
	e := episode{began: time.Now(), Seed: seed, Worst: make(map[string]float64)}
	direct, pooled := pgtest.DirectURL(url)
	if database != nil {
		direct, pooled = database.URL, database.Bouncer != nil
	}
	e.Pooled = pooled
	pool := testkit.Pool(t, direct, size(4))
	effects, locked := faults.NewEffects(pool, "orders"), faults.NewEffects(pool, faults.LocksName)
	testkit.OK(t, errors.Join(effects.Create(t.Context(), partitions), locked.Create(t.Context(), locks)))
	config := faults.Config{URL: url, Lease: "orders", Partitions: partitions, Locks: locks, TTL: ttl, Effects: true}
	// Writes under Guard do not use the pooler: a setting of the server ends such transactions when
	// they are idle for too long.
	if pooled {
		config.Pooled, config.DirectURL = true, direct
	}
	fleet := newFleet(t, config, 4, seed)
	// A client that gives up ends the pooler's connection to the server; with many clients, few
	// statements succeed in time.
	if pooled {
		fleet.Faults = without("many clients", fleet.Faults)
	}
	how(fleet)
	e.Alone = fleet.Alone
	if database != nil {
		database.Befall(fleet)
	}
	violate := func(err error) {
		if err != nil {
			e.Violations = append(e.Violations, err.Error())
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), duration)
	defer cancel()
	began := time.Now()
	violate(fleet.Run(ctx))
	e.Seconds = time.Since(began).Seconds()
	ctx, cancel = context.WithTimeout(t.Context(), patience)
	defer cancel()
	var settled time.Duration
	orphans := func(ctx context.Context) error { return noOrphanedLocks(ctx, pool) }
	for _, wait := range []func(context.Context) error{fleet.Settled, fleet.LocksTaken, orphans} {
		began = time.Now()
		err := wait(ctx)
		took := time.Since(began)
		settled += took
		if errors.Is(err, context.DeadlineExceeded) {
			t.Log(waiting(t, direct))
			now := oracle.Now()
			overdue := faults.Overdue{From: now - oracle.Instant(took), To: now, Within: patience, Text: err.Error()}
			fleet.Overdue = append(fleet.Overdue, overdue)
			// No time is left for the others, and they could not distinguish a failure from a late
			// machine.
			break
		}
		violate(err)
	}
	report := testkit.Must(fleet.Report())(t)
	lockLogs := testkit.Must(fleet.Locks())(t)
	lockReport := oracle.Check(lockLogs)
	weighed(t, report)
	weighed(t, lockReport)
	tally.Faults(t, fleet.Counts)
	e.Violations = append(append(e.Violations, report.Violations...), lockReport.Violations...)
	e.Violations = append(e.Violations, audited(t, ownersPool(t, direct))...) // an application may not read all records
	e.Locks = lockReport.Intervals
	e.Faults, e.Clients = fleet.Counts, report.Clients
	e.Intervals, e.Reads, e.Overlaps = report.Intervals, report.Reads, report.Overlaps
	worst, late := faults.Recoveries(report.Gaps, fleet.Incidents, ttl)
	for kind, d := range worst {
		e.Worst[kind] = float64(d.Microseconds()) / 1000
	}
	if database != nil { // else other tests use it too
		fleet.Overdue = append(fleet.Overdue, late...)
	}
	written := func(effects *faults.Effects) int {
		ledger := testkit.Must(effects.Ledger(t.Context()))(t)
		for _, late := range weighedWrites(t, ledger) {
			e.Violations = append(e.Violations, "zombie: "+late)
		}
		violate(ledger.Linearizable(fleet.Dir, patience))
		return len(ledger.Writes)
	}
	e.Writes, e.LockWrites = written(effects), written(locked)
	var excused []faults.Overdue
	for _, o := range fleet.Overdue {
		if is, _ := t.Excused(o.From, o.To, o.Within); is {
			excused = append(excused, o)
		} else {
			e.Violations = append(e.Violations, o.Text)
		}
	}
	if len(e.Violations) == 0 && len(excused) > 0 {
		t.MissedAt(excused[0].From, excused[0].To, excused[0].Within, "%s", excused[0].Text)
	}
	t.Logf("%v; settled after %v; %d guarded writes; faults: %v; longest without an owner, in ms: %v",
		report, settled.Round(time.Millisecond), e.Writes, e.Faults, e.Worst)
	t.Logf("locks: %v; %d guarded writes", lockReport, e.LockWrites)
	return e
}

// waiting returns what each backend waits for, and what blocks it.
func waiting(t *timeguard.Try, url string) (activity string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 5*time.Second)
	defer cancel()
	err := testkit.Pool(t, url).QueryRow(ctx, `SELECT coalesce(string_agg(format(
				'%s %s %s %s, waits for %s %s %s, since %s: %s', pid, backend_type, application_name, state,
				wait_event_type, wait_event, pg_blocking_pids(pid),
				clock_timestamp() - coalesce(xact_start, query_start), left(query, 200)), E'\n' ORDER BY xact_start), '')
		FROM pg_stat_activity WHERE state <> 'idle' AND pid <> pg_backend_pid()`).Scan(&activity)
	if err != nil {
		return fmt.Sprintf("the server's activity is unknown: %v", err)
	}
	return "the server does this:\n" + activity
}

// noOrphanedLocks waits until no row of a lock has a session that has ended.
func noOrphanedLocks(ctx context.Context, pool *pgxpool.Pool) error {
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for ; ; <-look.C {
		var orphans []string
		err := pool.QueryRow(ctx, `SELECT
			coalesce(array_agg(name || ' ' || ticket || CASE WHEN token IS NULL THEN ' waits' ELSE '' END), '{}')
			FROM pgleases.locks WHERE session NOT IN (SELECT session FROM pgleases.clients)`).Scan(&orphans)
		if ctx.Err() != nil {
			return fmt.Errorf("these locks have no live session: %v: %w", orphans, context.Cause(ctx))
		}
		if err != nil || len(orphans) == 0 {
			return err
		}
	}
}

// check fails the test if a promise was broken, or if there were fewer faults than total, or of a
// kind fewer than each.
func check(t *timeguard.Try, e episode, total, each int) {
	t.Helper()
	for _, v := range e.Violations {
		t.Error(v)
	}
	for kind, n := range e.Faults {
		if n < each {
			t.Missed(e.began, time.Since(e.began), "fault %q happened %d times, not at least %d", kind, n, each)
		}
	}
	if n := sum(e.Faults); n < total {
		tooLittle(t, e.began, "%d faults, not at least %d", n, total)
	}
	if s := int(e.Seconds); e.Locks < 2*s || e.LockWrites < s {
		tooLittle(t, e.began, "locks were held %d times in %d s, and %d guarded writes", e.Locks, s, e.LockWrites)
	}
	if e.Writes < 100 || e.Reads < 100_000 {
		tooLittle(t, e.began, "only %d guarded writes and %d reads", e.Writes, e.Reads)
	}
}
