package engine_test

import (
	"context"
	"testing"
	"time"

	"github.com/pgleases/pgleases/internal/fakestore"
)

// replace puts other tables in the place of the present ones. The processes reach them one after the
// other, each that much later, or at once over the connections that they have, as behind a pooler.
func (w *world) replace(with fakestore.Tables, procs []*proc, late time.Duration) {
	w.mu.Lock()
	w.lagging = true
	w.mu.Unlock()
	for i, p := range procs {
		if late > 0 {
			p.cutOff(true)
			time.AfterFunc(time.Duration(i+1)*late, func() { p.cutOff(false) })
		}
	}
	time.Sleep(late)
	w.db.Replace(with)
	w.event("database: other tables")
}

// copyOf returns what a dump contains.
func (w *world) copyOf() (tables fakestore.Tables) {
	w.db.Look(func(t *fakestore.Tables, _ int64) { tables = t.Clone() })
	return tables
}

// The oracle of the world finds two owners, and an epoch that falls.
func TestOtherTablesHaveNoTwoOwners(t *testing.T) {
	ways := map[string]func(w *world, dump fakestore.Tables) fakestore.Tables{
		"restored dump": func(_ *world, dump fakestore.Tables) fakestore.Tables { return dump },
		"new install":   func(*world, fakestore.Tables) fakestore.Tables { return fakestore.Installed() },
		"emptied": func(_ *world, dump fakestore.Tables) fakestore.Tables {
			empty := fakestore.Installed()
			empty.Server = dump.Server
			return empty
		},
		// Somebody has run a client on the copy before it came into this place.
		"copy that was in use": func(w *world, dump fakestore.Tables) fakestore.Tables {
			dump.Server.AcceptedTimeline = w.db.Run().Timeline + 1000
			dump.Server.Generation = 1
			clear(dump.Clients)
			clear(dump.Members)
			return dump
		},
	}
	for name, way := range ways {
		for _, late := range []time.Duration{0, 1200 * time.Millisecond} {
			t.Run(name+" "+late.String(), func(t *testing.T) {
				inWorld(t, func(t *testing.T, w *world) {
					a, b, la, lb := w.pair(16)
					dump := w.copyOf()
					time.Sleep(7 * time.Second)
					c, d := w.start("c"), w.start("d")
					lc, ld := c.mustJoin("x", 16), d.mustJoin("x", 16)
					w.within(10*time.Second, "each owns its share", each(4, lc, ld))
					if err := a.c.Close(context.Background()); err != nil { // the dump does not know who has its share
						t.Fatal(err)
					}
					owned := func() bool { return seen(lb, lc, ld) == 16 }
					w.within(10*time.Second, "the others own all", owned)
					<-la.Done()

					w.replace(way(w, dump), []*proc{b, c, d}, late)
					replaced := time.Now()
					w.within(10*time.Second, "a client says so", w.logs("the database has other tables than before"))
					w.within(time.Minute, "all is owned again", owned)
					if took := time.Since(replaced); took < 6*time.Second {
						t.Errorf("owned again after %v, which is less than the TTL", took)
					}
				})
			})
		}
	}
}

// A client that was cut off while the others had the other tables accepted does not disturb them.
func TestLateClientAcceptsOtherTables(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, _, la, lb := w.pair(8)
		dump := w.copyOf()
		w.replace(dump, nil, 0)
		a.cutOff(true)
		w.within(time.Minute, "b owns all", func() bool { return len(lb.Values()) == 8 })
		a.cutOff(false)
		w.within(time.Minute, "both own half", each(4, la, lb))
		if w.logged("rejected a server") > 0 {
			t.Error("the late client rejected the server")
		}
	})
}

// Other clients may trust in the tables that were in this place meanwhile.
func TestTablesThatComeBackAreAcceptedAnew(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, b, la, lb := w.pair(8)
		before := w.copyOf()
		w.replace(fakestore.Installed(), []*proc{a, b}, 0)
		w.within(time.Minute, "all is owned", func() bool { return seen(la, lb) == 8 })
		w.replace(before, []*proc{a, b}, time.Second)
		w.within(time.Minute, "all is owned again", func() bool { return seen(la, lb) == 8 && w.accepted() })
	})
}
