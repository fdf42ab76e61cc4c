package engine

// setWeight is Lease.SetWeight.
func (ms *members) setWeight(l *Lease, weight int, done chan<- error) {
	switch m := ms.of(l); {
	case m == nil:
		done <- l.Board.Cause()
	case m.leaving():
		done <- m.reason
	default:
		m.setWeight(weight, done)
	}
}

// setWeight sets the weight that the database is to have, for a call that waits until it has it.
func (m *membership) setWeight(weight int, done chan<- error) {
	m.weight = weight
	m.weightCalls[done] = struct{}{}
	m.askToJoin()
}

// abandonWeight forgets a call of SetWeight whose caller stopped waiting. The weight is set anyway.
func (m *membership) abandonWeight(done chan<- error) {
	if _, waits := m.weightCalls[done]; waits {
		delete(m.weightCalls, done)
		m.setWeightLost(true)
	}
}

// answerWeight answers the given calls of SetWeight that still wait.
func (m *membership) answerWeight(calls weightCalls, err error) {
	for done := range calls {
		if _, waits := m.weightCalls[done]; waits { // it may have been given up, or answered by a leave
			delete(m.weightCalls, done)
			done <- err
		}
	}
}

// weightDue reports whether another join has to send the weight of a member to the database.
func (m *membership) weightDue() bool {
	return m.state == stateMember && (len(m.weightCalls) > 0 || m.weightLost)
}

// weightSet notes that the database has a weight, which was sent for these calls.
func (m *membership) weightSet(weight int, calls weightCalls) {
	m.setWeightLost(m.weight != weight)
	m.answerWeight(calls, nil)
}

// setWeightLost notes whether the database has another weight, or may have.
func (m *membership) setWeightLost(is bool) {
	m.weightLost = is
	m.askToJoin()
}
