//go:build unix

package queues

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/pgleases/pgleases/proof/faults"
)

// Each problem is found in a history that has only this one.
func TestEachViolationIsFound(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		spoil func(*Ledger)
		finds string
	}{
		"a clean history": {func(*Ledger) {}, ""},
		Twice:             {func(l *Ledger) { l.handled = append(l.handled, l.handled[4]) }, Twice},
		"twice, outside": {func(l *Ledger) {
			l.Outside, l.handled = true, append(l.handled, l.handled[4])
		}, ""},
		Lost:    {func(l *Ledger) { l.handled = l.handled[:4] }, Lost},
		Remains: {func(l *Ledger) { l.handled, l.left["5"] = l.handled[:4], true }, Remains},
		"left behind a row that may stay": {func(l *Ledger) {
			w := l.written["4"]
			w.Kind = faults.FailsAlways
			l.written["4"], l.left["4"], l.left["5"], l.handled = w, true, true, l.handled[:3]
		}, ""},
		Phantom:  {func(l *Ledger) { delete(l.written, "5") }, Phantom},
		Disorder: {func(l *Ledger) { l.handled[3], l.handled[4] = l.handled[4], l.handled[3]; l.times() }, Disorder},
		"a lower epoch, outside": {func(l *Ledger) {
			late := l.handled[3]
			late.Epoch--
			l.Outside, l.handled = true, append(l.handled, late)
		}, ""},
		AtOnce: {func(l *Ledger) { l.handled[3].Committed = l.handled[4].At.Add(time.Microsecond) }, AtOnce},
		Overtaken: {func(l *Ledger) {
			l.handled = slices.Delete(l.handled, 3, 4)
			l.left["4"] = true
			l.poison("4")
		}, Overtaken},
		"a dead letter was overtaken": {func(l *Ledger) {
			l.poison("4")
			l.dead["4"], l.handled = l.handled[4].At.Add(time.Microsecond), slices.Delete(l.handled, 3, 4)
		}, Overtaken},
		Outdated: {func(l *Ledger) { l.handled[4].Version = 0 }, Outdated},
		Deleted: {func(l *Ledger) {
			w := l.written["5"]
			w.Deleted = true
			l.written["5"] = w
		}, Deleted},
		Zombie:   {func(l *Ledger) { l.handled[4].Epoch-- }, Zombie},
		HalfDone: {func(l *Ledger) { l.poison("5") }, HalfDone},
		Charged:  {func(l *Ledger) { l.handled[4].Attempt = 2 }, Charged},
		"a dead letter did not fail": {func(l *Ledger) {
			l.handled, l.dead["5"] = l.handled[:4], l.handled[4].At
		}, Charged},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := &Ledger{Attempts: 1, written: map[string]written{}, left: map[string]bool{}}
			l.dead = make(map[string]time.Time)
			for i := int64(1); i <= 5; i++ {
				w := written{ID: i, Customer: fmt.Sprint(i / 3), Name: fmt.Sprint(i), Kind: faults.Good, Version: 1}
				l.written[w.Name] = w
				l.handled = append(l.handled, effect{
					ID: w.ID, Customer: w.Customer, Name: w.Name, Kind: w.Kind,
					Version: 1, Epoch: 7, Attempt: 1, Transaction: i,
				})
			}
			l.times()
			test.spoil(l)
			found := slices.Collect(maps.Keys(l.Check()))
			if test.finds == "" && len(found) > 0 || test.finds != "" && !slices.Equal(found, []string{test.finds}) {
				t.Errorf("found %v", l.Check())
			}
		})
	}
}

// times gives each effect its time, and a commit before the next.
func (l *Ledger) times() {
	for i := range l.handled {
		l.handled[i].At = time.Unix(int64(i), 0)
		l.handled[i].Committed = l.handled[i].At.Add(time.Millisecond)
	}
}

func (l *Ledger) poison(name string) {
	w := l.written[name]
	w.Kind = faults.FailsAlways
	l.written[name] = w
}
