//go:build unix

package proof_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/timeguard"
	"github.com/pgleases/pgleases/proof/faults"
	"github.com/pgleases/pgleases/proof/pgserver"
)

// Loops that people write break each promise, and the ledger shows it.
func TestQueueOracleCatchesNaiveLoops(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("has a server of its own")
	}
	skipLocked, owner := faults.Naive[0], faults.Naive[1]
	server := pgserver.Private(t, committing)
	for name, test := range map[string]struct {
		loop    string
		outside bool
		poison  []string // kinds of rows, each with rows of its key behind it
		outage  bool
		attack  bool // with faults of processes
		finds   []string
	}{
		"SKIP LOCKED has no order":               {loop: skipLocked, finds: []string{disorder, atOnce}},
		"SKIP LOCKED charges a failure to all":   {loop: skipLocked, poison: []string{faults.FailsAlways}, finds: []string{charged}},
		"SKIP LOCKED charges a pair":             {loop: skipLocked, poison: []string{faults.FailsTogether, faults.FailsTogether}, finds: []string{charged}},
		"SKIP LOCKED stops at a crash":           {loop: skipLocked, poison: []string{faults.KillsProcess}, finds: []string{remains}},
		"an owner without a guard":               {loop: owner, attack: true, finds: []string{twice, zombie, outdated, deleted}},
		"an owner that never looks back":         {loop: owner, finds: []string{remains}},
		"an owner that continues after failures": {loop: owner, poison: []string{faults.FailsThrice, faults.FailsAlways}, finds: []string{disorder, overtaken}},
		"an owner that counts each failure":      {loop: owner, outage: true, finds: []string{charged}},
		"an owner with effects outside":          {loop: owner, outside: true, attack: true, finds: []string{outdated, remains}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			timeguard.Run(t, func(t *timeguard.Try) {
				url := ownDatabase(t, server)
				q := newQueueFleet(t, url, &faults.Database{URL: url}, 8, faults.Queue{Handler: test.loop}, test.outside)
				q.Faults = slices.DeleteFunc(q.Faults, func(f faults.Fault) bool { return !test.attack || f.Name != "pause" && f.Name != "ghost" })
				if test.outage {
					defer q.outage()()
				}
				var keys []string
				q.enqueue(func(tx pgx.Tx) error {
					for i, kind := range test.poison {
						keys = append(keys, fmt.Sprint("poison ", i))
						if err := faults.Enqueue(t.Context(), tx, kind, keys[i]); err != nil {
							return err
						}
					}
					return faults.Enqueue(t.Context(), tx, faults.Good, slices.Repeat(append(keys, "another"), 30)...)
				})
				halt := q.produce(20)
				var found map[string][]string
				q.run(2*time.Minute, func() bool {
					l := readQueue(t, q.pool, q.receiver)
					found = l.problems()
					return (test.poison != nil || test.outage || len(l.handled) > 1000) &&
						!slices.ContainsFunc(test.finds, func(kind string) bool { return kind != remains && found[kind] == nil })
				})
				halt()
				if slices.Contains(test.finds, remains) {
					pause(t.Context(), 2*time.Second) // a row that is left now stays
					found[remains] = readQueue(t, q.pool, q.receiver).problems()[remains]
				}
				for _, kind := range test.finds {
					if found[kind] == nil {
						t.Errorf("%q was not found, only %v", kind, slices.Sorted(maps.Keys(found)))
						continue
					}
					t.Logf("%s: %d, for example %s", kind, len(found[kind]), found[kind][0])
				}
			})
		})
	}
}
