//go:build unix

package proof_test

import (
	"context"
	"flag"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/timeguard"
	"github.com/pgleases/pgleases/proof/faults"
	"github.com/pgleases/pgleases/proof/pgserver"
	"github.com/pgleases/pgleases/proof/tally"
	"github.com/pgleases/pgleases/schedule/sql"
)

var everyCrash = flag.Bool("every-crash", false, "kill processes before and after each statement, "+
	"for each kind of handler; without it, at each statement once")

// The kinds of handlers whose processes are killed.
var (
	inTransaction = []string{"quick", "scarce"}
	outside       = []string{"mailed", "phoned", "paid"}
	withLimit     = []string{"scarce", "phoned"}
	// One of each kind of handler, with limits, and jobs.
	crashedSoon = []string{"scarce", "phoned", "paid", "ordered"}
	allCrashed  = slices.Concat(inTransaction, outside, []string{"ordered"})
)

// A scheduleCrash is a statement at which a process is killed.
type scheduleCrash struct {
	statement string
	of        []string               // the kinds of handlers that send it; nil: all
	provoke   func(*scheduleVictims) // called repeatedly until it is sent; nil: not needed
}

// scheduleCrashes has an entry for each statement of package schedule, in the order of their first
// use by a process.
var scheduleCrashes = []scheduleCrash{
	{"declared", nil, nil},
	{"create", nil, nil}, // while the schedules do not exist yet
	{"join", nil, nil},
	{"get", nil, nil},
	{"channel", nil, nil},
	{"listen", nil, nil},
	{"poll", nil, nil},
	{"begin a run", nil, nil},
	{"begin", nil, nil},
	{"open", nil, nil},
	{"write", inTransaction, nil},
	{"flush a call", []string{"paid"}, nil},
	{"limit", nil, nil},
	{"endtick", inTransaction, nil},
	{"close", outside, nil}, // also records that a call outside begins
	{"commit a run", nil, nil},
	{"postponejob", []string{"ordered"}, nil},
	{"endjob", []string{"ordered"}, nil},
	{"makeslots", withLimit, nil},
	{"takeslot", withLimit, nil},
	{"freeslot", []string{"phoned"}, nil},
	{"enqueuemany", []string{"ordered"}, nil},
	{"end", nil, (*scheduleVictims).close},
	{"trim", nil, (*scheduleVictims).close},
	{"place", nil, (*scheduleVictims).close},
}

// Why the statements of verbs are not sent while anything runs.
const (
	ofCaller   = "a caller's, in a transaction as create"
	ofOperator = "an operator's, in a transaction as create"
)

// notScheduleCrashed has the statements that are not sent while anything runs, and the reasons.
var notScheduleCrashed = map[string]string{
	"list":             "it only reads",
	"history":          "it only reads",
	"jobs":             "it only reads",
	"job":              "it only reads",
	"locked":           "it only reads",
	"read":             "it only reads",
	"block":            "it only marks what cannot run, and is sent again",
	"setaside":         "it only marks what cannot be read, and is sent again",
	"declare":          "sent each hour, for schedules that no process has declared for a day",
	"replace":          "sent if the code declares another rule, in a transaction as create",
	"enqueue":          "in a transaction as enqueuemany",
	"enqueueorkeep":    "in a transaction as enqueuemany",
	"enqueueorreplace": "in a transaction as enqueuemany",
	"dolock":           ofCaller,
	"dopause":          ofCaller,
	"doresume":         ofCaller,
	"docatchup":        ofCaller,
	"dodelete":         ofCaller,
	"dotrigger":        ofCaller,
	"dobackfill":       ofCaller,
	"doretrytick":      ofCaller,
	"doretryjob":       ofCaller,
	"doretryfailed":    ofCaller,
	"docanceljob":      ofCaller,
	"lock":             ofOperator,
	"pause":            ofOperator,
	"resume":           ofOperator,
	"catchup":          ofOperator,
	"delete":           ofOperator,
	"trigger":          ofOperator,
	"backfill":         ofOperator,
	"retrytick":        ofOperator,
	"retryjob":         ofOperator,
	"retryfailed":      ofOperator,
	"canceljob":        ofOperator,
}

// A process is killed before and after each statement, for each kind of handler. Every tick and job
// still has one outcome and its effect once.
func TestCrashAtAnyStatementLosesNothing(t *testing.T) {
	t.Parallel()
	for _, name := range sql.Statements() {
		listed := slices.ContainsFunc(scheduleCrashes, func(c scheduleCrash) bool { return c.statement == name })
		if _, not := notScheduleCrashed[name]; listed == not {
			t.Errorf("%s needs an entry in one of scheduleCrashes and notScheduleCrashed", name)
		}
	}
	for _, c := range scheduleCrashes {
		if faults.Besides[faults.OfSchedules+c.statement] == "" && !slices.Contains(sql.Statements(), c.statement) {
			t.Errorf("there is no statement %q", c.statement)
		}
	}
	if testing.Short() {
		t.Skip("has a server of its own")
	}
	server := pgserver.Private(t, committing)
	for kind, crashes := range plannedCrashes() {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			timeguard.Run(t, func(t *timeguard.Try) {
				v := newScheduleVictims(t, server, kind)
				for n, crash := range crashes {
					if *everyCrash || n%2 == 0 {
						v.crash(crash, faults.KillBefore)
					}
					if *everyCrash || n%2 == 1 {
						v.crash(crash, faults.KillAfter)
					}
				}
				v.finish()
			})
		})
	}
}

// plannedCrashes returns the crashes of each kind: all of them, or a selection that has each
// statement once.
func plannedCrashes() map[string][]scheduleCrash {
	planned := make(map[string][]scheduleCrash)
	for _, crash := range scheduleCrashes {
		of := crash.of
		if of == nil {
			of = allCrashed
		}
		if !*everyCrash {
			later := func(kind string) bool { return !slices.Contains(crashedSoon, kind) }
			of = slices.DeleteFunc(slices.Clone(of), later)
			of = []string{slices.MinFunc(of, func(a, b string) int { return len(planned[a]) - len(planned[b]) })}
		}
		for _, kind := range of {
			planned[kind] = append(planned[kind], crash)
		}
	}
	return planned
}

// scheduleVictims are two processes that run the schedules of one kind. They are killed one after
// the other, and each is replaced.
type scheduleVictims struct {
	t       testing.TB
	pool    *pgxpool.Pool
	config  faults.Config
	dir     string
	arm     func(*scheduleVictim) // nil: no crash
	living  []*scheduleVictim
	killed  chan scheduleKill
	made    int
	crashes int
	asked   time.Time // when a process was last asked to close
}

// A scheduleVictim is one of these processes, behind a wire of its own.
type scheduleVictim struct {
	*faults.Process
	wire    *faults.Wire
	started chan struct{} // closed when Process is set
	closes  bool          // it was asked to close
}

// A scheduleKill says which process was killed, and at which crash.
type scheduleKill struct {
	victim *scheduleVictim
	crash  int // counted from 1
}

func newScheduleVictims(t testing.TB, server *pgserver.Server, kind string) *scheduleVictims {
	t.Helper()
	url := ownDatabase(t, server)
	v := &scheduleVictims{t: t, dir: t.TempDir(), killed: make(chan scheduleKill, 100)}
	v.config = withSchedules(t, url, url, false)
	v.pool = testkit.Pool(t, url, size(3))
	v.config.Lease, v.config.Kinds, v.config.Orders = "", []string{kind}, kind == "ordered"
	if v.config.Orders {
		v.config.Kinds = []string{"quick"}
	}
	return v
}

// start starts another process.
func (v *scheduleVictims) start() {
	v.t.Helper()
	wire := testkit.Must(faults.NewWire(v.config.URL, "pgleases"))(v.t)
	v.t.Cleanup(func() {
		if err := wire.Close(); err != nil {
			v.t.Error(err)
		}
	})
	v.made++
	config := v.config
	config.URL, config.ID = wire.URL(), fmt.Sprintf("victim-%d", v.made)
	config.Log = filepath.Join(v.dir, config.ID+".log")
	victim := &scheduleVictim{wire: wire, started: make(chan struct{})}
	if v.arm != nil {
		v.arm(victim)
	}
	victim.Process = startWorker(v.t, config)
	close(victim.started)
	v.living = append(v.living, victim)
}

// crash kills the first process that sends a statement.
func (v *scheduleVictims) crash(crash scheduleCrash, breach faults.Breach) {
	v.t.Helper()
	v.crashes++
	n := v.crashes
	v.arm = func(victim *scheduleVictim) {
		victim.wire.Arm(faults.OfSchedules+crash.statement, 1, breach, func() {
			<-victim.started // the statement may arrive before start returns
			victim.Kill()
			v.killed <- scheduleKill{victim, n}
		})
	}
	for _, victim := range v.living {
		v.arm(victim)
	}
	began := time.Now()
	for hit := false; !hit; {
		for len(v.living) < 2 {
			v.start()
		}
		if crash.provoke != nil {
			crash.provoke(v)
		}
		hit = v.collect() == n
		if hit {
			tally.Fault(v.t, breached(breach))
		}
		if time.Since(began) > patience {
			missed(v.t, began, patience, "no process has sent %s, or it failed", crash.statement)
		}
	}
	v.disarm()
	v.t.Logf("%v %s, after %v", breach, crash.statement, time.Since(began).Round(time.Millisecond))
}

// collect waits a little for a killed process, and returns the number of its crash; 0: no process
// was killed. It also removes a process that was asked to close and has ended.
func (v *scheduleVictims) collect() (crash int) {
	v.t.Helper()
	select {
	case k := <-v.killed:
		return v.forget(k)
	case <-time.After(crashTTL / 4):
	}
	for _, victim := range slices.Clone(v.living) {
		select {
		case <-victim.Done():
		default:
			continue
		}
		select {
		case k := <-v.killed: // the message arrives a moment later
			return v.forget(k)
		case <-time.After(crashTTL):
		}
		if ended, err := victim.Ended(v.t.Context()); err != nil || !victim.closes {
			v.t.Fatalf("%s ended on its own: %+v, %v", victim.Config.ID, ended, err)
		}
		v.forget(scheduleKill{victim, 0})
	}
	return 0
}

func (v *scheduleVictims) forget(k scheduleKill) (crash int) {
	v.living = slices.DeleteFunc(v.living, func(l *scheduleVictim) bool { return l == k.victim })
	return k.crash
}

// disarm cancels all breaches.
func (v *scheduleVictims) disarm() {
	v.arm = nil
	for _, victim := range v.living {
		victim.wire.Disarm()
	}
}

// close asks one of the two processes to close, unless one is closing, and if the other has had
// time to continue with its partitions.
func (v *scheduleVictims) close() {
	closing := slices.ContainsFunc(v.living, func(l *scheduleVictim) bool { return l.closes })
	if closing || time.Since(v.asked) < 3*crashTTL {
		return
	}
	v.asked = time.Now()
	victim := v.living[0]
	victim.closes = true
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	go func() {
		defer cancel()
		_, _ = victim.Close(ctx) // ended returns the same
	}()
}

// finish runs one more process until everything has its outcome, and checks that. One of the others
// may be about to be killed.
func (v *scheduleVictims) finish() {
	v.t.Helper()
	v.start()
	waitFor(v.t, patience, "something is done", func() bool {
		return count(v.t, v.pool, "pgleases.history WHERE outcome = 'succeeded'") > 0
	})
	waitForOutcomes(v.t, v.pool, v.config.Kinds...)
	ctx, cancel := context.WithTimeout(v.t.Context(), patience)
	defer cancel()
	last := len(v.living) - 1
	for _, victim := range v.living[:last] {
		victim.Kill()
	}
	if _, err := v.living[last].Close(ctx); err != nil {
		v.t.Error(err)
	}
	judge(v.t, readLedger(v.t, v.pool, v.dir))
}
