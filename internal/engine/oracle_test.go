package engine_test

import (
	"fmt"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/fakestore"
)

// shown returns what a reader of the lease sees now. It does not read Values, because that would
// delay handoffs.
func shown(l *pgleases.Lease) []pgleases.Partition {
	var owned []pgleases.Partition
	for number := range l.NumPartitions() {
		if o, owns := l.Partition(number); owns {
			owned = append(owned, o)
		}
	}
	return owned
}

// shows reports whether a reader still sees the ownership.
func (h *handle) shows(o pgleases.Partition) bool {
	now, owns := h.l.Partition(o.Number)
	return owns && now == o
}

// check compares what all clients show, with each other and with the database.
func (w *world) check() {
	w.mu.Lock()
	w.checks++
	handles := w.handles
	lagging := w.lagging
	w.mu.Unlock()
	type claim struct {
		h *handle
		o pgleases.Partition
	}
	claims := make(map[place]claim)
	for _, h := range handles {
		for _, o := range shown(h.l) {
			k := place{h.l.Name(), o.Number}
			// The other still shows it before and after this one does: so both did at one time.
			other, taken := claims[k]
			if taken && other.o != o && other.h.shows(other.o) && h.shows(o) && other.h.shows(other.o) {
				w.failf("overlap: %s and %s both show partition %d of %s, under epochs %d and %d",
					other.h.p.name, h.p.name, o.Number, k.lease, other.o.Epoch, o.Epoch)
			}
			claims[k] = claim{h, o}
			if lagging {
				continue
			}
			var row fakestore.Partition
			stale := false
			w.db.Look(func(t *fakestore.Tables, _ int64) {
				if rows := t.Partitions[k.lease]; o.Number < len(rows) {
					row = rows[o.Number]
				}
				// Meanwhile nothing changes in the database: what is shown now has to be true now.
				stale = h.shows(o) && (row.Epoch != o.Epoch || row.Owner == 0)
			})
			if stale {
				w.failf("stale: %s shows partition %d of %s under epoch %d; the database has epoch %d, owner %d",
					h.p.name, o.Number, k.lease, o.Epoch, row.Epoch, row.Owner)
			}
		}
	}
}

// moved notes a change of owner or epoch.
func (w *world) moved(by, lease string, partition int, from, to fakestore.Partition) {
	w.changed.Store(true)
	k := place{lease, partition}
	w.mu.Lock()
	if w.ledger[k] == nil {
		w.ledger[k] = make(map[int64]int64)
	}
	session, known := w.ledger[k][to.Epoch]
	highest := w.highest[k]
	w.ledger[k][to.Epoch] = to.Owner
	w.highest[k] = max(highest, to.Epoch)
	work := w.working[workKey{k, from.Epoch}]
	w.mu.Unlock()
	w.event("%s: %s/%d goes from session %d to %d (%s), epoch %d",
		by, lease, partition, from.Owner, to.Owner, to.OwnerID, to.Epoch)
	switch {
	case known:
		w.failf("epoch %d of partition %d of %s was given twice: to session %d, and to %d",
			to.Epoch, partition, lease, session, to.Owner)
	case to.Epoch <= highest:
		w.failf("epoch of partition %d of %s went from %d to %d", partition, lease, highest, to.Epoch)
	case by == "release" && work > 0:
		w.failf("partition %d of %s was handed over under work on epoch %d", partition, lease, from.Epoch)
	}
}

// gone checks that an evicted session had been silent for its TTL.
func (w *world) gone(row fakestore.Client) {
	w.mu.Lock()
	w.evicted++
	silent := time.Since(w.beats[row.Session])
	w.mu.Unlock()
	if silent < row.TTL {
		w.failf("session %d of %s was evicted %v after a heartbeat", row.Session, row.ID, silent)
	}
}

// comesRight checks that every partition has one live owner and that shares are even, in time and
// permanently.
func (w *world) comesRight(alive []*proc, leases map[string]int, longest time.Duration) {
	began, right := time.Now(), time.Now()
	why := ""
	for time.Since(began) < scaled(time.Minute) {
		w.db.Look(func(t *fakestore.Tables, _ int64) {
			if now := wrong(t, alive, leases); now != "" {
				why, right = now, time.Now()
			}
		})
		time.Sleep(scaled(10 * time.Millisecond))
	}
	took := right.Sub(began)
	w.bound = calmAfter(longest) + w.waits
	if took > w.bound {
		w.failf("all was right only %v after quiet: %s", took, why)
	}
	w.took = took
}

// wrong returns what is not as it has to be at rest.
func wrong(t *fakestore.Tables, alive []*proc, leases map[string]int) string {
	for name, n := range leases {
		owners := make([]string, n)
		members := 0
		for _, p := range alive {
			l := p.leases[name]
			if l == nil {
				continue
			}
			if err := l.Err(); err != nil {
				return fmt.Sprintf("%s: lease %s has ended: %v", p.name, name, err)
			}
			members++
			for _, o := range shown(l) {
				if owners[o.Number] != "" {
					return fmt.Sprintf("%s/%d has two owners", name, o.Number)
				}
				owners[o.Number] = p.name
			}
		}
		if members == 0 {
			continue
		}
		weights := make(map[int64]int) // by session
		sum := 0
		var who []string
		for m, member := range t.Members {
			if m.Lease == name {
				weight := member.Weight
				weights[m.Session] = weight
				sum += weight
				who = append(who, fmt.Sprintf("%s session %d weight %d", t.Clients[m.Session].ID, m.Session, weight))
			}
		}
		if len(t.Partitions[name]) != n { // a failover may have forgotten the lease until its members join again
			return fmt.Sprintf("%s has %d partitions, not %d", name, len(t.Partitions[name]), n)
		}
		for number, owner := range owners {
			if owner == "" {
				return fmt.Sprintf("%s/%d has no owner; row %+v, lease %+v, members %v",
					name, number, t.Partitions[name][number], t.Leases[name], who)
			}
		}
		if len(who) != members {
			return fmt.Sprintf("%s has %d members, not those: %v", name, members, who)
		}
		for _, p := range alive {
			weight, known := weights[sessionOf(t, p.id)]
			if want := p.weight[name]; p.leases[name] != nil && known && want >= 0 && weight != want {
				return fmt.Sprintf("%s: weight of %s is %d, not %d", name, p.name, weight, want)
			}
		}
		counts := make(map[int64]int)
		for _, row := range t.Partitions[name] {
			counts[row.Owner]++
		}
		for session, weight := range weights {
			if d := float64(counts[session]) - float64(n*weight)/float64(max(sum, 1)); d >= 1 || d <= -1 {
				return fmt.Sprintf("%s: %s owns %d of %d with weight %d of %d",
					name, t.Clients[session].ID, counts[session], n, weight, sum)
			}
		}
	}
	return ""
}

// sessionOf returns the newest session under a client ID.
func sessionOf(t *fakestore.Tables, id string) int64 {
	var session, incarnation int64
	for _, row := range t.Clients {
		if row.ID == id && row.Incarnation >= incarnation {
			session, incarnation = row.Session, row.Incarnation
		}
	}
	return session
}
