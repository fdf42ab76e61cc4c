package pgleases

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pgleases/pgleases/internal/store"
)

// Releases: what drains goes to its next owner when the work on it has ended, and the owner is told. Fences before them, and leaving
// leases.

// releasableAt is when an assignment that drains may be released; never: it waits for work, whose end wakes the engine.
func (t *assignment) releasableAt(now time.Time) time.Time {
	if t.state == over || !t.membership.joined || !now.Before(t.readyAt) && !t.overdue && t.Pinned() {
		return never
	}
	return t.readyAt
}

// releasable returns what is to be released now in one statement, and the leases to leave. A statement waits for the rows of all its
// leases. So leases whose release met a lock come after all others, one by one.
func (e *engine) releasable(now time.Time) (assignments []*assignment, leaving []string) {
	due := make(map[*membership]bool)
	for t := range e.leases.draining {
		if !t.releasableAt(now).After(now) {
			assignments = append(assignments, t)
			due[t.membership] = true
		}
	}
	for _, m := range e.leases.byName {
		if m.leaves() {
			due[m] = true
		}
	}
	first, _ := soonest(maps.Keys(due), (*membership).triedApart)
	maps.DeleteFunc(due, func(m *membership, _ bool) bool { return m.apart && m != first })
	assignments = slices.DeleteFunc(assignments, func(t *assignment) bool { return !due[t.membership] })
	if len(assignments) > e.agenda.batch { // so that the statement does not keep the client from its heartbeat
		for name, m := range e.leases.byName {
			if due[m] && m.leaves() {
				leaving = append(leaving, name)
			}
		}
		if len(leaving) > 0 { // first, so that none who leaves at the same time has it among his heirs
			return nil, leaving
		}
		slices.SortFunc(assignments, func(a, b *assignment) int {
			return cmp.Or(strings.Compare(a.membership.lease.name, b.membership.lease.name), a.Number-b.Number)
		})
		assignments = assignments[:e.agenda.batch]
	}
	releases := make(map[*membership]bool)
	for _, t := range assignments {
		releases[t.membership] = true
	}
	for name, m := range e.leases.byName {
		if due[m] && m.leaving != nil && (!m.awaitsRelease || releases[m]) {
			leaving = append(leaving, name)
		}
	}
	return assignments, leaving
}

// triedApart is when a release has met a lock; zero: the last did not.
func (m *membership) triedApart() time.Time {
	if m.apart {
		return m.triedAt
	}
	return time.Time{}
}

// leaves reports whether a leave is to be sent, be there something to release or not.
func (m *membership) leaves() bool { return m.leaving != nil && m.joined && !m.awaitsRelease }

func (e *engine) releaseDue(now time.Time) time.Time {
	if e.find((*membership).leaves) != nil {
		return atOnce
	}
	at := never
	for t := range e.leases.draining {
		at = earlier(at, t.releasableAt(now))
	}
	return at
}

// beginRelease releases everything whose work has ended, in one statement, and leaves leases.
func (e *engine) beginRelease(now time.Time) *operation {
	assignments, names := e.releasable(now)
	session, lastJoin := e.session.number, e.leases.joins
	named := make(map[*membership]bool)
	releases := make([]store.Release, len(assignments))
	number := make(map[*membership]int) // of its partitions
	for i, t := range assignments {
		releases[i] = store.Release{Lease: t.membership.lease.name, Partition: t.Number, Epoch: t.releaseEpoch()}
		named[t.membership] = true
		number[t.membership]++
	}
	leaving := make([]store.Leave, len(names))
	bequeaths := len(assignments) > 0
	for i, name := range names {
		m := e.leases.byName[name]
		named[m] = true
		leaving[i] = store.Leave{Lease: name, Now: !m.awaitsRelease || number[m] == m.assignments.n}
		bequeaths = bequeaths && !m.intestate
	}
	id := e.options.clientID
	return ask(e.limit(), func(ctx context.Context, c conn) (answer store.Released, err error) {
		if len(leaving) > 0 && bequeaths {
			if err = bequeath(ctx, c, session, id, leaving); err != nil {
				return answer, err
			}
		}
		return c.Release(ctx, session, releases, leaving, lastJoin)
	}, func(answer store.Released, err error) {
		for m := range named {
			m.intestate = m.intestate || err != nil && m.leaving != nil
			if err == nil || store.LockTimeout(err) {
				m.apart, m.triedAt = err != nil, now
			}
		}
		if err == nil {
			e.releaseAnswered(assignments, answer)
			e.leaveAnswered(names, answer)
		}
	})
}

// releaseAnswered takes what became of each release: done, busy (a guarded transaction is open), or neither. Then an earlier
// one, whose answer was lost, had released it: a read tells which partitions the session has.
func (e *engine) releaseAnswered(assignments []*assignment, answer store.Released) {
	now := time.Now()
	type key struct {
		lease     string
		partition int
	}
	handed := make(map[key]store.Handed, len(answer.Released))
	for _, h := range answer.Released {
		handed[key{h.Lease, h.Partition}] = h
	}
	busy := make(map[key]bool, len(answer.Busy))
	for _, b := range answer.Busy {
		busy[key{b.Lease, b.Partition}] = true
	}
	left := make(map[string]bool, len(answer.Left))
	for _, name := range answer.Left {
		left[name] = true
	}
	released, kept := make(map[*membership][]*assignment), make(map[*membership][]int)
	for _, t := range assignments {
		m, k := t.membership, key{t.membership.lease.name, t.Number}
		h, done := handed[k]
		switch {
		case busy[k]:
			t.readyAt = now.Add(busyRetry)
			t.busy++
			continue
		case !done && t.state == fencing:
			m.toRead = m.joined
			t.readyAt = now.Add(busyRetry)
			continue
		case !done: // nor were the new owners told. Or the session is gone, and would read what it has, and release that, until it hears of it
			e.session.beatNow()
			m.toRead = m.joined
			e.announce(m.lease.name, 0)
		case left[m.lease.name]: // the new owner was told
		case h.Owner != e.session.number:
			e.announce(m.lease.name, h.Owner)
		case e.session.validity == nil || m.leaving != nil: // it came back at a time when nothing is shown
			m.toRead = m.joined
		default:
			kept[m] = append(kept[m], e.own(m, h.Partition, h.Epoch).Number)
			m.toRead = true // where it was renewed, it may be wanted elsewhere
		}
		released[m] = append(released[m], t)
	}
	for m, assignments := range released {
		e.handOver(m, assignments)
		for _, t := range assignments {
			e.strike(t)
		}
	}
	for m, gained := range kept {
		e.serve(m, gained)
	}
	e.plans.request(now, answer.Asking...)
}

// An announcement of a lease is to be made.
type announcement struct {
	sessions map[int64]struct{} // that own what was released
	triedAt  time.Time          // it met a lock, and is made apart from others; zero: it did not
}

// announce notes that a lease has changed for a session; 0: it is not known for which.
func (e *engine) announce(lease string, session int64) {
	a := e.leases.unannounced[lease]
	if a == nil {
		a = &announcement{sessions: make(map[int64]struct{})}
		e.leases.unannounced[lease] = a
	}
	if session != 0 {
		a.sessions[session] = struct{}{}
	}
}

func (e *engine) announceDue(time.Time) time.Time { return atOnceIf(len(e.leases.unannounced) > 0) }

// beginAnnounce tells the new owners of what was released. A statement waits for the rows of all its leases. So those that met a lock
// come after all others, one by one.
func (e *engine) beginAnnounce(now time.Time) *operation {
	oldest, _ := soonest(maps.Keys(e.leases.unannounced), func(name string) time.Time { return e.leases.unannounced[name].triedAt })
	var names []string
	concerned := make(map[int64]struct{})
	for name, a := range e.leases.unannounced {
		if a.triedAt.IsZero() || name == oldest {
			names = append(names, name)
			maps.Copy(concerned, a.sessions)
		}
	}
	slices.Sort(names)
	sessions := slices.Collect(maps.Keys(concerned))
	return tell(e.limit(), func(ctx context.Context, c conn) error { return c.Announce(ctx, names, sessions) }, func(err error) {
		for _, name := range names {
			if err == nil { // nothing was released meanwhile
				delete(e.leases.unannounced, name)
			} else if store.LockTimeout(err) {
				e.leases.unannounced[name].triedAt = now
			}
		}
	})
}

// releaseEpoch is the partition's epoch in the database, which is higher than that of the ownership once a fence was set.
func (t *assignment) releaseEpoch() int64 { return max(t.Epoch, t.raised) }

// wantsFence is whether guarded transactions that overlap may keep a release waiting for ever: at the second try one is open, under
// an epoch that still passes a guard.
func (t *assignment) wantsFence(era int64) bool {
	return t.busy > 1 && t.state < fenced && t.membership.joined && store.EraOf(t.Epoch) >= era
}

func (e *engine) fenceDue(time.Time) time.Time {
	for t := range e.leases.draining {
		if t.wantsFence(e.session.era) {
			return atOnce
		}
	}
	return never
}

// beginFence sees to it that no further guarded transaction begins on partitions whose release waits for some.
func (e *engine) beginFence(time.Time) *operation {
	var busy []store.Release
	var assignments []*assignment
	for t := range e.leases.draining {
		if t.wantsFence(e.session.era) && len(busy) < e.agenda.batch {
			busy = append(busy, store.Release{Lease: t.membership.lease.name, Partition: t.Number, Epoch: t.Epoch})
			assignments = append(assignments, t)
			t.state = fencing
		}
	}
	session := e.session.number
	return tell(e.limit(), func(ctx context.Context, c conn) error { return c.Fence(ctx, session, busy) }, func(error) {
		for _, t := range assignments {
			t.busy = 0
			t.membership.toRead = t.membership.joined // which tells the epoch
		}
	})
}

// leaveAnswered takes what became of the leases that were left.
func (e *engine) leaveAnswered(leaving []string, answer store.Released) {
	for _, name := range leaving {
		m := e.leases.byName[name]
		switch {
		case m == nil || m.leaving == nil:
		case slices.Contains(answer.Left, name):
			m.awaitsRelease = true
			e.unjoined(m)
		default:
			m.awaitsRelease = true
			if m.assignments.n == 0 {
				m.toRead = true     // something was given to it meanwhile
				e.session.beatNow() // or the session is no member any more, which a heartbeat tells
			}
		}
	}
}
