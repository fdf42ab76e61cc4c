package pgleases

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/pgleases/pgleases/internal/owned"
	"github.com/pgleases/pgleases/internal/ranges"
)

// The life of an ownership on its owner's side: shown, withdrawn, drained, ended. reads.go has its beginning, release.go its end in the
// database.

// An assignment is the engine's side of an ownership. Once its release was sent the partition does not come back under this epoch,
// whatever is read: the release may arrive late.
type assignment struct {
	*owned.Ownership
	membership *membership

	state   assignmentState
	since   time.Time // it drains
	readyAt time.Time // not released before
	limitAt time.Time // not waited for longer; never: as long as it takes
	warnAt  time.Time // when to log that it still waits for work
	overdue bool      // limitAt has passed
	busy    int       // how often its release was answered: a guarded transaction is open
	raised  int64     // its epoch since a fence, under which it is released

	valuesRead bool // it was in Values that a reader got
}

// An assignmentState only advances.
type assignmentState int

const (
	serving  assignmentState = iota // readers see it
	draining                        // readers do not, and its work is to end
	fencing                         // and a fence was sent: its epoch may be higher than is known
	fenced                          // and a fence has raised its epoch
	over                            // it is gone in the database: nothing is left but the work on it that has not ended
)

// warnAfter is how long work goes on that was asked to end until that is logged; then at doubling intervals.
const warnAfter = 30 * time.Second

// renew ends ownerships of an era before the present one. Each begins anew, under an epoch that passes a guard, once its work has
// ended and the release was answered. No hand-off delay is to be paid for what stays with this client; what moves then pays it.
func (e *engine) renew(m *membership, outdated []*assignment, now time.Time) {
	cause := fmt.Errorf("%w: a failover ended the epoch", ErrTrustLost)
	e.withdraw(m, slices.DeleteFunc(slices.Clone(outdated), func(t *assignment) bool { return t.state >= draining }), cause, now)
	for _, t := range outdated {
		if t.readyAt.After(now) {
			m.readUntil[t.Number] = t.readyAt
		}
		t.readyAt = now
	}
	e.end(m, outdated, cause)
}

// assignments are those of one lease, serving and draining. All 65,536 may end at once: in this order they are near each other in memory.
type assignments struct {
	of []*assignment // by partition; nil: none
	n  int
}

func (ts *assignments) set(partition int, t *assignment) {
	if ts.of[partition] != nil {
		ts.n--
	}
	if t != nil {
		ts.n++
	}
	ts.of[partition] = t
}

// own begins an ownership.
func (e *engine) own(m *membership, number int, epoch int64) *assignment {
	o := m.lease.board.Own(e.session.validity, number, epoch)
	t := &assignment{Ownership: o, membership: m, limitAt: never}
	m.assignments.set(number, t)
	e.stats.Gains++
	return t
}

// serve shows assignments that began, and logs their numbers.
func (e *engine) serve(m *membership, gained []int) {
	e.tellEnded()
	e.publish(m)
	if len(gained) > 0 {
		e.client.log.Info("pgleases: partitions gained", slog.String("lease", m.lease.name),
			slog.String("partitions", ranges.Short(gained)))
	}
}

// serving returns the assignments that do not drain, by number.
func (m *membership) serving() []*assignment {
	return slices.DeleteFunc(m.all(), func(t *assignment) bool { return t.state >= draining })
}

// all returns the assignments, serving and draining, by number.
func (m *membership) all() []*assignment {
	all := make([]*assignment, 0, m.assignments.n)
	for _, t := range m.assignments.of {
		if t != nil {
			all = append(all, t)
		}
	}
	return all
}

// publish shows what is served, if that changed.
func (e *engine) publish(m *membership) {
	if served := e.served(m); !m.lease.board.Shows(e.currentValidity(), served) {
		e.show(m, served)
	}
}

// served returns what is served of a lease now, by number.
func (e *engine) served(m *membership) (served []*owned.Ownership) {
	if e.session.validity == nil {
		return nil
	}
	serving := m.serving()
	served = make([]*owned.Ownership, len(serving))
	for i, t := range serving {
		served[i] = t.Ownership
	}
	return served
}

// show shows that, and notes what of that which was shown before a reader may be working on.
func (e *engine) show(m *membership, served []*owned.Ownership) {
	for _, o := range m.lease.board.Show(e.currentValidity(), served) {
		if t := m.assignments.of[o.Number]; t != nil && t.Ownership == o {
			t.valuesRead = true
		}
	}
}

// withdraw takes assignments that serve out of what is shown, and asks for their work to end.
func (e *engine) withdraw(m *membership, assignments []*assignment, cause error, now time.Time) {
	o := m.lease.options
	for _, t := range assignments {
		t.state, t.since, t.readyAt, t.warnAt = draining, now, now, now.Add(warnAfter)
		if o.drainTimeout > 0 {
			t.limitAt = now.Add(o.drainTimeout)
		}
		e.leases.draining[t] = struct{}{}
	}
	e.publish(m)
	asked := make([]*owned.Ownership, len(assignments))
	for i, t := range assignments {
		if t.valuesRead {
			t.readyAt = now.Add(o.handoffDelay)
		} else if until := m.readUntil[t.Number]; until.After(now) {
			t.readyAt = until
		}
		asked[i] = t.Ownership
	}
	m.lease.board.Ask(asked, cause)
}

// A loss is what of a lease ended at once.
type loss struct {
	lease      *Lease
	ended      []int
	cause      error
	handedOver bool // by a release
}

// handOver ends ownerships by a release.
func (e *engine) handOver(m *membership, assignments []*assignment) {
	if n := len(e.untold); e.end(m, assignments, m.releaseCause()) > 0 {
		e.untold[n].handedOver = true
	}
}

// end ends those of a lease's ownerships that have not ended, counts them, and returns their
// number. All that end at once end in one call. They are told of later, see tellEnded.
func (e *engine) end(m *membership, assignments []*assignment, cause error) int {
	ending := make([]*owned.Ownership, 0, len(assignments))
	for _, t := range assignments {
		if !t.Ended() {
			ending = append(ending, t.Ownership)
		}
	}
	m.lease.board.End(ending, cause)
	switch losses, n := &e.stats.Losses, int64(len(ending)); {
	case errors.Is(cause, ErrHandover):
		losses.Handover += n
	case errors.Is(cause, ErrDrainTimeout):
		losses.DrainTimeout += n
	case errors.Is(cause, ErrTrustLost):
		losses.TrustLost += n
	default:
		losses.Closed += n
	}
	if len(ending) > 0 {
		e.untold = append(e.untold, loss{lease: m.lease, ended: owned.Numbers(ending), cause: cause})
	}
	return len(ending)
}

// endAll ends all ownerships of all leases. The holds come first, before anything takes time that there are many partitions.
func (e *engine) endAll(cause error) (ended int) {
	for _, m := range e.leases.byName {
		m.lease.board.EndHolds(cause)
	}
	for _, m := range e.leases.byName {
		ended += e.end(m, m.all(), cause)
	}
	return ended
}

// tellEnded logs what has ended, in each turn once all that ends in it has, and before what is
// gained.
func (e *engine) tellEnded() {
	for _, l := range e.untold {
		if l.handedOver {
			e.client.log.Info("pgleases: partitions handed over", slog.String("lease", l.lease.name),
				slog.String("partitions", ranges.Short(l.ended)), slog.Any("cause", l.cause))
		} else {
			e.client.log.Warn("pgleases: partitions lost", slog.String("lease", l.lease.name),
				slog.String("partitions", ranges.Short(l.ended)), slog.Any("cause", l.cause))
		}
	}
	e.untold = nil
}

// strike strikes out an assignment that is over in the database, and has ended. Work on it that goes on is still watched: as long as a
// callback of Run has not returned, nobody works under the next ownership of that partition here.
func (e *engine) strike(t *assignment) {
	if m := t.membership; m.assignments.of[t.Number] == t {
		m.assignments.set(t.Number, nil)
	}
	if !t.Pinned() {
		delete(e.leases.draining, t)
		return
	}
	if t.state == serving {
		now := time.Now()
		t.since, t.limitAt, t.warnAt = now, never, now.Add(warnAfter)
	}
	t.state = over
	e.leases.draining[t] = struct{}{}
}

// releaseCause is why ownerships end by a release.
func (m *membership) releaseCause() error {
	if m.leaving != nil {
		return m.leaving
	}
	return ErrHandover
}

// inWork returns the partitions of a lease that drain and are in work, by number.
func (e *engine) inWork(m *membership) []int {
	var numbers []int
	for t := range e.leases.draining {
		if t.membership == m && t.Pinned() {
			numbers = append(numbers, t.Number)
		}
	}
	slices.Sort(numbers)
	return slices.Compact(numbers) // more than one ownership of a partition may be in work still
}

// drainsDue is when work has gone on for so long that something is to be done about it.
func (e *engine) drainsDue() time.Time {
	at := never
	for t := range e.leases.draining {
		at = earlier(at, t.warnAt)
		if !t.overdue {
			at = earlier(at, t.limitAt)
		}
	}
	return at
}

// superviseDrains ends ownerships that are waited for no more, and logs work that goes on for long.
func (e *engine) superviseDrains(now time.Time) {
	timedOut, hurried := make(map[*membership][]*assignment), make(map[*membership][]*assignment)
	for t := range e.leases.draining {
		if t.state == over && !t.Pinned() {
			delete(e.leases.draining, t)
			continue
		}
		if !t.overdue && !now.Before(t.limitAt) {
			t.overdue = true
			if t.Pinned() {
				timedOut[t.membership] = append(timedOut[t.membership], t)
			}
		}
		if e.ending.hurried != nil && !t.Ended() && t.Pinned() {
			hurried[t.membership] = append(hurried[t.membership], t)
		}
	}
	for m, assignments := range timedOut {
		e.end(m, assignments, ErrDrainTimeout)
	}
	for m, assignments := range hurried {
		e.end(m, assignments, e.ending.reason)
	}
	e.tellEnded()
	e.tellWork(now)
}

// endOverdue ends ownerships on which work goes on for too long after the end of Run's context.
func (e *engine) endOverdue(l *Lease, working []*owned.Ownership, now time.Time) {
	m := e.membershipOf(l)
	if m == nil {
		return
	}
	overdue := slices.DeleteFunc(m.serving(), func(t *assignment) bool { return !slices.Contains(working, t.Ownership) || !t.Pinned() })
	e.withdraw(m, overdue, ErrDrainTimeout, now)
	e.end(m, overdue, ErrDrainTimeout)
	e.tellEnded()
}

// warnTogether is how much earlier work is told of, to be in one line with what is to be told now.
const warnTogether = time.Second

// tellWork logs work that goes on for long, in one line for each lease: there may be thousands of partitions.
func (e *engine) tellWork(now time.Time) {
	type line struct {
		lease *Lease
		over  bool
	}
	due, tell := make(map[line]bool), make(map[line][]*assignment)
	for t := range e.leases.draining {
		if now.Add(warnTogether).Before(t.warnAt) {
			continue
		}
		l := line{t.membership.lease, t.state == over}
		tell[l] = append(tell[l], t)
		due[l] = due[l] || !now.Before(t.warnAt)
	}
	for l, assignments := range tell {
		if !due[l] {
			continue
		}
		var numbers []int
		var longest time.Duration
		for _, t := range assignments {
			lasts := now.Sub(t.since)
			t.warnAt = now.Add(lasts)
			if t.Pinned() {
				numbers, longest = append(numbers, t.Number), max(longest, lasts)
			}
		}
		slices.Sort(numbers)
		partitions := ranges.Short(slices.Compact(numbers)) // more than one ownership of a partition may be in work still
		switch longest = longest.Round(time.Second); {
		case len(numbers) == 0:
		case l.over:
			e.client.log.Warn("pgleases: work goes on after its partition was lost", slog.String("lease", l.lease.name),
				slog.String("partitions", partitions), slog.Duration("for", longest))
		default:
			e.client.log.Warn("pgleases: hand-over waits for work", slog.String("lease", l.lease.name),
				slog.String("partitions", partitions), slog.Duration("for", longest))
		}
	}
}

// holdsAnything reports whether there is an ownership that has not ended, be it shown or draining.
func (e *engine) holdsAnything() bool {
	holds := func(t *assignment) bool { return t != nil && !t.Ended() }
	return e.find(func(m *membership) bool { return slices.ContainsFunc(m.assignments.of, holds) }) != nil
}
