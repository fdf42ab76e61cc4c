//go:build unix

package proof_test

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/timeguard"
	"github.com/pgleases/pgleases/lock"
	"github.com/pgleases/pgleases/proof/faults"
	"github.com/pgleases/pgleases/proof/oracle"
	"github.com/pgleases/pgleases/proof/oracle/leases"
	"github.com/pgleases/pgleases/proof/oracle/locks"
	"github.com/pgleases/pgleases/proof/tally"
)

const (
	crashTTL        = time.Second
	crashPartitions = 8
	crashesAtOnce   = 8
)

// A crashCase makes a worker process, the victim, send the statement of a file of package sql.
type crashCase struct {
	file, when string
	run        func(*crash) // returns when it was sent and the breach was done
	// The outcome for a victim that survives. The zero value: it continues as if nothing had
	// happened.
	then outcome
}

type outcome int

const (
	goesOn     outcome = iota
	opensNot           // Open returned the error, and the process ended with this error
	endsClosed         // it was being closed
	endsOusted         // it was being superseded
)

// crashCases has an entry for every statement of the protocol, and two entries for a statement that
// is sent in two different situations.
var crashCases = []crashCase{
	{"schema", "it is the first", atFirst("schema"), opensNot},
	{"register", "it is opened", atStart("register"), goesOn},
	{"register", "its session was evicted", atEviction("register"), goesOn},
	{"marker", "it is the first", atFirst("marker"), goesOn},
	{"marker", "the server has lost its boot marker", atBalance("marker", (*crash).unmark), goesOn},
	{"heartbeat", "nothing happens", atBalance("heartbeat", nil), goesOn},
	{"join", "it is opened", atStart("join"), goesOn},
	{"join", "its session was evicted", atEviction("join"), goesOn},
	{"join", "it is closed before it can join again", func(c *crash) { atEviction("join")(c); c.close() }, endsClosed},
	{"claim", "a plan is asked for", atBalance("claim", (*crash).ask), goesOn},
	{"snapshot", "a plan is asked for", atBalance("snapshot", (*crash).ask), goesOn},
	{"apply", "it is the first", atFirst("apply"), goesOn},
	{"apply", "an owner is asked", atBalance("apply", (*crash).ask), goesOn},
	{"apply", "the partitions of a killed client are given", atDeath("apply"), goesOn},
	{"read", "it has joined", atStart("read"), goesOn},
	{"read", "a lease has changed", atBalance("read", (*crash).change), goesOn},
	{"release", "another has joined", func(c *crash) {
		c.alone()
		c.arm("release")
		c.bystand()
		c.await(nil)
	}, goesOn},
	{"release", "it is closed", atBalance("release", (*crash).close), endsClosed},
	{"announce", "it has handed over", func(c *crash) {
		c.alone()
		c.arm("announce")
		c.bystand()
		c.await(nil)
	}, goesOn},
	{"fence", "guarded transactions keep its releases waiting", func(c *crash) {
		c.alone()
		tx := testkit.Must(c.admin.Begin(c.t.Context()))(c.t)
		defer func() { _ = tx.Rollback(context.Background()) }()
		const guards = "SELECT pgleases.guard(lease, partition, epoch) FROM pgleases.partitions"
		testkit.Must(tx.Exec(c.t.Context(), guards))(c.t)
		c.arm("fence")
		c.bystand()
		c.await(nil)
	}, goesOn},
	{"lockacquire", "it takes locks", underLocks(atBalance("lockacquire", nil)), goesOn},
	{"lockrelease", "it gives locks back", underLocks(atBalance("lockrelease", nil)), goesOn},
	{"lockrelease", "it is closed", underLocks(func(c *crash) {
		c.bystand()
		c.start()
		c.balanced()
		c.waitFor("the victim holds a lock", func() bool {
			return count(c.t, c.pool, "pgleases.locks_status WHERE client = 'victim' AND state = 'holds'") > 0
		})
		c.arm("lockrelease")
		c.await((*crash).close)
	}), endsClosed},
	{"lockreleases", "it gives up places in queues", underLocks(atBalance("lockreleases", nil)), goesOn},
	{"locklook", "it waits for locks", underLocks(atBalance("locklook", nil)), goesOn},
	{"locksweep", "another client was killed", underLocks(atDeath("locksweep")), goesOn},
	{"lockguard", "it works under locks", underLocks(atBalance("lockguard", nil)), goesOn},
	{"close", "it is closed", atBalance("close", (*crash).close), endsClosed},
	{"evict", "another client was killed", atDeath("evict"), goesOn},
	{"tidy", "another client was killed", atDeath("tidy"), goesOn},
	{"liveness", "it is opened", fastly(atStart("liveness")), goesOn},
	{"watch", "nothing happens", fastly(atBalance("watch", nil)), goesOn},
	{"evictdisconnected", "another client was killed", fastly(func(c *crash) {
		c.start()
		third := c.third()
		looks := c.wire.Seen("watch") + 3
		c.waitFor("the victim has seen its lock", func() bool { return c.wire.Seen("watch") >= looks })
		c.arm("evictdisconnected")
		third.Kill()
		tally.Fault(c.t, "kill")
		c.await(func(c *crash) {
			if !testkit.Value[bool](c.t, c.pool, "SELECT EXISTS (SELECT FROM pgleases.clients WHERE id = 'third')") {
				c.lostTrust("the victim evicted the third when its TTL was over")
			}
		})
		c.bystand()
	}), goesOn},
	{"accept", "the server was promoted", func(c *crash) {
		c.alone()
		c.arm("accept")
		testkit.Execute(c.t, c.pool, "UPDATE pgleases.server SET accepted_timeline = accepted_timeline + 1")
		c.await(nil)
		c.bystand()
	}, goesOn},
	{"reject", "the server is behind one seen before", func(c *crash) {
		c.alone()
		of := func(generation int) {
			testkit.Execute(c.t, c.pool, fmt.Sprintf("UPDATE pgleases.server SET generation = %d", generation))
			testkit.Execute(c.t, c.pool, "UPDATE pgleases.leases SET generation = generation + 1") // so that it is read
		}
		of(7)
		waitFor(c.t, patience, "all is owned in that server generation", func() bool {
			return testkit.Value[bool](c.t, c.pool, "SELECT min(epoch) >> 32 = 7 FROM pgleases.partitions")
		})
		c.arm("reject")
		of(3)
		c.await(nil)
		c.bystand()
	}, goesOn},
	{"join", "its weight is wrong", atBalance("join", (*crash).setWrongWeight), goesOn},
	{"superseder", "a newer process has begun", atBalance("superseder", (*crash).supersede), endsOusted},
	{"guard", "it works", func(c *crash) {
		effects := faults.NewEffects(c.pool, "l")
		testkit.OK(c.t, effects.Create(c.t.Context(), crashPartitions))
		c.config.Effects = true
		c.bystand()
		ctx, cancel := context.WithCancel(context.Background())
		var writes sync.WaitGroup
		writes.Go(func() { effects.Write(ctx, c.lease, "bystander") })
		c.t.Cleanup(func() { cancel(); writes.Wait() })
		c.effects = func() {
			cancel()
			writes.Wait()
			ledger := testkit.Must(effects.Ledger(context.Background()))(c.t)
			late := ledger.Check()
			if len(ledger.Writes) == 0 || len(late) > 0 {
				c.t.Errorf("of %d writes under Guard, these came late: %v", len(ledger.Writes), late)
			}
		}
		c.start()
		c.balanced()
		c.arm("guard")
		c.await(nil)
	}, goesOn},
}

// notCrashed has the files that are not statements of the protocol, and the reasons.
var notCrashed = map[string]string{
	"locklist": "it only reads",
	"owners":   "it only reads",
	"report":   "it changes what operators see of the client, and is sent again if it may be lost",
	"reaches":  "it only reads",
	"sample":   "it writes what only people read, and a later call writes what is missing",
}

// A client crashes or loses its connection at any statement of the protocol, applied or not.
// Afterwards every partition gets an owner. Not in parallel with other tests. Many cases run at
// once, because they mostly wait.
func TestACrashAtAnyStatementLeavesNothingStuck(t *testing.T) {
	files, err := filepath.Glob("../sql/statements/*.sql")
	if err != nil || len(files) == 0 {
		t.Fatalf("no statements: %v", err)
	}
	for _, path := range files {
		name := strings.TrimSuffix(filepath.Base(path), ".sql")
		listed := slices.ContainsFunc(crashCases, func(c crashCase) bool { return c.file == name })
		if _, not := notCrashed[name]; listed == not {
			t.Errorf("%s needs an entry in one of crashCases and notCrashed", path)
		}
	}
	slots := make(chan struct{}, crashesAtOnce)
	var wait sync.WaitGroup
	covered := make(map[string]bool)
	for i, test := range crashCases {
		if covered[test.file] && brief() {
			continue
		}
		covered[test.file] = true
		for kind := faults.KillBefore; kind <= faults.CutAfter; kind++ {
			if brief() && int(kind) != i%4 {
				continue
			}
			wait.Go(func() {
				slots <- struct{}{}
				defer func() { <-slots }()
				t.Run(fmt.Sprintf("%s/%v, when %s", test.file, kind, test.when), func(t *testing.T) {
					timeguard.Run(t, func(t *timeguard.Try) { crashAt(t, test, kind) })
				})
			})
		}
	}
	wait.Wait()
}

// crashAt runs one case.
func crashAt(t testing.TB, test crashCase, kind faults.Breach) {
	database := pgtest.Database
	if test.file == "schema" { // the first client creates it
		database = pgtest.EmptyDatabase
	}
	c := newCrash(t, kind, database(t))
	test.run(c)
	after := test.then
	if kind == faults.KillBefore || kind == faults.KillAfter {
		after = -1
	}
	for _, shut := range c.twins {
		shut()
	}
	switch after {
	case goesOn:
		hasJoined(t, c.victim)
		beats := c.beats + 2
		c.within("both go on", func() bool { return c.wire.Seen("heartbeat") >= beats && c.bothOwn() })
		c.ended((*faults.Process).Close, false, true)
		waitFor(t, patience, "the bystander owns what the victim released", c.bystanderOwns)
	case opensNot:
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if ended, err := c.victim.Ended(ctx); err == nil || ctx.Err() != nil {
			t.Errorf("it was opened, and ended with %+v, %v", ended, err)
		}
		c.within("the bystander owns all", c.bystanderOwns)
	case endsClosed, endsOusted:
		// With fast failover, trust ends with the connection, and a client without trust waits for
		// no database.
		c.ended((*faults.Process).Ended, after == endsOusted, !fast(c.t, c.pool))
		c.within("the bystander owns all", c.bystanderOwns)
	default:
		c.within("the bystander owns all", c.bystanderOwns)
	}
	c.finish()
}

// A crash holds what one case needs.
type crash struct {
	t     testing.TB
	kind  faults.Breach
	url   string
	pool  *pgxpool.Pool // without the wire
	admin *pgxpool.Pool // for statements that no client sends
	wire  *faults.Wire
	dir   string
	began time.Time
	since time.Time // the time from which on everything must be well again soon
	beats int       // the victim's heartbeats before the breach

	config  faults.Config
	victim  *faults.Process
	started chan struct{}    // closed when victim is set
	done    <-chan time.Time // receives the time of the breach

	bystander *pgleases.Client
	lease     *pgleases.Lease
	logs      func() []oracle.Log
	twins     []func() // close other clients under the victim's ID
	effects   func()   // checks the writes under Guard; nil: no writes
	locks     func()   // checks the locks; nil: no locks
}

func newCrash(t testing.TB, kind faults.Breach, url string) *crash {
	direct, _ := pgtest.DirectURL(url)
	c := &crash{t: t, kind: kind, url: direct, dir: t.TempDir(), began: time.Now(), started: make(chan struct{})}
	c.pool, c.admin = testkit.Pool(t, c.url, size(3)), ownersPool(t, c.url)
	c.wire = testkit.Must(faults.NewWire(c.url, "pgleases"))(t)
	t.Cleanup(func() {
		if err := c.wire.Close(); err != nil {
			t.Error(err)
		}
	})
	c.config = worker(c.wire.URL(), "l", crashPartitions, c.dir, "victim", 1)
	c.config.TTL, c.config.Patience = crashTTL, 0 // an error of Open is reported at once
	return c
}

// start starts the victim.
func (c *crash) start() {
	c.config.ProbeURL = probeURL
	victim := testkit.Must(faults.Start(c.config))(c.t)
	c.victim = victim
	close(c.started)
	c.t.Cleanup(func() {
		victim.Kill()
		if c.t.Failed() {
			c.t.Logf("what the victim logged:\n%s", lastLines(victim.Output(), 100))
		}
	})
}

// bystand opens the bystander, which has no faults.
func (c *crash) bystand() {
	c.bystander = opened(c.t, c.url, "bystander", pgleases.WithTTL(crashTTL), quietly(c.t))
	c.lease = joined(c.t, c.bystander, "l", crashPartitions, pgleases.WithHandoffDelay(0))
	c.logs = watched(c.t, map[string]*pgleases.Lease{"bystander": c.lease})
	c.since = time.Now()
}

// underLocks lets the victim and all other clients take locks, and write under them. Wherever the
// victim ends, each lock can be acquired again.
func underLocks(run func(*crash)) func(*crash) {
	return func(c *crash) {
		const names = 2
		effects := faults.NewEffects(c.pool, faults.LocksName)
		testkit.OK(c.t, effects.Create(c.t.Context(), names))
		c.config.Locks, c.config.Effects = names, true
		testkit.OK(c.t, faults.NewEffects(c.pool, "l").Create(c.t.Context(), crashPartitions))
		run(c)
		manager := lock.New(c.bystander, c.pool)
		c.locks = func() {
			nothing := func(context.Context) error { return nil }
			c.within("each lock can be taken", func() bool {
				for n := range names {
					ran, err := manager.TryDo(c.t.Context(), faults.LockName(n), nothing)
					if err != nil {
						c.lostTrust("lock %d cannot be taken: %v", n, err)
					}
					if !ran {
						return false
					}
				}
				return true
			})
			ledger := testkit.Must(effects.Ledger(c.t.Context()))(c.t)
			late := weighedWrites(c.t, ledger)
			if len(late) > 0 {
				c.t.Errorf("of %d writes under locks, these came late: %v", len(ledger.Writes), late)
			}
			logs := testkit.Must(locks.Read(c.dir))(c.t)
			verify(c.t, logs)
		}
	}
}

// alone starts a victim that owns all partitions.
func (c *crash) alone() {
	c.start()
	hasJoined(c.t, c.victim)
	c.waitFor("the victim owns all", func() bool { return len(held(c.t, c.victim)) == crashPartitions })
}

func (c *crash) balanced() {
	hasJoined(c.t, c.victim)
	c.waitFor("both own half", c.bothOwn)
	if c.config.Locks > 0 {
		// Otherwise its close has no lock to release.
		c.waitFor("the victim asks for locks", func() bool { return c.wire.Seen("lockacquire") > 0 })
	}
}

func (c *crash) waitFor(what string, holds func() bool) {
	c.t.Helper()
	waitFor(c.t, patience, what, holds)
}

// arm arms the wire for the statement.
func (c *crash) arm(statement string) {
	c.done = c.wire.Arm(statement, 1, c.kind, func() {
		<-c.started // the statement may arrive before start returns
		c.victim.Kill()
	})
}

// breached is what the verdict calls a breach.
func breached(kind faults.Breach) string { return kind.String() + " at a statement" }

// await waits until the victim has sent the statement. It provokes the statement repeatedly,
// because the bystander may send it first.
func (c *crash) await(provoke func(*crash)) {
	c.t.Helper()
	began, late := time.Now(), time.After(patience)
	for {
		if provoke != nil {
			provoke(c)
		}
		select {
		case c.since = <-c.done:
			tally.Fault(c.t, breached(c.kind))
			c.beats = c.wire.Seen("heartbeat")
			return
		case <-c.victim.Done():
			select {
			case c.since = <-c.done: // it was killed at the statement
				tally.Fault(c.t, breached(c.kind))
				return
			case <-time.After(crashTTL):
			}
			ended, err := c.victim.Ended(c.t.Context())
			c.lostTrust("the victim ended before it sent the statement: %+v, %v", ended, err)
		case <-time.After(crashTTL / 2):
		case <-late:
			missed(c.t, began, patience, "the victim never sent the statement, or it failed")
		}
	}
}

// atFirst breaches the first such statement of the first client of the lease.
func atFirst(statement string) func(*crash) {
	return func(c *crash) {
		c.arm(statement)
		c.start()
		c.await(nil)
		c.bystand()
	}
}

// atStart breaches the first such statement of a victim.
func atStart(statement string) func(*crash) {
	return func(c *crash) {
		c.bystand()
		c.arm(statement)
		c.start()
		c.await(nil)
	}
}

// atBalance breaches the next such statement when both clients own half of the partitions.
func atBalance(statement string, provoke func(*crash)) func(*crash) {
	return func(c *crash) {
		c.bystand()
		c.start()
		c.balanced()
		c.arm(statement)
		c.await(provoke)
	}
}

// atEviction breaches the next such statement of a victim that was stopped until it was evicted.
func atEviction(statement string) func(*crash) {
	return func(c *crash) {
		c.bystand()
		c.start()
		c.balanced()
		testkit.OK(c.t, c.victim.Pause())
		tally.Fault(c.t, "pause")
		c.waitFor("the victim is evicted", c.bystanderOwns)
		c.arm(statement)
		testkit.OK(c.t, c.victim.Resume())
		c.await(nil)
	}
}

// atDeath breaches the next such statement after a third client was killed. Only the victim can
// notice that client's end.
func atDeath(statement string) func(*crash) {
	return func(c *crash) {
		c.start()
		third := c.third()
		third.Kill()
		tally.Fault(c.t, "kill")
		c.arm(statement)
		// Its TTL is over from now on; an earlier expiry check would find no expired client.
		testkit.Execute(c.t, c.pool, `UPDATE pgleases.clients SET expires_at = clock_timestamp() - interval '1 second'
			WHERE id = 'third'`)
		testkit.Execute(c.t, c.pool, "UPDATE pgleases.server SET next_check_at = clock_timestamp()")
		c.await(nil)
		c.bystand()
	}
}

// third starts a third client, which owns half of the partitions.
func (c *crash) third() *faults.Process {
	config := worker(c.url, "l", crashPartitions, c.dir, "third", 1)
	config.Locks, config.Effects, config.Fast = c.config.Locks, c.config.Effects, c.config.Fast
	third := startWorker(c.t, config)
	hasJoined(c.t, c.victim)
	hasJoined(c.t, third)
	c.waitFor("both own half", func() bool {
		return len(held(c.t, c.victim)) == crashPartitions/2 && len(held(c.t, third)) == crashPartitions/2
	})
	return third
}

// fastly gives the victim fast failover.
func fastly(run func(*crash)) func(*crash) {
	return func(c *crash) {
		needFastFailover(c.t, c.pool)
		c.config.Fast = true
		run(c)
	}
}

func (c *crash) unmark() { testkit.Execute(c.t, c.admin, "DELETE FROM pgleases.boot_marker") }

// ask requests a plan, one that moves a partition.
func (c *crash) ask() {
	testkit.Execute(c.t, c.pool, `WITH asked AS (
			UPDATE pgleases.leases SET generation = generation + 1, plan_due_at = clock_timestamp() RETURNING name
		)
		UPDATE pgleases.partitions AS p SET target = (SELECT session FROM pgleases.clients WHERE id = 'bystander')
		FROM asked
		WHERE p.lease = asked.name AND p.partition = (SELECT min(own.partition) FROM pgleases.partitions AS own
			JOIN pgleases.clients AS c ON c.session = own.owner WHERE c.id = 'victim' AND own.target = own.owner)`)
}

func (c *crash) change() {
	testkit.Execute(c.t, c.pool, "UPDATE pgleases.leases SET generation = generation + 1")
}

func (c *crash) setWrongWeight() {
	testkit.Execute(c.t, c.pool, `WITH changed AS ( -- a heartbeat returns leases after a change of one
			UPDATE pgleases.leases SET plan_due_at = plan_due_at RETURNING name
		) UPDATE pgleases.members SET weight = 2
		WHERE lease IN (SELECT name FROM changed) AND session IN (SELECT session FROM pgleases.clients WHERE id = 'victim')`)
}

// close starts to close the victim.
func (c *crash) close() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	go func() {
		defer cancel()
		_, _ = c.victim.Close(ctx) // ended returns the same
	}()
}

// supersede opens another client under the victim's ID, which joins no lease.
func (c *crash) supersede() {
	if c.twins != nil {
		return
	}
	twin := opened(c.t, c.url, "victim", pgleases.WithTTL(crashTTL), quietly(c.t))
	c.twins = append(c.twins, func() { shut(c.t, twin) })
}

// within waits for a condition that must hold within 2 TTL of the breach, or of the opening of the
// bystander.
func (c *crash) within(what string, holds func() bool) {
	c.t.Helper()
	const limit = 2*crashTTL + slack
	// Not more often, because each look queries the database, and all other cases do too.
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for c.oneSession(); !holds(); c.oneSession() {
		if time.Since(c.since) > limit {
			missed(c.t, c.since, limit, "not within %v: %s: %s", limit, what, c.state())
		}
		<-look.C
	}
	c.t.Logf("%s after %v", what, time.Since(c.since).Round(time.Millisecond))
}

// lostTrust reports something that only a client without trust does. On a machine that keeps time,
// no client does it.
func (c *crash) lostTrust(format string, args ...any) {
	c.t.Helper()
	missed(c.t, c.began, bears(crashTTL, crashTTL/3), format, args...)
}

// oneSession fails the test if a client ID has two sessions. A registration whose answer was lost
// must not leave one behind.
func (c *crash) oneSession() {
	c.t.Helper()
	if testkit.Value[bool](c.t, c.pool, "SELECT count(*) > count(DISTINCT id) FROM pgleases.clients") {
		c.t.Fatalf("one client has two sessions: %s", c.state())
	}
}

// bothOwn reports whether both clients are live and own half of the partitions, with the same
// owners and epochs as in the database.
func (c *crash) bothOwn() bool {
	if len(c.lease.Values()) != crashPartitions/2 {
		return false
	}
	log := testkit.Must(c.victim.Watched())(c.t)
	owns := make([]string, crashPartitions)
	for _, i := range log.Intervals {
		if i.Open {
			owns[i.Partition] += fmt.Sprintf("victim@%d", i.Epoch)
		}
	}
	for _, n := range c.lease.Values() {
		if p, ok := c.lease.Partition(n); ok {
			owns[n] += fmt.Sprintf("bystander@%d", p.Epoch)
		}
	}
	if slices.Contains(owns, "") || c.counts() != "2 2 8" {
		return false
	}
	return strings.Join(owns, " ") == testkit.Value[string](c.t, c.pool, `
		SELECT string_agg(c.id || '@' || p.epoch, ' ' ORDER BY p.partition)
		FROM pgleases.partitions AS p JOIN pgleases.clients AS c ON c.session = p.owner`)
}

// bystanderOwns reports whether the bystander owns all partitions, and no rows of other clients
// remain.
func (c *crash) bystanderOwns() bool {
	return len(c.lease.Values()) == crashPartitions && c.counts() == "1 1 8"
}

// counts returns the numbers of clients, members, and partitions of live members.
func (c *crash) counts() string {
	return testkit.Value[string](c.t, c.pool, `SELECT concat_ws(' ',
		(SELECT count(*) FROM pgleases.clients), (SELECT count(*) FROM pgleases.members),
		(SELECT count(*) FROM pgleases.partitions AS p JOIN pgleases.members AS m ON m.lease = p.lease AND m.session = p.owner
		 JOIN pgleases.clients AS c USING (session) WHERE p.target = p.owner))`)
}

// state describes the tables.
func (c *crash) state() string {
	var values []int
	if c.lease != nil {
		values = c.lease.Values()
	}
	rows := testkit.Value[string](c.t, c.pool, `SELECT format('clients %s; members %s; partitions %s',
		(SELECT string_agg(id || ' ' || session || ' ' || expires_at - clock_timestamp(), ', ') FROM pgleases.clients),
		(SELECT string_agg(session::text || '*' || weight, ', ') FROM pgleases.members),
		(SELECT string_agg(format('%s: %s>%s', partition, owner, target), ', ' ORDER BY partition)
			FROM pgleases.partitions))`)
	return fmt.Sprintf("the bystander owns %v; %s", values, rows)
}

// ended waits for the end of the victim. A victim that leaves must have removed its rows.
func (c *crash) ended(end func(*faults.Process, context.Context) (faults.Event, error), superseded, leaves bool) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	ended, err := end(c.victim, ctx)
	if err != nil || ended.Superseded != superseded {
		c.t.Errorf("the victim ended with %+v, %v", ended, err)
	}
	if leaves && (ended.Left != "" || c.left("victim")) {
		c.lostTrust("the victim ended with %+v, and rows remain: %s", ended, c.state())
	}
}

// left reports whether rows of an ended client remain, or rows without a client.
func (c *crash) left(id string) bool {
	c.t.Helper()
	return testkit.Value[bool](c.t, c.pool, `WITH others AS (SELECT session FROM pgleases.clients WHERE id <> $1)
		SELECT EXISTS (SELECT FROM pgleases.clients WHERE session NOT IN (SELECT session FROM others))
			OR EXISTS (SELECT FROM pgleases.members WHERE session NOT IN (SELECT session FROM others))
			OR EXISTS (SELECT FROM pgleases.locks WHERE session NOT IN (SELECT session FROM others))
			OR EXISTS (SELECT FROM pgleases.partitions WHERE owner IS NOT NULL AND owner NOT IN (SELECT session FROM others))`, id)
}

// finish closes the bystander. Then no rows remain, and no partition ever had two owners.
func (c *crash) finish() {
	c.t.Helper()
	if c.effects != nil {
		c.effects()
	}
	if c.locks != nil {
		c.locks()
	}
	if err := c.bystander.Err(); err != nil {
		c.t.Errorf("the bystander ended: %v", err)
	}
	shut(c.t, c.bystander)
	if c.left("bystander") {
		c.lostTrust("after all were closed, rows remain: %s", c.state())
	}
	logs := testkit.Must(leases.Read(c.dir))(c.t)
	verify(c.t, append(logs, c.logs()...))
}
