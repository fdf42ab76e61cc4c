package engine

import (
	"cmp"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/pgleases/pgleases/internal/logqueue"
	"github.com/pgleases/pgleases/internal/owned"
	"github.com/pgleases/pgleases/internal/ranges"
	"github.com/pgleases/pgleases/internal/when"
)

// WarnAfter is how long work may continue after it was asked to end before that is logged. Later
// warnings follow at doubling intervals.
const WarnAfter = 30 * time.Second

// shared is the state that the assignments of all leases have in common.
type shared struct {
	config *Config

	validity *owned.Validity // of the trust, while there is trust
	invalid  *owned.Validity // shown if there is no trust

	// also removed assignments, until the work on them ends. Changed by beginDrain and endDrain
	draining map[*assignment]struct{}
	long     map[workOf]*longWork // that is logged
	unlogged []ended              // not logged yet
	// what was handed over of leases that the client leaves, or of all when it ends: one line for each
	// lease when it has left
	given map[*Lease]*ended
	// what is gained and handed over again and again, in one line for each lease and JoinedFor
	lines *logqueue.Joiner
}

// ended are ownerships of one lease that ended together.
type ended struct {
	lease      *Lease
	numbers    []int
	cause      error
	handedOver bool // by a release
}

func newShared(c *Client, now time.Time) shared {
	return shared{config: &c.config, invalid: owned.Invalid(now), draining: make(map[*assignment]struct{}),
		long: make(map[workOf]*longWork), given: make(map[*Lease]*ended), lines: new(logqueue.Joiner)}
}

// trusted reports whether there is trust.
func (s *shared) trusted() bool { return s.validity != nil }

// shown returns the validity that snapshots show.
func (s *shared) shown() *owned.Validity { return cmp.Or(s.validity, s.invalid) }

// beginDrain notes that an assignment drains.
func (s *shared) beginDrain(a *assignment) {
	s.draining[a] = struct{}{}
	a.membership.count()
}

// endDrain notes that an assignment no longer drains.
func (s *shared) endDrain(a *assignment) {
	s.workEnded(a)
	delete(s.draining, a)
	a.membership.count()
}

// noteEnd notes ownerships that have ended, for logEnded or logGiven.
func (s *shared) noteEnd(e ended) {
	given := s.given[e.lease]
	switch {
	case !e.handedOver || errors.Is(e.cause, s.config.Errors.Handoff):
		s.unlogged = append(s.unlogged, e)
	case given == nil:
		s.given[e.lease] = &e
	default:
		given.numbers = append(given.numbers, e.numbers...)
	}
}

// logGiven logs what was handed over of a lease that the client has left. The work on its
// partitions ends one after the other, so that a line for each end would be many.
func (s *shared) logGiven(l *Lease) {
	given := s.given[l]
	if given == nil {
		return
	}
	delete(s.given, l)
	s.lines.FlushOf(l.Name)
	s.config.Log.Info("pgleases: partitions handed over", slog.String("lease", l.Name),
		slog.Int("count", len(given.numbers)), slog.String("partitions", ranges.Logged(given.numbers)),
		slog.Any("cause", given.cause))
}

// logEnded logs the ownerships that have ended. It is called once in each step, after all ends and
// before the gains.
func (s *shared) logEnded() {
	for _, l := range s.unlogged {
		if l.handedOver {
			s.logHandedOver(l.lease, l.numbers)
			continue
		}
		s.lines.FlushOf(l.lease.Name)
		s.config.Log.Warn("pgleases: partitions lost", slog.String("lease", l.lease.Name),
			slog.String("partitions", ranges.Logged(l.numbers)), slog.Any("cause", l.cause))
	}
	s.unlogged = nil
}

// logHandedOver logs what another client gets. The cause would repeat the message.
func (s *shared) logHandedOver(l *Lease, numbers []int) {
	log := s.config.Log
	s.lines.Add(logqueue.Reason{Message: "handed over", Of: l.Name}, numbers, func(numbers []int, lines int) {
		lease, partitions := l.Name, ranges.Logged(numbers)
		if lines == 0 {
			log.Info("pgleases: partitions handed over",
				slog.String("lease", lease), slog.String("partitions", partitions))
			return
		}
		log.Info("pgleases: partitions handed over",
			slog.String("lease", lease), slog.String("partitions", partitions),
			slog.Int("count", len(numbers)), slog.Int("lines", lines), slog.String("owned", nowOwned(l)))
	})
}

// logGained logs what the client gains.
func (s *shared) logGained(l *Lease, numbers []int) {
	log := s.config.Log
	s.lines.Add(logqueue.Reason{Message: "gained", Of: l.Name}, numbers, func(numbers []int, lines int) {
		lease, partitions := l.Name, ranges.Logged(numbers)
		if lines == 0 {
			log.Info("pgleases: partitions gained", slog.String("lease", lease), slog.String("partitions", partitions))
			return
		}
		log.Info("pgleases: partitions gained", slog.String("lease", lease), slog.String("partitions", partitions),
			slog.Int("count", len(numbers)), slog.Int("lines", lines), slog.String("owned", nowOwned(l)))
	})
}

// nowOwned returns the partitions that readers of a lease see, for a line about what was gained or
// handed over some seconds ago. Any goroutine may call it.
func nowOwned(l *Lease) string {
	shown := l.Board.Look()
	if !shown.Validity.Holds() {
		return ranges.Logged(nil)
	}
	return ranges.Logged(shown.Values)
}

// inWork returns the partitions of a lease that drain and are in work. A partition may have more
// than one such ownership.
func (s *shared) inWork(m *membership) (numbers []int) {
	for a := range s.draining {
		if a.membership == m && a.ownership.Pinned() {
			numbers = append(numbers, a.ownership.Number)
		}
	}
	return numbers
}

// drainsDue returns when work has continued for so long that it must be logged or ended.
func (s *shared) drainsDue() time.Time {
	actAt := func(a *assignment) time.Time { return when.Earlier(a.warnAt, a.limitAt) }
	_, at := when.Soonest(maps.Keys(s.draining), actAt)
	return at
}

// supervise ends ownerships whose work is no longer waited for, and logs work that takes long. With
// hurried it waits for no work, because the client ends for that reason.
func (s *shared) supervise(hurried bool, reason error, now time.Time) {
	timedOut, rest := make(map[*membership][]*assignment), make(map[*membership][]*assignment)
	for a := range s.draining {
		if a.state == over && !a.ownership.Pinned() {
			s.endDrain(a)
			continue
		}
		if !now.Before(a.limitAt) {
			a.passLimit()
			if a.ownership.Pinned() {
				timedOut[a.membership] = append(timedOut[a.membership], a)
			}
		}
		if hurried && !a.ownership.Ended() && a.ownership.Pinned() {
			rest[a.membership] = append(rest[a.membership], a)
		}
	}
	for m, assignments := range timedOut {
		m.assignments.endOwnerships(assignments, s.config.Errors.DrainTimeout)
	}
	for m, assignments := range rest {
		m.assignments.endOwnerships(assignments, reason)
	}
	s.logEnded()
	s.logWork(now)
}

// warnTogether is how much earlier work is logged to share a line with work that is due to be
// logged.
const warnTogether = time.Second

// workOf says which work shares a line: that of a lease for which handoffs wait, or that goes on
// after its partitions were lost.
type workOf struct {
	lease *Lease
	over  bool
}

// longWork is work that was logged because it takes long, until all of it has ended.
type longWork struct {
	logqueue.Condition
	of workOf
	n  int // assignments
}

// logWork logs work that takes long, in one line for each lease, because there may be thousands of
// partitions.
func (s *shared) logWork(now time.Time) {
	_, due := when.Soonest(maps.Keys(s.draining), func(a *assignment) time.Time { return a.warnAt })
	if now.Before(due) {
		return
	}
	lines, longest := make(map[workOf][]int), make(map[workOf]time.Duration)
	for a := range s.draining {
		if now.Add(warnTogether).Before(a.warnAt) {
			continue
		}
		lasts := a.warned(now)
		l := workOf{a.membership.lease, a.state == over}
		if a.ownership.Pinned() {
			lines[l], longest[l] = append(lines[l], a.ownership.Number), max(longest[l], lasts)
			s.workLogged(a, l)
		}
	}
	for l, numbers := range lines {
		s.long[l].Begin(now.Add(-longest[l]))
		partitions, lasts := ranges.Logged(numbers), longest[l].Round(time.Second)
		if l.over {
			s.config.Log.Warn("pgleases: work goes on after its partition was lost",
				slog.String("lease", l.lease.Name),
				slog.String("partitions", partitions), slog.Duration("for", lasts))
		} else {
			s.config.Log.Warn("pgleases: handoff waits for work", slog.String("lease", l.lease.Name),
				slog.String("partitions", partitions), slog.Duration("for", lasts))
		}
	}
}

// workLogged notes an assignment whose work is logged.
func (s *shared) workLogged(a *assignment, of workOf) {
	if s.long[of] == nil {
		s.long[of] = &longWork{of: of}
	}
	a.logIn(s.long[of])
}

// workEnded notes that the work on an assignment has ended, or goes on after a loss. If it was the
// last of the work that was logged, that is logged too.
func (s *shared) workEnded(a *assignment) {
	l, logged := a.endLog()
	if !logged {
		return
	}
	l.n--
	if l.n > 0 {
		return
	}
	delete(s.long, l.of)
	lasted, _ := l.End(time.Now())
	if l.of.over {
		s.config.Log.Info("pgleases: work on lost partitions ended", slog.String("lease", l.of.lease.Name),
			slog.Duration("for", lasted))
		return
	}
	s.config.Log.Info("pgleases: handoff no longer waits for work", slog.String("lease", l.of.lease.Name),
		slog.Duration("for", lasted))
}

// endOverdue ends ownerships whose work takes too long after the end of Run's context.
func (as *assignments) endOverdue(working []*owned.Ownership, now time.Time) {
	overdue := slices.DeleteFunc(as.serving(), func(a *assignment) bool {
		return !slices.Contains(working, a.ownership) || !a.ownership.Pinned()
	})
	as.withdraw(overdue, as.shared.config.Errors.DrainTimeout, now)
	for _, a := range overdue { // Run has already waited for the work
		a.passLimit()
	}
	as.endOwnerships(overdue, as.shared.config.Errors.DrainTimeout)
	as.shared.logEnded()
}
