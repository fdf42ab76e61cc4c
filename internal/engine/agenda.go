package engine

import (
	"slices"
	"time"

	"github.com/pgleases/pgleases/internal/when"
)

// agenda is what is to be done for which of the client's memberships. Each step of the engine asks
// for it. It is kept when a membership changes, so that a step costs the same with one lease and
// with thousands.
type agenda struct {
	joins      []*membership // to be joined, or joined once more for a weight, in the order in which they asked
	reads      memberSet     // to be read
	leaves     memberSet     // to be left: no leave was sent yet
	unowned    memberSet     // of which this member logs partitions that have no owner
	inDatabase int           // the memberships that the database has
	toCount    memberSet     // whose numbers may have changed since the last stats
}

// A memberSet is a set of memberships.
type memberSet map[*membership]struct{}

// set adds a membership, or removes it.
func (s memberSet) set(m *membership, is bool) {
	if is {
		s[m] = struct{}{}
	} else {
		delete(s, m)
	}
}

func newAgenda() agenda {
	return agenda{reads: make(memberSet), leaves: make(memberSet), toCount: make(memberSet), unowned: make(memberSet)}
}

// became notes whether the database had and has a membership.
func (g *agenda) became(before, now bool) {
	switch {
	case now && !before:
		g.inDatabase++
	case before && !now:
		g.inDatabase--
	}
}

// become changes the state of a membership.
func (m *membership) become(s memberState) {
	before := m.inDatabase()
	m.state = s
	m.agenda.became(before, m.inDatabase())
	m.setLeaveSent(m.leaveSent)
	m.askToJoin()
}

// setToRead notes whether the lease is to be read. Only a lease that the database has is read.
func (m *membership) setToRead(is bool) {
	m.agenda.reads.set(m, is && m.inDatabase())
}

// setLeaveSent notes whether a leave was sent, if the lease is to be left.
func (m *membership) setLeaveSent(is bool) {
	m.leaveSent = is
	m.agenda.leaves.set(m, m.state == stateLeaves && !is)
}

// toJoin reports whether the lease is to be joined. A member joins once more to change its weight.
func (m *membership) toJoin() bool { return m.state == stateJoins || m.weightDue() }

// askToJoin puts the membership at the end of the queue, if it is to join and not in the queue.
func (m *membership) askToJoin() {
	if m.toJoin() && !m.queued {
		m.queued = true
		m.agenda.queue(m)
	}
}

// joinTried notes that a membership had its turn. If it is still to join, it waits behind all
// others.
func (m *membership) joinTried() {
	m.agenda.unqueue(m)
	m.leftQueue()
	m.askToJoin()
}

// leftQueue notes that it is not in the queue any more.
func (m *membership) leftQueue() { m.queued = false }

// queue puts a membership at the end of the queue of joins.
func (g *agenda) queue(m *membership) { g.joins = append(g.joins, m) }

// unqueue removes a membership from the queue of joins.
func (g *agenda) unqueue(m *membership) {
	at := slices.Index(g.joins, m) // mostly the first
	if at >= 0 {
		g.joins = slices.Delete(g.joins, at, at+1)
	}
}

// nextJoin returns the membership that has waited longest for a join, without those that pause
// after a failure, and when the join is due.
func (g *agenda) nextJoin(now time.Time) (first *membership, due time.Time) {
	g.skipJoined()
	due = when.Never
	for _, m := range g.joins {
		switch {
		case !m.toJoin():
		case !m.retryAt.After(now):
			return m, m.retryAt
		case m.retryAt.Before(due):
			first, due = m, m.retryAt
		}
	}
	return first, due
}

// skipJoined removes memberships that are no longer to join from the front of the queue.
func (g *agenda) skipJoined() {
	for len(g.joins) > 0 && !g.joins[0].toJoin() {
		g.joins[0].leftQueue()
		g.joins = g.joins[1:]
	}
}

// joining returns a membership that is to become one in the database; nil: there is none.
func (g *agenda) joining() *membership {
	for _, m := range g.joins {
		if m.state == stateJoins {
			return m
		}
	}
	return nil
}

// close removes a membership that has ended.
func (m *membership) close() {
	m.closed = true
	m.become(stateLeft)
	m.setToRead(false)
	m.setUnowned(0, false)
	m.count()
}

// count notes that the numbers of the lease may have changed.
func (m *membership) count() { m.agenda.toCount.set(m, true) }

// counted notes that all numbers were counted.
func (g *agenda) counted() { clear(g.toCount) }
