package engine

import (
	"testing"
	"time"

	"github.com/pgleases/pgleases/internal/owned"
	"github.com/pgleases/pgleases/internal/store"
)

// Each row is one partition: what the client has of it, what the database says, and what follows.
func TestCompare(t *testing.T) {
	const era, earlier = int64(7) << 32, int64(6) << 32
	board := owned.NewBoard("orders", owned.Invalid(time.Now()), func() {})
	has := func(epoch int64, change ...func(*assignment)) *assignment {
		a := &assignment{Ownership: board.Own(owned.Invalid(time.Now()), 1, epoch)}
		for _, c := range change {
			c(a)
		}
		return a
	}
	drains := func(a *assignment) { a.state = draining }
	fences := func(a *assignment) { a.state = fencing }
	fencedAt := func(epoch int64) func(*assignment) {
		return func(a *assignment) { a.state, a.raised = fenced, epoch }
	}
	ended := func(a *assignment) { board.End([]*owned.Ownership{a.Ownership}, errorsOfTests.DrainTimeout) }
	const settled, passesOn = 1, 2
	for name, test := range map[string]struct {
		has   *assignment
		epoch int64 // 0: the session does not own it
		moves bool
		state int
		want  string
	}{
		"nothing, nowhere":                             {nil, 0, false, settled, ""},
		"as before":                                    {has(era), era, false, settled, ""},
		"new":                                          {nil, era, false, settled, "gained"},
		"new, on a server that is not settled":         {nil, era, false, 0, ""},
		"new, and on its way to another":               {nil, era, true, settled, "passing"},
		"new, of an earlier era":                       {nil, earlier, false, settled, "passing"},
		"new, in a lease that is left":                 {nil, era, false, settled | passesOn, "passing"},
		"wanted elsewhere":                             {has(era), era, true, settled, "wanted"},
		"wanted elsewhere, and draining":               {has(era, drains), era, true, settled, ""},
		"wanted elsewhere, on a server not settled":    {has(era), era, true, 0, "wanted"},
		"of an earlier era":                            {has(earlier), earlier, false, settled, "outdated"},
		"of an earlier era, and moving":                {has(earlier), earlier, true, settled, "outdated"},
		"of an earlier era, and ended":                 {has(earlier, drains, ended), earlier, true, settled, ""},
		"lost":                                         {has(era), 0, false, settled, "lost"},
		"lost, on a server that is not settled":        {has(era), 0, false, 0, "lost"},
		"lost, and gained anew":                        {has(era), era + 1, false, settled, "lost gained"},
		"lost, and gained anew, not settled":           {has(era), era + 1, false, 0, "lost"},
		"released":                                     {has(era, drains), 0, false, settled, "released"},
		"released, and gained anew":                    {has(era, drains), era + 1, false, settled, "released gained"},
		"raised by a fence":                            {has(era, fences), era + 1, true, settled, "fenced"},
		"not reached by the fence":                     {has(era, fences), era, true, settled, ""},
		"released under a fence whose answer was lost": {has(era, fences), 0, false, settled, "released"},
		"set back by a server that lost the fence":     {has(era+1, fences), era, false, settled, "released gained"},
		"fenced before":                                {has(era, fencedAt(era+1)), era + 1, true, settled, ""},
		"fenced before, and released":                  {has(era, fencedAt(era+1)), era + 2, false, settled, "released gained"},
	} {
		r := store.LeaseRead{Name: "orders", ServerGeneration: 7, Owned: []store.Owned{{Partition: 9, Epoch: era}}} // which no client's code has written
		if test.epoch != 0 {
			r.Owned = append(r.Owned, store.Owned{Partition: 1, Epoch: test.epoch, Moving: test.moves})
		}
		c := compare(r, []*assignment{nil, test.has, nil}, test.state&settled != 0, test.state&passesOn != 0)
		got := ""
		for _, of := range []struct {
			what string
			n    int
		}{
			{"fenced", len(c.fenced)}, {"released", len(c.released)}, {"lost", len(c.lost)}, {"wanted", len(c.wanted)}, {"outdated", len(c.outdated)},
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
