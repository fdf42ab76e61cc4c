//go:build unix

package proof_test

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/proof/faults"
	"github.com/pgleases/pgleases/proof/pgserver"
	"github.com/pgleases/pgleases/proof/punctual"
	"github.com/pgleases/pgleases/schedule"
)

var (
	scheduleFaults = flag.Int("schedule-faults", 12, "how many faults befall processes that run schedules, and half as many those behind a pooler")
	scheduleSeed   = flag.Uint64("schedule-seed", 0, "the seed that decides which; 0: any")
)

// Every tick has one fate, what is done has its effect once, and nothing else has one, whatever befalls processes, networks and the database.
func TestEveryTickHasOneFateAndItsEffectOnceWhateverBefallsTheFleet(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		pooled bool
		faults int
	}{{"direct", false, *scheduleFaults}, {"through PgBouncer", true, *scheduleFaults / 2}} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			punctual.Run(t, func(t *punctual.Try) {
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

// committing has a server note when transactions were committed.
var committing = pgserver.WithSettings(map[string]string{"track_commit_timestamp": "on"})

// withSchedules makes the tables, and returns what workers are that run schedules.
func withSchedules(t testing.TB, url, direct string, pooled bool) faults.Config {
	t.Helper()
	pool := newPool(t, direct, size(1))
	if err := schedule.Migrate(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	execute(t, pool, faults.SchedulesTable)
	pool.Close()
	return faults.Config{
		URL: url, Pooled: pooled, DirectURL: direct, Lease: "l", Partitions: 8, TTL: time.Second, Schedules: true, Patience: patience, ProbeURL: probeURL(t),
	}
}

const effects = "SELECT count(*) FROM ticks"

// attackSchedules has so many faults befall a fleet, and checks the ledger then.
func attackSchedules(t *punctual.Try, url string, database *faults.Database, total int) {
	t.Helper()
	seed := *scheduleSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d", seed)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	began := time.Now()
	fleet, err := faults.NewFleet(ctx, withSchedules(t, url, database.URL, database.Bouncer != nil), t.TempDir(), 4, seed)
	t.Cleanup(func() { endFleet(t, fleet, 60) })
	if err != nil {
		t.Fatal(err)
	}
	pool := newPool(t, database.URL, size(2))
	told(t, pool)
	waitFor(t, patience, "schedules run", func() bool { return value[int](t, pool, effects) >= len(faults.Schedules()) })
	fleet.Faults = slices.DeleteFunc(slices.Clone(fleet.Faults), func(f faults.Fault) bool { return f.Name == "crowd" }) // of connections
	database.Befall(fleet)
	fleet.Enough = func(counts map[string]int) bool { return sum(counts) >= total }
	ctx, cancel = context.WithTimeout(t.Context(), time.Duration(total)*5*time.Second+patience)
	defer cancel()
	if err := fleet.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if n := sum(fleet.Counts); n < total {
		t.Missed(began, time.Since(began), "%d faults, not at least %d: the test proves too little", n, total)
	}
	pool.Reset() // its connections may have ended with the server
	told(t, pool)
	ctx, cancel = context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := fleet.Close(ctx); err != nil {
		t.Error(err)
	}
	l := readLedger(t, pool)
	for _, problem := range l.check() {
		t.Error(problem)
	}
	t.Logf("%v; faults: %v", l, fleet.Counts)
	if least := len(l.schedules) * int(time.Since(began).Seconds()) / 10; len(l.effects) < least {
		t.Missed(began, time.Since(began), "%d effects, not at least %d: the test proves too little", len(l.effects), least)
	}
}

// A standby that missed the last runs is promoted: on it they have neither fates nor effects, and are run again, once.
func TestAPromotedStandbyRunsEachTickOnce(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("has servers of its own")
	}
	punctual.Run(t, func(t *punctual.Try) {
		began := time.Now()
		c := newCluster(t, 2, committing)
		old, next := c.servers[0], c.servers[1]
		config := withSchedules(t, c.url(t, c.doors...), old.URL(), false)
		dir := t.TempDir()
		var workers []*faults.Process
		for i := range 3 {
			config.ID = fmt.Sprintf("worker-%d", i)
			config.Log = fmt.Sprintf("%s/%s.log", dir, config.ID)
			workers = append(workers, startWorker(t, config))
		}
		for _, w := range workers {
			hasJoined(t, w)
		}
		pool := newPool(t, old.URL(), size(1))
		told(t, pool)
		caughtUp(t, old, next)
		if err := c.pipes[0].Freeze(); err != nil {
			t.Fatal(err)
		}
		before := value[int](t, pool, effects)
		waitFor(t, patience, "the standby has missed runs", func() bool { return value[int](t, pool, effects) > before+len(faults.Schedules()) })
		pool.Close()
		if err := old.Kill(); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if err := next.Promote(ctx); err != nil {
			t.Fatal(err)
		}
		pool = newPool(t, next.URL(), size(1))
		if n := value[int](t, pool, effects); n > before+len(faults.Schedules()) {
			t.Missed(began, time.Since(began), "the standby had %d effects, and %d when it was cut off: the test proves too little", n, before)
		}
		told(t, pool)
		for _, w := range workers {
			if _, err := w.Close(ctx); err != nil {
				t.Error(err)
			}
		}
		l := readLedger(t, pool)
		for _, problem := range l.check() {
			t.Error(problem)
		}
		t.Logf("%v", l)
	})
}

// told waits until every tick up to now has its fate.
func told(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	until := value[time.Time](t, pool, "SELECT clock_timestamp()")
	waitFor(t, patience, "every tick has its fate", func() bool {
		all := readSchedules(t, pool)
		return len(all) == len(faults.Schedules()) && !slices.ContainsFunc(slices.Collect(maps.Values(all)), func(s scheduled) bool { return len(s.ticks(s.Cursor, until)) > 0 })
	})
}

// A scheduled is what the database has of a schedule, beside what should be.
type scheduled struct {
	faults.Schedule
	Anchor, Cursor time.Time
}

// ticks are those that there should be after an instant, up to another, told without package schedule.
func (s scheduled) ticks(after, until time.Time) (ticks []time.Time) {
	at := s.First(s.Anchor)
	if n := after.Sub(at) / s.Every; n > 0 {
		at = at.Add(n * s.Every)
	}
	for ; !at.After(until); at = at.Add(s.Every) {
		if at.After(after) {
			ticks = append(ticks, at)
		}
	}
	return ticks
}

func readSchedules(t testing.TB, pool *pgxpool.Pool) map[string]scheduled {
	t.Helper()
	all := make(map[string]scheduled)
	for _, s := range faults.Schedules() {
		all[s.Name] = scheduled{Schedule: s}
	}
	rows, _ := pool.Query(t.Context(), "SELECT name, anchor, cursor FROM pgleases.schedules") // ForEachRow returns its error
	var name string
	var anchor, cursor time.Time
	_, err := pgx.ForEachRow(rows, []any{&name, &anchor, &cursor}, func() error {
		s := all[name]
		s.Anchor, s.Cursor = anchor, cursor
		all[name] = s
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	maps.DeleteFunc(all, func(_ string, s scheduled) bool { return s.Anchor.IsZero() }) // not made yet
	return all
}

// A ledger is what should have run, what the history says, and what the handlers wrote.
type scheduleLedger struct {
	schedules map[string]scheduled
	history   map[string][]scheduleEntry // in the order of writing
	effects   []scheduleEffect           // in the order of writing
}

type scheduleEntry struct {
	Name         string
	Since, Until time.Time
	Ticks        int64
	Fate         schedule.Fate
	Error        string
	Epoch        *int64
	Started      *time.Time
}

type scheduleEffect struct {
	Name, Key, Worker string
	Partition         int
	Epoch             int64
	At, Began         time.Time
	Whole             bool
	Committed         time.Time
}

func readLedger(t testing.TB, pool *pgxpool.Pool) *scheduleLedger {
	t.Helper()
	l := &scheduleLedger{schedules: readSchedules(t, pool), history: make(map[string][]scheduleEntry)}
	rows, _ := pool.Query(t.Context(), "SELECT name, since, until, ticks, fate, coalesce(error, ''), epoch, started_at FROM pgleases.history ORDER BY id") // CollectRows returns its error
	entries, err := pgx.CollectRows(rows, pgx.RowToStructByPos[scheduleEntry])
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		l.history[e.Name] = append(l.history[e.Name], e)
	}
	rows, _ = pool.Query(t.Context(), `SELECT name, key, worker, partition, epoch, at, began, ended IS NOT NULL, pg_xact_commit_timestamp(xmin)
		FROM ticks ORDER BY began, n`)
	if l.effects, err = pgx.CollectRows(rows, pgx.RowToStructByPos[scheduleEffect]); err != nil {
		t.Fatal(err)
	}
	return l
}

func (l *scheduleLedger) String() string {
	fates, dead := make(map[schedule.Fate]int64), make(map[string]int)
	for _, entries := range l.history {
		for _, e := range entries {
			fates[e.Fate] += e.Ticks
			if e.Fate == schedule.FateDead {
				dead[e.Error]++
			}
		}
	}
	return fmt.Sprintf("%d schedules, %d effects, fates: %v, dead of: %v", len(l.schedules), len(l.effects), fates, dead)
}

// check returns what is wrong.
func (l *scheduleLedger) check() (problems []string) {
	wrong := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	type tick struct {
		name string
		at   int64
	}
	done := make(map[tick]bool) // false: its effect was not seen yet
	for name, s := range l.schedules {
		reached := s.Anchor
		for _, e := range l.history[name] {
			if !e.Since.Equal(reached) {
				wrong("fates: %s: an entry begins at %v, and the one before ends at %v: %+v", name, e.Since, reached, e)
			}
			reached = e.Until
			ticks := s.ticks(e.Since, e.Until)
			if int64(len(ticks)) != e.Ticks {
				wrong("fates: %s: an entry tells of %d ticks, and there were %d: %+v", name, e.Ticks, len(ticks), e)
			}
			ran := e.Fate == schedule.FateDone || e.Fate == schedule.FateDead
			switch {
			case slices.Contains(s.Never, e.Fate):
				wrong("fates: %s: %s is none that it may have: %+v", name, e.Fate, e)
			case ran != (e.Epoch != nil && e.Started != nil) || ran && (e.Ticks != 1 || len(ticks) != 1 || !ticks[0].Equal(e.Until)):
				wrong("fates: %s: no run of one tick: %+v", name, e)
			case ran && e.Started.Before(e.Until):
				wrong("early: %s: it began at %v: %+v", name, e.Started, e)
			case (e.Fate == schedule.FateDead) != (e.Error != ""), e.Fate == schedule.FateDone && s.Kind == "fails" && faults.FailsAt(e.Until):
				wrong("fates: %s: %s with the error %q: %+v", name, e.Fate, e.Error, e)
			}
			if e.Fate == schedule.FateDone {
				done[tick{name, e.Until.UnixMicro()}] = false
			}
		}
		if !reached.Equal(s.Cursor) {
			wrong("fates: %s: the last entry ends at %v, and the cursor is %v", name, reached, s.Cursor)
		}
	}
	owners := make(map[int]scheduleEffect)    // by partition: of the newest epoch so far, the one that was committed last
	latest := make(map[string]scheduleEffect) // by key
	for _, e := range l.effects {
		k := tick{e.Name, e.At.UnixMicro()}
		seen, isDone := done[k]
		switch {
		case !isDone:
			wrong("effects: there is one of a tick that is not done: %+v", e)
		case seen:
			wrong("effects: there is a second one: %+v", e)
		case !e.Whole:
			wrong("effects: there is half of one: %+v", e)
		case e.Began.Before(e.At):
			wrong("early: %+v", e)
		default:
			before, ok := owners[e.Partition]
			if ok && (e.Epoch < before.Epoch || e.Epoch > before.Epoch && e.Began.Before(before.Committed)) {
				wrong("frozen: an owner writes on after the next has begun: %+v and %+v", before, e)
			}
			if !ok || e.Epoch > before.Epoch || e.Epoch == before.Epoch && e.Committed.After(before.Committed) {
				owners[e.Partition] = e
			}
		}
		if isDone {
			done[k] = true
		}
		if before, ok := latest[e.Key]; ok && before.Committed.After(e.Began) {
			wrong("overlap: under key %q: %+v and %+v", e.Key, before, e)
		}
		latest[e.Key] = e
	}
	for k, seen := range done {
		if !seen {
			wrong("effects: there is none of %s at %v, which is done", k.name, time.UnixMicro(k.at).UTC())
		}
	}
	slices.SortFunc(problems, strings.Compare)
	return problems
}
