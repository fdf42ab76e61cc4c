package engine

import (
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/pgleases/pgleases/internal/store"
)

// Reads: the ownerships of the session in the database, compared with the client's.

// readAll makes the client read all its ownerships again.
func (ms *members) readAll() {
	for _, m := range ms.byName {
		m.setToRead(true)
	}
}

// toRead reports whether a lease is to be read.
func (ms *members) toRead() bool { return len(ms.agenda.reads) > 0 }

// namesToRead returns the leases to be read.
func (ms *members) namesToRead() []string {
	names := make([]string, 0, len(ms.agenda.reads))
	for m := range ms.agenda.reads {
		names = append(names, m.lease.Name)
	}
	return names
}

// read handles the ownerships of the session in a lease, on a server that is accepted or not. It
// reports whether a partition was released whose new owner may not have been notified.
func (ms *members) read(m *membership, r store.LeaseRead, accepted bool, now time.Time) (released bool) {
	m.noteGeneration(r.Generation)
	m.lease.hear(r.Generation, r.ServerGeneration)
	ms.heardOverrides(m, r, now)
	ms.heardUnowned(m, r, now)
	c := compare(r, m.assignments.assigned, accepted, ms.unreleased[r.Name] || m.leaving())
	if accepted {
		delete(ms.unreleased, r.Name)
	}
	for a, epoch := range c.fenced {
		a.fenceRaised(epoch)
	}
	gone := slices.Concat(c.lost, c.released)
	for _, a := range gone {
		m.assignments.set(a.ownership.Number, nil)
	}
	// New ownerships begin before others are withdrawn, so that one snapshot shows both: withdraw
	// publishes it, also if it has none to withdraw.
	for _, p := range c.passing {
		c.wanted = append(c.wanted, m.assignments.begin(p.Partition, p.Epoch))
	}
	gained := make([]int, len(c.gained))
	for i, p := range c.gained {
		gained[i] = m.assignments.begin(p.Partition, p.Epoch).ownership.Number
	}
	m.assignments.endOwnerships(c.lost, fmt.Errorf("%w: the server does not confirm it", ms.config.Errors.TrustLost))
	m.assignments.handOver(c.released)
	m.assignments.withdraw(c.wanted, m.assignments.releaseCause(), now)
	m.assignments.renew(c.outdated, now)
	for _, a := range gone {
		m.assignments.remove(a)
	}
	m.assignments.serve(gained)
	if m.leaving() && m.assignments.n == 0 {
		m.setLeaveSent(false) // no partition is left to wait for: leave again
	}
	return len(c.released) > 0
}

// heardOverrides logs an operator's overrides of this client and of its lease.
func (ms *members) heardOverrides(m *membership, r store.LeaseRead, now time.Time) {
	paused, drained := overrideOf(r.Paused), overrideOf(r.Drained)
	switch changed := m.paused != paused; {
	case changed && !paused.active:
		lasted, _ := m.pauses.End(now)
		ms.config.Log.Info("pgleases: pause of a lease ended", slog.String("lease", r.Name),
			slog.Duration("for", lasted))
	case changed:
		m.pauses.Begin(now)
		ms.config.Log.Info("pgleases: lease paused by an operator",
			slog.String("lease", r.Name), slog.String("actor", paused.actor), slog.String("reason", paused.reason))
	}
	switch changed := ms.drained != drained; {
	case changed && !drained.active:
		lasted, _ := ms.drains.End(now)
		ms.config.Log.Info("pgleases: drain of the client ended", slog.Duration("for", lasted))
	case changed:
		ms.drains.Begin(now)
		ms.config.Log.Info("pgleases: client drained by an operator", slog.String("actor", drained.actor),
			slog.String("reason", drained.reason))
	}
	m.setPaused(paused)
	ms.drained = drained
}

// An override is an operator's pause of a lease, or drain of a client.
type override struct {
	active        bool
	actor, reason string
}

// overrideOf returns the override that a read has returned, as its actor and its reason, if there
// is one.
func overrideOf(read []string) override {
	if len(read) < 2 {
		return override{}
	}
	return override{true, read[0], read[1]}
}

// noteGeneration notes the lease's generation in a read.
func (m *membership) noteGeneration(generation int64) {
	m.generation = generation
	m.setToRead(false)
}

// setPaused notes the pause of the lease, or its end.
func (m *membership) setPaused(by override) { m.paused = by }

// changes are the differences between a read of a lease and the assignments.
type changes struct {
	fenced   map[*assignment]int64 // a fence has raised their epochs to these
	released []*assignment         // were draining, and are no longer owned under their epoch
	lost     []*assignment         // were serving, and are no longer owned under their epoch
	wanted   []*assignment         // to be handed over
	outdated []*assignment         // of an earlier server generation: to begin again under a new epoch
	gained   []store.Owned         // to be served
	passing  []store.Owned         // gained, and to be handed over before they are served
}

// compare compares a read with the assignments, which are by partition. A server that is not
// accepted gives no partition. If the lease passes on what it gains, it serves none of those
// partitions.
func compare(r store.LeaseRead, assigned []*assignment, accepted, passesOn bool) (c changes) {
	c.fenced = make(map[*assignment]int64)
	for partition, p := range byPartition(r.Owned, len(assigned)) {
		a := c.classify(assigned[partition], p.Epoch)
		outdated := store.ServerGenerationOf(p.Epoch) < r.ServerGeneration
		switch {
		case p.Epoch == 0 || a == nil && !accepted:
		case a == nil && (p.Moving || outdated || passesOn):
			c.passing = append(c.passing, p)
		case a == nil:
			c.gained = append(c.gained, p)
		case outdated && !a.ownership.Ended():
			c.outdated = append(c.outdated, a)
		case p.Moving && a.state == serving:
			c.wanted = append(c.wanted, a)
		}
	}
	return c
}

// classify returns an assignment if the session still owns its partition, according to the epoch
// that was read. If a fence has raised that epoch, it also notes the assignment as fenced. If the
// session no longer owns the partition, it notes the assignment as released or lost, and returns
// nil. Without an assignment it returns nil.
func (c *changes) classify(a *assignment, epoch int64) *assignment {
	switch {
	case a == nil || epoch == a.releaseEpoch():
		return a
	case a.state == fencing && epoch > a.releaseEpoch():
		// The fence raised it, or the partition was released and came back. Then it is released
		// again.
		c.fenced[a] = epoch
		return a
	case a.state >= draining:
		c.released = append(c.released, a)
	default:
		c.lost = append(c.lost, a)
	}
	return nil
}

// byPartition returns the ownerships by partition; epoch 0: not owned.
func byPartition(owned []store.Owned, partitions int) []store.Owned {
	by := make([]store.Owned, partitions)
	for _, p := range owned {
		if p.Partition < partitions { // a higher number was written by hand
			by[p.Partition] = p
		}
	}
	return by
}
