package engine

import (
	"testing"
	"time"

	"github.com/pgleases/pgleases/internal/owned"
	"github.com/pgleases/pgleases/internal/store"
)

// Each row is one partition: what the client has of it, what the database says, and what follows.
func TestCompare(t *testing.T) {
	const (
		earlier = int64(6) << 32
		current = int64(7) << 32
		next    = current + 1
		later   = next + 1
	)
	board := owned.NewBoard("orders", owned.Invalid(time.Now()), func() {})
	has := func(epoch int64, change ...func(*assignment)) *assignment {
		a := &assignment{ownership: board.Own(owned.Invalid(time.Now()), 1, epoch)}
		for _, c := range change {
			c(a)
		}
		return a
	}
	drains := func(a *assignment) { a.state = draining }
	fences := func(a *assignment) { a.state = fencing }
	raised := func(a *assignment) { a.state, a.raised = fenced, next }
	ended := func(a *assignment) { board.End([]*owned.Ownership{a.ownership}, errorsOfTests.DrainTimeout) }
	const accepted, passesOn = 1, 2
	for name, test := range map[string]struct {
		has   *assignment
		epoch int64 // 0: the session does not own it
		moves bool
		state int
		want  string
	}{
		"nothing, nowhere":                           {nil, 0, false, accepted, ""},
		"as before":                                  {has(current), current, false, accepted, ""},
		"new":                                        {nil, current, false, accepted, "gained"},
		"new, on a server that is not accepted":      {nil, current, false, 0, ""},
		"new, and on its way to another":             {nil, current, true, accepted, "passing"},
		"new, of an earlier generation":              {nil, earlier, false, accepted, "passing"},
		"new, in a lease that is left":               {nil, current, false, accepted | passesOn, "passing"},
		"wanted elsewhere":                           {has(current), current, true, accepted, "wanted"},
		"wanted elsewhere, and draining":             {has(current, drains), current, true, accepted, ""},
		"wanted elsewhere, on a server not accepted": {has(current), current, true, 0, "wanted"},
		"of an earlier generation":                   {has(earlier), earlier, false, accepted, "outdated"},
		"of an earlier generation, and moving":       {has(earlier), earlier, true, accepted, "outdated"},
		"of an earlier generation, and ended":        {has(earlier, drains, ended), earlier, true, accepted, ""},
		"lost":                                       {has(current), 0, false, accepted, "lost"},
		"lost, on a server that is not accepted":     {has(current), 0, false, 0, "lost"},
		"lost, and gained anew":                      {has(current), next, false, accepted, "lost gained"},
		"lost, and gained anew, not accepted":        {has(current), next, false, 0, "lost"},
		"released":                                   {has(current, drains), 0, false, accepted, "released"},
		"released, and gained anew":                  {has(current, drains), next, false, accepted, "released gained"},
		"raised by a fence":                          {has(current, fences), next, true, accepted, "fenced"},
		"not reached by the fence":                   {has(current, fences), current, true, accepted, ""},
		"released under a fence without an answer":   {has(current, fences), 0, false, accepted, "released"},
		"set back by a server that lost the fence":   {has(next, fences), current, false, accepted, "released gained"},
		"fenced before":                              {has(current, raised), next, true, accepted, ""},
		"fenced before, and released":                {has(current, raised), later, false, accepted, "released gained"},
	} {
		another := store.Owned{Partition: 9, Epoch: current} // a number that no client's code has written
		r := store.LeaseRead{Name: "orders", ServerGeneration: 7, Owned: []store.Owned{another}}
		if test.epoch != 0 {
			r.Owned = append(r.Owned, store.Owned{Partition: 1, Epoch: test.epoch, Moving: test.moves})
		}
		c := compare(r, []*assignment{nil, test.has, nil}, test.state&accepted != 0, test.state&passesOn != 0)
		got := ""
		for _, of := range []struct {
			what string
			n    int
		}{
			{"fenced", len(c.fenced)}, {"released", len(c.released)}, {"lost", len(c.lost)},
			{"wanted", len(c.wanted)}, {"outdated", len(c.outdated)},
			{"gained", len(c.gained)}, {"passing", len(c.passing)},
		} {
			for range of.n {
				if got != "" {
					got += " "
				}
				got += of.what
			}
		}
		if got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}
