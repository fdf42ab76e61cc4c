package fakestore

import (
	"errors"
	"fmt"
	"maps"
)

// The verbs of operators. The SQL function of the same name describes what each does, and why.

type (
	// An Override is the key of table overrides; empty means null. Partition is the partition of a
	// pin.
	Override struct {
		Verb, Lease, Client string
		Partition           int
	}
	// OverrideValue is a row of table overrides without its key.
	OverrideValue struct {
		Until    int64
		PinnedTo string // client ID
	}
)

// ErrUnknown is the error of verbs that name a client or an override that does not exist, or a time
// that has passed.
var ErrUnknown = errors.New("unknown")

func (t *Tables) overridden(verb, lease, client string) bool {
	_, is := t.Overrides[Override{Verb: verb, Lease: lease, Client: client}]
	return is
}

// pins returns the pinned partitions of a lease, with their clients.
func (t *Tables) pins(lease string) map[int]string {
	pins := make(map[int]string)
	for w, override := range t.Overrides {
		if w.Verb == "pin" && w.Lease == lease && w.Partition < int(t.Leases[lease].Partitions) {
			pins[w.Partition] = override.PinnedTo
		}
	}
	return pins
}

// concerned returns the leases that an override concerns.
func (t *Tables) concerned(w Override) (names []string) {
	for m := range t.Members {
		if w.Lease == "" && t.live(m.Lease, m.Session) && t.Clients[m.Session].ID == w.Client {
			names = append(names, m.Lease)
		}
	}
	for g := range t.Graces {
		if w.Lease == "" && g.Client == w.Client {
			names = append(names, g.Lease)
		}
	}
	if _, known := t.Leases[w.Lease]; known {
		names = append(names, w.Lease)
	}
	return distinct(names)
}

// ask makes plans of leases due.
func (t *Tables) ask(names []string, clock int64) {
	for _, name := range names {
		if l, known := t.Leases[name]; known {
			l.Generation++
			l.NextCheckAt = min(l.NextCheckAt, clock)
			t.Leases[name] = l
		}
	}
}

// Override is the SQL functions drain, cordon, pause, freeze and pin.
func (db *Database) Override(w Override, pinnedTo string, until int64, force bool) error {
	db.mu.Lock()
	defer db.mu.Unlock()
	t, clock := &db.tables, db.clock()
	id := w.Client + pinnedTo
	_, known := t.Identities[id]
	switch {
	case until <= clock:
		return fmt.Errorf("%w: until %d", ErrUnknown, until)
	case w.Lease != "" && w.Verb != "pause" && t.Leases[w.Lease].Partitions <= int64(w.Partition):
		return fmt.Errorf("%w: %+v", ErrUnknown, w)
	case id != "" && until == Ever && !known:
		return fmt.Errorf("%w: %+v", ErrUnknown, w)
	}
	for _, name := range t.concerned(w) {
		if w.Verb == "drain" && !force && t.last(name, w.Client, clock) {
			return fmt.Errorf("%w: %q", ErrInUse, name)
		}
	}
	t.Overrides[w] = OverrideValue{until, pinnedTo}
	t.Server.NextCheckAt = min(t.Server.NextCheckAt, until)
	t.ask(t.concerned(w), clock)
	db.wrote(true)
	return nil
}

// last reports whether the client is the only one that works on the lease. Others whose session has
// expired may be dead.
func (t *Tables) last(lease, client string, clock int64) (last bool) {
	for m, member := range t.Members {
		c := t.Clients[m.Session]
		if m.Lease == lease && t.live(lease, m.Session) && member.Weight > 0 && c.Incarnation >= 0 &&
			(c.ExpiresAt > clock || c.ID == client) && !t.overridden("drain", "", c.ID) {
			if c.ID != client {
				return false
			}
			last = true
		}
	}
	return last
}

// TakeBack is the SQL functions undrain, uncordon, resume, unfreeze and unpin.
func (db *Database) TakeBack(w Override) error {
	db.mu.Lock()
	defer db.mu.Unlock()
	l := db.tables.Leases[w.Lease]
	settles := w.Verb == "freeze" && l.SettlesAt != 0 // an unfreeze ends a rebalance delay too
	_, is := db.tables.Overrides[w]
	if !is && !settles {
		return fmt.Errorf("%w: %+v", ErrUnknown, w)
	}
	if settles {
		l.SettlingSince, l.SettlesAt = 0, 0
		db.tables.Leases[w.Lease] = l
	}
	delete(db.tables.Overrides, w)
	db.tables.ask(db.tables.concerned(w), db.clock())
	db.wrote(true)
	return nil
}

// endOverrides ends the overrides whose time is over, and returns the leases that they concern.
func (t *Tables) endOverrides(clock int64) (toPlan []string) {
	for w, override := range t.Overrides {
		if override.Until <= clock {
			delete(t.Overrides, w)
			t.ask(t.concerned(w), clock)
			toPlan = append(toPlan, t.concerned(w)...)
		}
	}
	return toPlan
}

// EvictClient is the SQL function evict_client.
func (db *Database) EvictClient(id string) (revoked int, err error) {
	db.mu.Lock()
	defer db.mu.Unlock()
	t := &db.tables
	i, known := t.Identities[id]
	if !known {
		return 0, fmt.Errorf("%w: client %q", ErrUnknown, id)
	}
	i.Incarnation, i.Process = i.Incarnation+1, 0
	t.Identities[id] = i
	for session, c := range t.Clients {
		if c.ID == id && c.Incarnation >= 0 {
			c.Incarnation = -1
			t.Clients[session] = c
			revoked++
		}
	}
	t.ask(t.concerned(Override{Client: id}), db.clock())
	maps.DeleteFunc(t.Graces, func(key GraceKey, _ Grace) bool { return key.Client == id })
	db.changes = append(db.changes, change{whole: true})
	db.wrote(true)
	return revoked, nil
}
