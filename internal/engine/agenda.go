package engine

import (
	"slices"
	"time"
)

// agenda is what is to be done for which of the client's memberships. Each step of the engine asks
// for it. It is kept when a membership changes, so that a step costs the same with one lease and
// with thousands.
type agenda struct {
	joins      []*membership            // to be joined, or joined once more for a weight, in the order in which they asked
	reads      map[*membership]struct{} // to be read
	leaves     map[*membership]struct{} // to be left: no leave was sent yet
	inDatabase int                      // the memberships that the database has
	toCount    map[*membership]struct{} // whose numbers may have changed since the last stats
}

func newAgenda() agenda {
	return agenda{reads: make(map[*membership]struct{}), leaves: make(map[*membership]struct{}), toCount: make(map[*membership]struct{})}
}

// become changes the state of a membership.
func (m *membership) become(s memberState) {
	before := m.inDatabase()
	m.state = s
	switch now := m.inDatabase(); {
	case now && !before:
		m.agenda.inDatabase++
	case before && !now:
		m.agenda.inDatabase--
	}
	m.setLeaveSent(m.leaveSent)
	m.askToJoin()
}

// setToRead notes whether the lease is to be read. Only a lease that the database has is read.
func (m *membership) setToRead(is bool) {
	if is && m.inDatabase() {
		m.agenda.reads[m] = struct{}{}
	} else {
		delete(m.agenda.reads, m)
	}
}

// setLeaveSent notes whether a leave was sent, if the lease is to be left.
func (m *membership) setLeaveSent(is bool) {
	m.leaveSent = is
	if m.state == leaves && !is {
		m.agenda.leaves[m] = struct{}{}
	} else {
		delete(m.agenda.leaves, m)
	}
}

// toJoin reports whether the lease is to be joined. A member joins once more to change its weight.
func (m *membership) toJoin() bool { return m.state == joins || m.weightDue() }

// askToJoin puts the membership at the end of the queue, if it is to join and not in the queue.
func (m *membership) askToJoin() {
	if m.toJoin() && !m.queued {
		m.queued = true
		m.agenda.joins = append(m.agenda.joins, m)
	}
}

// joinTried notes that a membership had its turn. If it is still to join, it waits behind all
// others.
func (m *membership) joinTried() {
	if at := slices.Index(m.agenda.joins, m); at >= 0 { // mostly the first
		m.agenda.joins = slices.Delete(m.agenda.joins, at, at+1)
	}
	m.queued = false
	m.askToJoin()
}

// nextJoin returns the membership that has waited longest for a join, without those that pause
// after a failure, and when the join is due.
func (g *agenda) nextJoin(now time.Time) (first *membership, due time.Time) {
	g.skipJoined()
	due = never
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
		g.joins[0].queued = false
		g.joins = g.joins[1:]
	}
}

// joining returns a membership that is to become one in the database; nil: there is none.
func (g *agenda) joining() *membership {
	for _, m := range g.joins {
		if m.state == joins {
			return m
		}
	}
	return nil
}

// closed removes a membership that has ended.
func (m *membership) closed() {
	m.become(left)
	m.setToRead(false)
	m.count()
}

// count notes that the numbers of the lease may have changed.
func (m *membership) count() { m.agenda.toCount[m] = struct{}{} }
