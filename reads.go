package pgleases

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/pgleases/pgleases/internal/store"
)

// Reads: what the database says the session owns, compared with what the client has.

// readAll has everything read again that is owned.
func (e *engine) readAll() {
	for _, m := range e.leases.byName {
		m.toRead = m.joined
	}
}

func (e *engine) readDue(time.Time) time.Time {
	return atOnceIf(e.session.validity != nil && !e.session.behind && e.find((*membership).readDue) != nil)
}

func (m *membership) readDue() bool { return m.joined && m.toRead }

// beginRead reads what is owned of the leases that changed.
func (e *engine) beginRead(time.Time) *operation {
	var names []string
	for name, m := range e.leases.byName {
		if m.readDue() {
			names = append(names, name)
		}
	}
	session, run := e.session.number, unmarked(e.check.watch.run)
	read := func(ctx context.Context, c conn) ([]store.LeaseRead, error) { return c.Read(ctx, session, names) }
	return ask(e.limit(), read, func(reads []store.LeaseRead, err error) {
		if err != nil {
			return
		}
		e.checkTrust(time.Now())
		for _, r := range reads {
			if r.Run != run || (run.Timeline == r.Settled) != e.session.settled { // promoted or settled since the last heartbeat
				e.session.beatNow()
				return
			}
			if e.session.settled && r.Era < e.session.era {
				e.session.behind, e.session.settled = true, false
				return
			}
			e.session.era = max(e.session.era, r.Era)
			if m := e.leases.byName[r.Name]; m != nil && m.joined && e.session.validity != nil {
				e.readAnswered(m, r)
			}
		}
		if e.session.confirmed != run && e.session.validity != nil && !e.locks.toConfirm { // all that is shown was confirmed
			e.session.confirmed = run
			e.locks.lookAt = atOnce // what it has granted counts now
			e.trust(e.session.sent)
		}
	})
}

// readAnswered takes what the database says the session owns of a lease.
func (e *engine) readAnswered(m *membership, r store.LeaseRead) {
	now := time.Now()
	m.generation, m.toRead = r.Generation, false
	e.heardWishes(m, r)
	c := compare(r, m.assignments.of, e.session.settled, e.leases.relics[r.Name] || m.leaving != nil)
	if e.session.settled {
		delete(e.leases.relics, r.Name)
	}
	for t, epoch := range c.fenced {
		t.state, t.raised = fenced, epoch
	}
	gone := slices.Concat(c.lost, c.released)
	for _, t := range gone {
		m.assignments.set(t.Number, nil)
	}
	for _, p := range c.passing {
		c.wanted = append(c.wanted, e.own(m, p.Partition, p.Epoch))
	}
	gained := make([]int, len(c.gained))
	for i, p := range c.gained {
		gained[i] = e.own(m, p.Partition, p.Epoch).Number
	}
	e.end(m, c.lost, fmt.Errorf("%w: the server does not confirm it", ErrTrustLost))
	e.handOver(m, c.released)
	e.withdraw(m, c.wanted, m.releaseCause(), now)
	e.renew(m, c.outdated, now)
	for _, t := range gone {
		e.strike(t)
	}
	if len(c.released) > 0 { // by a release whose answer was lost: the new owners were not told
		e.announce(m.lease.name, 0)
	}
	e.serve(m, gained)
	if m.leaving != nil && m.assignments.n == 0 {
		m.awaitsRelease = false // nothing is left to wait for: leave again
	}
}

// heardWishes logs what an operator has done about this client, and a lease of it.
func (e *engine) heardWishes(m *membership, r store.LeaseRead) {
	switch changed := !slices.Equal(m.paused, r.Paused); {
	case changed && r.Paused == nil:
		e.client.log.Info("pgleases: pause of a lease ended", slog.String("lease", r.Name))
	case changed:
		e.client.log.Info("pgleases: lease paused by an operator", slog.String("lease", r.Name), slog.String("actor", r.Paused[0]),
			slog.String("reason", r.Paused[1]))
	}
	switch changed := !slices.Equal(e.leases.drained, r.Drained); {
	case changed && r.Drained == nil:
		e.client.log.Info("pgleases: drain of the client ended")
	case changed:
		e.client.log.Info("pgleases: client drained by an operator", slog.String("actor", r.Drained[0]), slog.String("reason", r.Drained[1]))
	}
	m.paused, e.leases.drained = r.Paused, r.Drained
}

// changes are how a read of a lease differs from the assignments.
type changes struct {
	fenced   map[*assignment]int64 // a fence has raised their epochs to these
	released []*assignment         // not owned under this epoch any more, after they were withdrawn
	lost     []*assignment         // not owned under this epoch any more, though they were served, or gained anew unseen
	wanted   []*assignment         // to be handed over
	outdated []*assignment         // of an earlier era: to begin again under a new epoch
	gained   []store.Owned         // to be served
	passing  []store.Owned         // gained, and to be handed over before they are served
}

// compare compares a read with the assignments, which are by partition. A server that is not settled gives nothing. If the lease
// passes on what it gains, nothing of that is served.
func compare(r store.LeaseRead, assigned []*assignment, settled, passesOn bool) (c changes) {
	c.fenced = make(map[*assignment]int64)
	owned := make([]store.Owned, len(assigned)) // by partition; epoch 0: not owned
	for _, p := range r.Owned {
		if p.Partition < len(assigned) { // else somebody has written it
			owned[p.Partition] = p
		}
	}
	for partition, p := range owned {
		t, earlierEra := assigned[partition], store.EraOf(p.Epoch) < r.Era
		if t != nil && t.state == fencing && p.Epoch > t.releaseEpoch() { // had it been released to this client, it would be once more
			c.fenced[t] = p.Epoch
		} else if t != nil && p.Epoch != t.releaseEpoch() {
			if t.state >= draining {
				c.released = append(c.released, t)
			} else {
				c.lost = append(c.lost, t)
			}
			t = nil
		}
		switch {
		case p.Epoch == 0 || t == nil && !settled:
		case t == nil && (p.Moving || earlierEra || passesOn):
			c.passing = append(c.passing, p)
		case t == nil:
			c.gained = append(c.gained, p)
		case earlierEra && !t.Ended():
			c.outdated = append(c.outdated, t)
		case p.Moving && t.state == serving:
			c.wanted = append(c.wanted, t)
		}
	}
	return c
}
