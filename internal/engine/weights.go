package engine

import (
	"fmt"

	"github.com/pgleases/pgleases/internal/store"
)

// setWeight is Lease.SetWeight.
func (ms *members) setWeight(l *Lease, weight int, done chan<- error) {
	switch m := ms.of(l); {
	case m == nil:
		done <- l.Board.Cause()
	case m.ends():
		done <- m.reason
	default:
		m.weight = weight
		m.weightCalls[done] = struct{}{}
	}
}

// abandonWeight forgets a call of SetWeight whose caller stopped waiting. The weight is set anyway.
func (m *membership) abandonWeight(done chan<- error) {
	if _, waits := m.weightCalls[done]; waits {
		delete(m.weightCalls, done)
		m.weightLost = true
	}
}

// answerWeight answers those of the calls of SetWeight that still wait, and reports whether any
// does.
func (m *membership) answerWeight(calls weightCalls, err error) (answered bool) {
	for done := range calls {
		if _, waits := m.weightCalls[done]; waits { // it may have been given up, or answered by a leave
			delete(m.weightCalls, done)
			done <- err
			answered = true
		}
	}
	return answered
}

// weightDue reports whether the database is to get the weight.
func (m *membership) weightDue() bool {
	return m.state == member && (len(m.weightCalls) > 0 || m.weightLost)
}

// weightSet takes the answer to a weight that was sent for these calls. It returns the error that
// is to be tried again for.
func (m *membership) weightSet(weight int, calls weightCalls, isMember bool, err error) error {
	switch {
	case err != nil && (store.Transient(err) || !m.answerWeight(calls, err)): // no caller gets it
		return fmt.Errorf("lease %q: %w", m.lease.Name, err)
	case err == nil && isMember:
		m.weightLost = m.weight != weight
		m.answerWeight(calls, nil)
	}
	return nil
}
