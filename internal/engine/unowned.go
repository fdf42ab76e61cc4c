package engine

import (
	"log/slog"
	"maps"
	"time"

	"github.com/pgleases/pgleases/internal/logqueue"
	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/when"
)

// Partitions without an owner, because all members of their lease are at their ceilings. Every
// member counts them, and one of them logs that until it is over.

// unownedEvery is how often that is logged. The work on these partitions is not done until somebody
// acts, so one line would be overlooked.
const unownedEvery = time.Minute

// unowned is what a membership knows about such partitions.
type unowned struct {
	logqueue.Condition

	count  int
	speaks bool      // this member is the one that logs them
	sayAt  time.Time // when it does next
}

// heardUnowned notes what a read says about such partitions.
func (ms *members) heardUnowned(m *membership, r store.LeaseRead, now time.Time) {
	if r.Unowned == 0 {
		lasted, log := m.unowned.End(now)
		if log {
			ms.config.Log.Info("pgleases: ceilings no longer exceeded", slog.String("lease", r.Name),
				slog.Duration("for", lasted))
		}
	}
	m.setUnowned(r.Unowned, r.Speaks)
}

// setUnowned notes how many such partitions the lease has, and whether this member logs them.
func (m *membership) setUnowned(count int, speaks bool) {
	if count != m.unowned.count {
		m.count()
	}
	m.unowned.count, m.unowned.speaks = count, speaks
	if !speaks {
		m.unowned.Condition, m.unowned.sayAt = logqueue.Condition{}, when.AtOnce
	}
	m.agenda.unowned.set(m, speaks)
}

// sayUnownedAt returns when this member is to log such partitions.
func (m *membership) sayUnownedAt() time.Time { return m.unowned.sayAt }

// saidUnowned notes that this member has logged them.
func (m *membership) saidUnowned(now time.Time) {
	m.unowned.Begin(now)
	m.unowned.sayAt = now.Add(unownedEvery)
}

// unownedDue returns when such partitions are to be logged.
func (ms *members) unownedDue() time.Time {
	_, at := when.Soonest(maps.Keys(ms.agenda.unowned), (*membership).sayUnownedAt)
	return at
}

// sayUnowned logs such partitions.
func (ms *members) sayUnowned(now time.Time) {
	for m := range ms.agenda.unowned {
		if m.sayUnownedAt().After(now) {
			continue
		}
		m.saidUnowned(now)
		ms.config.Log.Warn("pgleases: partitions left without an owner, all members are at their ceilings",
			slog.String("lease", m.lease.Name), slog.Int("count", m.unowned.count))
	}
}
