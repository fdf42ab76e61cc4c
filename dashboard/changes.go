package dashboard

import (
	"cmp"
	"slices"
	"time"

	"github.com/pgleases/pgleases/admin"
)

// A change is what differs between two looks.
type change struct {
	What       string       `json:"what"`             // a client's: came, left, silent, heard, superseded; a lease's: made, dropped; or partitions: moved
	After      time.Time    `json:"after"`            // it was after this
	At         time.Time    `json:"at"`               // and not later than this, both by the database's clock
	Client     string       `json:"client,omitempty"` // its ID
	Lease      string       `json:"lease,omitempty"`  // its name
	From       string       `json:"from"`             // the ID of the owner before; empty: nobody
	To         string       `json:"to"`               // the ID of the owner after; empty: nobody
	Partitions admin.Ranges `json:"partitions,omitempty"`
}

// difference returns the changes from one look to the next: first those of clients, then those of leases.
func difference(before, after *admin.Snapshot) (all []change) {
	add := func(c change) {
		c.After, c.At = before.At, after.At
		all = append(all, c)
	}
	clients, leases := make(map[int64]*admin.Client), make(map[string]*admin.Lease)
	for i, c := range before.Clients {
		clients[c.Session] = &before.Clients[i]
	}
	for i, l := range before.Leases {
		leases[l.Name] = &before.Leases[i]
	}
	for _, c := range after.Clients {
		old := clients[c.Session]
		delete(clients, c.Session)
		switch {
		case old == nil:
			add(change{What: "came", Client: c.ID})
		case c.Superseded && !old.Superseded:
			add(change{What: "superseded", Client: c.ID})
		case c.Dead && !old.Dead:
			add(change{What: "silent", Client: c.ID})
		case old.Dead && !c.Dead:
			add(change{What: "heard", Client: c.ID})
		}
	}
	for _, c := range before.Clients {
		if clients[c.Session] != nil {
			add(change{What: "left", Client: c.ID})
		}
	}
	for i := range after.Leases {
		l := &after.Leases[i]
		old := leases[l.Name]
		delete(leases, l.Name)
		if old == nil || old.Partitions != l.Partitions { // dropped in between, and made again
			if old != nil {
				add(change{What: "dropped", Lease: l.Name})
			}
			add(change{What: "made", Lease: l.Name})
			old = &admin.Lease{}
		}
		if old.Generation != l.Generation { // it rises with each change of owner
			for _, m := range moves(old, l) {
				add(m)
			}
		}
	}
	for _, l := range before.Leases {
		if leases[l.Name] != nil {
			add(change{What: "dropped", Lease: l.Name})
		}
	}
	return all
}

// An owner is a session and its client's ID, which is the last that it had where it was taken out.
type owner struct {
	session int64
	id      string
}

// moves returns what moved in a lease, one change for each pair of owners.
func moves(before, after *admin.Lease) (all []change) {
	old, now := owners(before, after.Partitions), owners(after, after.Partitions)
	type pair struct{ from, to string }
	moved := make(map[pair]admin.Ranges)
	for p := range now {
		if old[p].session == now[p].session {
			continue
		}
		k := pair{old[p].id, now[p].id}
		if rs := moved[k]; len(rs) > 0 && rs[len(rs)-1].Last == p-1 {
			rs[len(rs)-1].Last = p
		} else {
			moved[k] = append(rs, admin.Range{First: p, Last: p})
		}
	}
	for k, rs := range moved {
		all = append(all, change{What: "moved", Lease: after.Name, From: k.from, To: k.to, Partitions: rs})
	}
	slices.SortFunc(all, func(a, b change) int { return cmp.Compare(a.Partitions[0].First, b.Partitions[0].First) })
	return all
}

// owners returns the owner of each of n partitions.
func owners(l *admin.Lease, n int) []owner {
	all := make([]owner, n)
	for _, h := range l.Holdings {
		o := owner{h.OwnerSession, cmp.Or(h.Owner, h.LastOwner)}
		if o.session == 0 {
			o.id = ""
		}
		for _, r := range h.Partitions {
			for p := r.First; p <= min(r.Last, n-1); p++ {
				all[p] = o
			}
		}
	}
	return all
}
