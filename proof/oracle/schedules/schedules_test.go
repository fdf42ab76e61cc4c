//go:build unix

package schedules

import (
	"strings"
	"testing"
	"time"

	"github.com/pgleases/pgleases/proof/faults"
	"github.com/pgleases/pgleases/proof/oracle"
	"github.com/pgleases/pgleases/schedule"
)

// Each violation is found in a history that has only this one, and a clean history has none.
func TestEachViolationIsFound(t *testing.T) {
	t.Parallel()
	const minute = time.Minute
	for name, test := range map[string]struct {
		spoil func(*Ledger)
		finds string // the beginning of the violation; empty: none
	}{
		"a clean history":           {func(*Ledger) {}, ""},
		"a tick without an outcome": {func(l *Ledger) { l.history["s"] = l.history["s"][:2] }, "outcomes"},
		"a tick with two outcomes": {func(l *Ledger) {
			l.history["s"] = append(l.history["s"], l.history["s"][2])
		}, "outcomes"},
		"a run before its tick": {func(l *Ledger) {
			l.history["s"][1].Started = at(2*minute - time.Second)
		}, "early"},
		"an effect before its tick": {func(l *Ledger) {
			l.effects[1].Began = l.effects[1].At.Add(-time.Second)
		}, "early"},
		"a success without an effect": {func(l *Ledger) { l.effects = l.effects[:2] }, "effects: none"},
		"a second effect": {func(l *Ledger) {
			l.effects = append(l.effects, l.effects[2])
		}, "effects: an effect"},
		"an effect of half a run": {func(l *Ledger) {
			l.effects[2].Whole = false
		}, "effects: one is incomplete"},
		"a write after the next owner's": {func(l *Ledger) { l.effects[2].Epoch = 1 }, "frozen"},
		"two runs of a key at once": {func(l *Ledger) {
			l.effects[1].Committed = l.effects[2].Began.Add(time.Second)
		}, "overlap"},
		"a job without an outcome": {func(l *Ledger) {
			delete(l.jobs, 7)
		}, "jobs: 7: it was enqueued and has no outcome"},
		"a job that waits": {func(l *Ledger) {
			delete(l.jobs, 7)
			l.living[7], l.effects = true, l.effects[:3]
		}, ""},
		"a job with two outcomes":    {func(l *Ledger) { l.jobs[7] = append(l.jobs[7], l.jobs[7][0]) }, "jobs: 7"},
		"a job whose effect is lost": {func(l *Ledger) { l.effects = l.effects[:3] }, "jobs: 7: its effects"},
		"a call at most once, twice": {func(l *Ledger) {
			l.call("paid", 1, 5)
			l.call("paid", 2, 7)
		}, "calls: at most once"},
		"the same over a promotion": {func(l *Ledger) {
			l.Promoted = true
			l.call("paid", 1, 5)
			l.call("paid", 2, 7)
		}, ""},
		"a call again under the same epoch": {func(l *Ledger) {
			l.call("mailed", 3, 5)
			l.calls[0].Returned = false
			l.call("mailed", 3, 7)
		}, "calls: the epoch"},
		"a call beside a trusted one": {func(l *Ledger) {
			l.call("mailed", 1, 5)
			l.call("mailed", 2, 6)
			l.calls[0].Trusted = second(7)
		}, "calls: two overlap"},
		"more runs at once than a kind may": {func(l *Ledger) {
			l.call("phoned", 1, 5)
			l.call("phoned", 2, 5)
			l.call("phoned", 3, 5)
			l.apart()
		}, "together"},
		"a call that the history lacks": {func(l *Ledger) {
			l.call("mailed", 1, 5)
			l.Promoted = false
		}, "calls: called, without an outcome"},
		"a clock that was stepped: no order": {func(l *Ledger) {
			l.Stepped = true
			l.effects[1].Began = l.effects[1].At.Add(-time.Hour)
		}, ""},
		"a failure that the history explains": {func(l *Ledger) {
			l.jobs[7][0].Outcome, l.jobs[7][0].Error = schedule.OutcomeFailed, ""
			l.effects = l.effects[:3]
		}, "jobs: 7: it failed without a reason"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := clean()
			test.spoil(l)
			found := l.Check()
			if test.finds == "" && len(found) > 0 || test.finds != "" && (len(found) == 0 || !has(found, test.finds)) {
				t.Errorf("found %q, not %q", found, test.finds)
			}
		})
	}
}

func has(found []string, begins string) bool {
	for _, f := range found {
		if strings.HasPrefix(f, begins) {
			return true
		}
	}
	return false
}

// zero is the anchor of the schedule.
var zero = time.Unix(1_000_000_020, 0).UTC()

func at(after time.Duration) *time.Time { at := zero.Add(after); return &at }

func second(n int) oracle.Instant { return oracle.Instant(time.Duration(n) * time.Second) }

// clean returns the ledger of a schedule that ran at three ticks, and of a job.
func clean() *Ledger {
	one := int64(7)
	first := func(anchor time.Time) time.Time { return anchor.Add(time.Minute) }
	l := &Ledger{
		schedules: map[string]Scheduled{"s": {
			Schedule: faults.Schedule{Name: "s", Kind: "quick", Every: time.Minute, First: first},
			Anchor:   zero, Cursor: *at(3 * time.Minute),
		}},
		orders:  map[int64][]order{7: {{Name: faults.Plain + "-1", Kind: "ordered", Job: &one}}},
		names:   map[string]bool{},
		living:  map[int64]bool{},
		history: map[string][]entry{},
		jobs:    map[int64][]entry{},
	}
	epoch := int64(5)
	for n := range time.Duration(3) {
		tick := (n + 1) * time.Minute
		began, ended := at(tick+time.Second), at(tick+2*time.Second)
		l.history["s"] = append(l.history["s"], entry{
			Name: "s", Since: *at(n * time.Minute), Until: *at(tick), Ticks: 1,
			Outcome: schedule.OutcomeSucceeded, Epoch: &epoch, Started: began, Ended: *ended,
		})
		l.effects = append(l.effects, effect{
			Name: "s", Key: "s", At: *at(tick), Began: *began, Committed: *ended, Epoch: 5, Whole: true,
		})
	}
	four := at(4 * time.Minute)
	l.jobs[7] = []entry{{
		Job: &one, Ticks: 1, Outcome: schedule.OutcomeSucceeded,
		Attempts: 1, Epoch: &epoch, Started: four, Ended: *four,
	}}
	l.effects = append(l.effects, effect{
		Name: "j", Key: "j", Job: 7, Order: faults.Plain + "-1",
		At: *four, Began: *four, Committed: four.Add(time.Second), Epoch: 5, Whole: true,
	})
	return l
}

// call adds a call of a job outside of the database that lasts for a second.
func (l *Ledger) call(kind string, epoch int64, from int) {
	l.calls = append(l.calls, faults.Call{
		N: len(l.calls), Worker: "w", Kind: kind, Idempotency: "key",
		Name: "c", Key: "c", Job: 9, At: zero, Epoch: epoch,
		Began: second(from), Trusted: second(from + 1), Returned: true, ReturnedAfter: second(from + 1),
	})
	l.Promoted = l.Promoted || kind != "paid"
}

// apart gives each call a job and a key of its own.
func (l *Ledger) apart() {
	l.Promoted = false
	for i := range l.calls {
		l.calls[i].Job, l.calls[i].Key, l.calls[i].Idempotency = int64(i+20), string(rune('a'+i)), string(rune('a'+i))
	}
}
