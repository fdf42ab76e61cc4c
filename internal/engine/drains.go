package engine

import (
	"log/slog"
	"slices"
	"time"

	"github.com/pgleases/pgleases/internal/owned"
	"github.com/pgleases/pgleases/internal/ranges"
)

// WarnAfter is how long work goes on that was asked to end until that is logged; then at doubling
// intervals.
const WarnAfter = 30 * time.Second

// shared is what the assignments of all leases have in common.
type shared struct {
	config *Config

	validity *owned.Validity // of the trust; nil: there is none
	invalid  *owned.Validity // shown then

	draining map[*assignment]struct{} // also those that are struck out, until the work on them ends
	ended    []ended                  // not logged yet
}

// ended is what of a lease ended at once.
type ended struct {
	lease      *Lease
	numbers    []int
	cause      error
	handedOver bool // by a release
}

func newShared(c *Client, now time.Time) shared {
	return shared{config: &c.config, invalid: owned.Invalid(now), draining: make(map[*assignment]struct{})}
}

// shown is the validity that snapshots show.
func (s *shared) shown() *owned.Validity {
	if s.validity == nil {
		return s.invalid
	}
	return s.validity
}

// logEnded logs what has ended, in each turn once all that ends in it has, and before what is
// gained.
func (s *shared) logEnded() {
	for _, l := range s.ended {
		partitions := ranges.Short(l.numbers)
		if l.handedOver {
			s.config.Log.Info("pgleases: partitions handed over", slog.String("lease", l.lease.Name), slog.String("partitions", partitions), slog.Any("cause", l.cause))
		} else {
			s.config.Log.Warn("pgleases: partitions lost", slog.String("lease", l.lease.Name), slog.String("partitions", partitions), slog.Any("cause", l.cause))
		}
	}
	s.ended = nil
}

// inWork returns the partitions of a lease that drain and are in work, by number.
func (s *shared) inWork(m *membership) []int {
	var numbers []int
	for a := range s.draining {
		if a.membership == m && a.Pinned() {
			numbers = append(numbers, a.Number)
		}
	}
	slices.Sort(numbers)
	return slices.Compact(numbers) // more than one ownership of a partition may be in work still
}

// drainsDue is when work has gone on for so long that something is to be done about it.
func (s *shared) drainsDue() time.Time {
	at := never
	for a := range s.draining {
		at = earlier(at, a.warnAt)
		if !a.overdue {
			at = earlier(at, a.limitAt)
		}
	}
	return at
}

// supervise ends ownerships that are not waited for any longer, and logs work that goes on for
// long. Hurried is why none is waited for; nil: all are.
func (s *shared) supervise(hurried error, now time.Time) {
	timedOut, rest := make(map[*membership][]*assignment), make(map[*membership][]*assignment)
	for a := range s.draining {
		if a.state == over && !a.Pinned() {
			delete(s.draining, a)
			continue
		}
		if !a.overdue && !now.Before(a.limitAt) {
			a.overdue = true
			if a.Pinned() {
				timedOut[a.membership] = append(timedOut[a.membership], a)
			}
		}
		if hurried != nil && !a.Ended() && a.Pinned() {
			rest[a.membership] = append(rest[a.membership], a)
		}
	}
	for m, assignments := range timedOut {
		m.end(assignments, s.config.Errors.DrainTimeout)
	}
	for m, assignments := range rest {
		m.end(assignments, hurried)
	}
	s.logEnded()
	s.logWork(now)
}

// warnTogether is how much earlier work is logged, to be in one line with what is to be logged now.
const warnTogether = time.Second

// logWork logs work that goes on for long, in one line for each lease: there may be thousands of
// partitions.
func (s *shared) logWork(now time.Time) {
	type line struct {
		lease *Lease
		over  bool
	}
	due, lines := make(map[line]bool), make(map[line][]*assignment)
	for a := range s.draining {
		if now.Add(warnTogether).Before(a.warnAt) {
			continue
		}
		l := line{a.membership.lease, a.state == over}
		lines[l] = append(lines[l], a)
		due[l] = due[l] || !now.Before(a.warnAt)
	}
	for l, assignments := range lines {
		if !due[l] {
			continue
		}
		partitions, longest := stillInWork(assignments, now)
		switch {
		case partitions == "":
		case l.over:
			s.config.Log.Warn("pgleases: work goes on after its partition was lost", slog.String("lease", l.lease.Name),
				slog.String("partitions", partitions), slog.Duration("for", longest))
		default:
			s.config.Log.Warn("pgleases: handoff waits for work", slog.String("lease", l.lease.Name),
				slog.String("partitions", partitions), slog.Duration("for", longest))
		}
	}
}

// stillInWork returns which of the partitions are in work, and for how long at most. It sets when
// that is to be logged again.
func stillInWork(assignments []*assignment, now time.Time) (partitions string, longest time.Duration) {
	var numbers []int
	for _, a := range assignments {
		lasts := now.Sub(a.since)
		a.warnAt = now.Add(lasts)
		if a.Pinned() {
			numbers, longest = append(numbers, a.Number), max(longest, lasts)
		}
	}
	slices.Sort(numbers)
	return ranges.Short(slices.Compact(numbers)), longest.Round(time.Second) // more than one ownership of a partition may be in work still
}

// endOverdue ends ownerships on which work goes on for too long after the end of Run's context.
func (as *assignments) endOverdue(working []*owned.Ownership, now time.Time) {
	overdue := slices.DeleteFunc(as.serving(), func(a *assignment) bool { return !slices.Contains(working, a.Ownership) || !a.Pinned() })
	as.withdraw(overdue, as.config.Errors.DrainTimeout, now)
	as.end(overdue, as.config.Errors.DrainTimeout)
	as.logEnded()
}
