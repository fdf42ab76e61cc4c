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
	"github.com/pgleases/pgleases/proof/oracle/queues"
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
		"SKIP LOCKED has no order": {loop: skipLocked, finds: []string{queues.Disorder, queues.AtOnce}},
		"SKIP LOCKED charges a failure to all": {
			loop: skipLocked, poison: []string{faults.FailsAlways}, finds: []string{queues.Charged},
		},
		"SKIP LOCKED charges a pair": {
			loop:   skipLocked,
			poison: []string{faults.FailsTogether, faults.FailsTogether},
			finds:  []string{queues.Charged},
		},
		"SKIP LOCKED stops at a crash": {
			loop: skipLocked, poison: []string{faults.KillsProcess}, finds: []string{queues.Remains},
		},
		"an owner without a guard": {
			loop: owner, attack: true, finds: []string{queues.Twice, queues.Zombie, queues.Outdated, queues.Deleted},
		},
		"an owner that never looks back": {loop: owner, finds: []string{queues.Remains}},
		"an owner that continues after failures": {
			loop:   owner,
			poison: []string{faults.FailsThrice, faults.FailsAlways},
			finds:  []string{queues.Disorder, queues.Overtaken},
		},
		"an owner that counts each failure": {loop: owner, outage: true, finds: []string{queues.Charged}},
		"an owner with effects outside": {
			loop: owner, outside: true, attack: true, finds: []string{queues.Outdated, queues.Remains},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			timeguard.Run(t, func(t *timeguard.Try) {
				url := ownDatabase(t, server)
				queue := faults.Queue{Handler: test.loop}
				q := newQueueFleet(t, url, &faults.Database{URL: url}, 8, queue, test.outside)
				q.Faults = slices.DeleteFunc(q.Faults, func(f faults.Fault) bool {
					return !test.attack || f.Name != "pause" && f.Name != "ghost"
				})
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
				lacks := func(kind string) bool { return kind != queues.Remains && found[kind] == nil }
				q.run(2*time.Minute, func() bool {
					l := q.read()
					found = l.Check()
					enough := test.poison != nil || test.outage || l.Handled() > 1000
					return enough && !slices.ContainsFunc(test.finds, lacks)
				})
				halt()
				if slices.Contains(test.finds, queues.Remains) {
					pause(t.Context(), 2*time.Second) // a row that is left now stays
					found[queues.Remains] = q.read().Check()[queues.Remains]
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
