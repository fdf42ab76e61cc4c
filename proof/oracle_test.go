//go:build unix

package proof_test

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/pgleases/pgleases/proof/faults"
	"github.com/pgleases/pgleases/proof/oracle"
	"github.com/pgleases/pgleases/proof/pgserver"
	"github.com/pgleases/pgleases/proof/punctual"
)

// Promises 1 to 3, 5 and 13, as far as 200 faults can tell, each kind at least three times. The seed of a failure tells which
// faults came, not when.
func TestNoTwoProcessesHoldAPartitionAtOnceWhateverBefallsThem(t *testing.T) {
	t.Parallel()
	punctual.Run(t, func(t *punctual.Try) {
		seed := rand.Uint64()
		if testing.Short() { // on whatever database there is, which others use too
			check(t, attack(t, seed, 10*time.Second, pgserver.Database(t), nil, func(*faults.Fleet) {}), 10, 0)
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

// An episode is what an attack on a fleet has shown.
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
	Writes     int                // committed under Guard
	Refused    int64              // guards of zombies
	Worst      map[string]float64 // milliseconds that a partition had no owner, by kind of the fault
	Violations []string           // of any promise
}

// attack has faults befall a fleet for so long. A nil database is left alone.
func attack(t *punctual.Try, seed uint64, duration time.Duration, url string, database *faults.Database, how func(*faults.Fleet)) episode {
	t.Helper()
	const partitions, ttl = 16, time.Second
	e := episode{began: time.Now(), Seed: seed, Worst: make(map[string]float64)}
	t.Logf("seed %d", seed)
	direct, pooled := pgserver.DirectURL(url)
	if database != nil {
		direct, pooled = database.URL, database.Bouncer != nil
	}
	e.Pooled = pooled
	effects := faults.NewEffects(newPool(t, direct, size(4)), "orders")
	if err := effects.Create(t.Context(), partitions); err != nil {
		t.Fatal(err)
	}
	config := faults.Config{URL: url, Lease: "orders", Partitions: partitions, TTL: ttl, Effects: true, Patience: patience, ProbeURL: probeURL(t)}
	if pooled { // pgx's pools cancel statements, at which PgBouncer 1.18 ends
		config.DirectURL = direct
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	fleet, err := faults.NewFleet(ctx, config, t.TempDir(), 4, seed)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := fleet.Close(ctx); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			for _, incident := range fleet.Incidents {
				t.Log(incident)
			}
			for path, text := range fleet.Output() {
				t.Logf("%s:\n%s", path, lastLines(text, 40))
			}
		}
	})
	if err != nil {
		t.Fatal(err)
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
	ctx, cancel = context.WithTimeout(t.Context(), duration)
	defer cancel()
	began := time.Now()
	violate(fleet.Run(ctx))
	e.Seconds = time.Since(began).Seconds()
	ctx, cancel = context.WithTimeout(t.Context(), patience)
	defer cancel()
	began = time.Now()
	err = fleet.Settled(ctx)
	settled := time.Since(began)
	if errors.Is(err, context.DeadlineExceeded) {
		now := oracle.Now()
		fleet.Overdue = append(fleet.Overdue, faults.Overdue{From: now - oracle.Instant(settled), To: now, Within: patience, Text: err.Error()})
	} else {
		violate(err)
	}
	report, err := fleet.Report()
	if err != nil {
		t.Fatal(err)
	}
	e.Violations = append(e.Violations, report.Violations...)
	e.Faults, e.Clients, e.Intervals, e.Reads, e.Overlaps = fleet.Counts, report.Clients, report.Intervals, report.Reads, report.Overlaps
	worst, late := faults.Recoveries(report.Gaps, fleet.Incidents, ttl)
	for kind, d := range worst {
		e.Worst[kind] = float64(d.Microseconds()) / 1000
	}
	if database != nil { // else others use it, as much as they like
		fleet.Overdue = append(fleet.Overdue, late...)
	}
	_, zombies, err := effects.Check(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, z := range zombies {
		e.Violations = append(e.Violations, "zombie: "+z)
	}
	history, err := effects.History(t.Context(), fleet.Dir)
	if err != nil {
		t.Fatal(err)
	}
	e.Writes = len(history)
	violate(faults.Linearizable(history, patience))
	var excused []faults.Overdue
	for _, o := range fleet.Overdue {
		if t.Excused(o.From, o.To, o.Within) {
			excused = append(excused, o)
		} else {
			e.Violations = append(e.Violations, o.Text)
		}
	}
	if len(e.Violations) == 0 && len(excused) > 0 {
		t.MissedAt(excused[0].From, excused[0].To, excused[0].Within, "%s", excused[0].Text)
	}
	t.Logf("%v; settled after %v; %d guarded writes; faults: %v; longest without an owner, in ms: %v", report, settled.Round(time.Millisecond),
		e.Writes, e.Faults, e.Worst)
	return e
}

// check fails the test where a promise was broken, or where fewer faults befell than that, in all or of a kind.
func check(t *punctual.Try, e episode, total, each int) {
	t.Helper()
	for _, v := range e.Violations {
		t.Error(v)
	}
	for kind, n := range e.Faults {
		if n < each {
			t.Missed(e.began, time.Since(e.began), "fault %q befell %d times, not at least %d", kind, n, each)
		}
	}
	if n := sum(e.Faults); n < total {
		t.Missed(e.began, time.Since(e.began), "%d faults, not at least %d: the test proves too little", n, total)
	}
	if e.Writes < 100 || e.Reads < 100_000 {
		t.Missed(e.began, time.Since(e.began), "only %d guarded writes and %d reads: the test proves too little", e.Writes, e.Reads)
	}
}
