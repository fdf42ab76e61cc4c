package engine

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pgleases/pgleases/internal/owned"
	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/when"
)

// The life of an ownership in its owner: shown, withdrawn, drained, ended. reads.go has its
// beginning, releases.go its end in the database.

// An assignment is the engine's side of an ownership. After its release was sent, the partition
// does not come back under this epoch, whatever a read returns, because the release may arrive
// late.
type assignment struct {
	ownership  *owned.Ownership
	membership *membership

	state       assignmentState
	drainsSince time.Time
	readyAt     time.Time // it is not released before
	limitAt     time.Time // its work is not waited for any longer; when.Never: there is no limit
	warnAt      time.Time // when to log that it still waits for work
	logged      *longWork // that it did; nil: it was not logged, in this state
	overdue     bool      // limitAt has passed
	busy        int       // how many of its releases found it busy (store.Released)
	raised      int64     // its epoch after a fence, which the release names; 0: no fence has raised it

	valuesRead bool // it was in a Values that a reader got
}

// An assignmentState only advances. See the diagram in doc.go.
type assignmentState int

const (
	serving  assignmentState = iota // readers see it
	draining                        // readers do not see it, and its work is to end
	fencing                         // draining, and a fence was sent: its epoch may be higher than is known
	fenced                          // draining, and a fence has raised its epoch
	over                            // the database no longer has it: only work on it remains, which has not ended
)

// releaseEpoch returns the partition's epoch in the database. After a fence it is higher than that
// of the ownership.
func (a *assignment) releaseEpoch() int64 { return max(a.ownership.Epoch, a.raised) }

// releasableAt returns when a draining assignment may be released; never: it waits for work, and
// the end of that work wakes the engine.
func (a *assignment) releasableAt(now time.Time) time.Time {
	switch {
	case a.state == over || !a.membership.inDatabase():
		return when.Never // it cannot be released
	case !now.Before(a.readyAt) && !a.overdue && a.ownership.Pinned():
		return when.Never // it waits for work
	}
	return a.readyAt
}

// wantsFence reports whether guarded transactions that overlap may keep a release waiting forever.
// They may if the release has found an open transaction twice, no fence is known to have raised the
// epoch, and new transactions still pass a guard under that epoch.
func (a *assignment) wantsFence(generation int64) bool {
	return a.busy > 1 && a.state < fenced && a.membership.inDatabase() &&
		store.ServerGenerationOf(a.ownership.Epoch) >= generation
}

// drain makes a serving assignment drain: readers do not see it, and its work is to end. Timeout 0
// means that its work is waited for without a limit.
func (a *assignment) drain(timeout time.Duration, now time.Time) {
	a.state = draining
	a.drainsSince, a.readyAt = now, now
	a.warnAt = now.Add(WarnAfter)
	if timeout > 0 {
		a.limitAt = now.Add(timeout)
	}
}

// releaseFrom makes that time the earliest for its next release.
func (a *assignment) releaseFrom(at time.Time) { a.readyAt = at }

// passLimit notes that its work is not waited for any longer.
func (a *assignment) passLimit() { a.overdue, a.limitAt = true, when.Never }

// warned notes that its work is logged, and returns for how long it has drained. It is logged again
// after the same time.
func (a *assignment) warned(now time.Time) (drains time.Duration) {
	drains = now.Sub(a.drainsSince)
	a.warnAt = now.Add(drains)
	return drains
}

// logIn notes that its work is logged among other work.
func (a *assignment) logIn(l *longWork) {
	if a.logged == nil {
		a.logged = l
		l.n++
	}
}

// endLog notes that no line follows on its work, and returns among what it was logged.
func (a *assignment) endLog() (l *longWork, was bool) {
	l, a.logged = a.logged, nil
	return l, l != nil
}

// foundBusy notes that a release found it busy, nearly always by an open guarded transaction.
func (a *assignment) foundBusy(now time.Time) {
	a.busy++
	a.releaseFrom(now.Add(busyRetry))
}

// fence notes that a fence is to be sent.
func (a *assignment) fence() { a.state = fencing }

// fenceSent notes that the fence was sent, and may have been executed.
func (a *assignment) fenceSent() { a.busy = 0 }

// fenceRaised notes the epoch that a fence has given to the partition.
func (a *assignment) fenceRaised(epoch int64) { a.state, a.raised = fenced, epoch }

// seenByReader notes that it was in a Values that a reader got.
func (a *assignment) seenByReader() { a.valuesRead = true }

// gone notes that the database no longer has it, while work on it continues.
func (a *assignment) gone(now time.Time) {
	if a.state == serving {
		a.drainsSince, a.limitAt = now, when.Never
		a.warnAt = now.Add(WarnAfter)
	}
	a.state = over
}

// assignments are the assignments of one lease, serving and draining. All 65,536 may end at once: a
// slice in this order keeps them close to each other in memory.
type assignments struct {
	shared     *shared
	membership *membership
	assigned   []*assignment // by partition, with gaps
	n          int

	gains  int64 // ownerships that began
	losses Losses

	delayEnds map[int]time.Time // by partition that was renewed: when its handoff delay ends
}

func newAssignments(m *membership, s *shared) assignments {
	return assignments{
		shared: s, membership: m,
		assigned: make([]*assignment, m.lease.Partitions), delayEnds: make(map[int]time.Time),
	}
}

func (as *assignments) set(partition int, a *assignment) {
	if as.assigned[partition] != nil {
		as.n--
	}
	if a != nil {
		as.n++
	}
	as.assigned[partition] = a
}

// list returns the assignments, serving and draining, by number.
func (as *assignments) list() []*assignment {
	all := make([]*assignment, 0, as.n)
	for _, a := range as.assigned {
		if a != nil {
			all = append(all, a)
		}
	}
	return all
}

// serving returns the assignments that do not drain, by number.
func (as *assignments) serving() []*assignment {
	return slices.DeleteFunc(as.list(), func(a *assignment) bool { return a.state >= draining })
}

// begin begins an ownership.
func (as *assignments) begin(number int, epoch int64) *assignment {
	o := as.membership.lease.Board.Own(as.shared.validity, number, epoch)
	a := &assignment{ownership: o, membership: as.membership, limitAt: when.Never}
	as.set(number, a)
	as.gains++
	as.membership.count()
	return a
}

// serve shows new assignments, and logs their numbers.
func (as *assignments) serve(gained []int) {
	as.shared.logEnded()
	as.publish(false)
	if len(gained) > 0 {
		as.shared.logGained(as.membership.lease, gained)
	}
}

// publish shows the assignments that serve now, by number. With again it does so even if they are
// the same, for readers that waited and read again.
func (as *assignments) publish(again bool) {
	serving := as.serving()
	if !as.shared.trusted() {
		serving = nil
	}
	served := make([]*owned.Ownership, len(serving))
	for i, a := range serving {
		served[i] = a.ownership
	}
	board := as.membership.lease.Board
	if !again && board.Shows(as.shared.shown(), served) {
		return
	}
	as.membership.count()
	for _, o := range board.Show(as.shared.shown(), served) { // a reader may still work on what was shown before
		a := as.assigned[o.Number]
		if a != nil && a.ownership == o {
			a.seenByReader()
		}
	}
}

// withdraw removes serving assignments from what readers see, and asks for their work to end.
func (as *assignments) withdraw(which []*assignment, cause error, now time.Time) {
	o := as.membership.lease.Options
	for _, a := range which {
		a.drain(o.DrainTimeout, now)
		as.shared.beginDrain(a)
	}
	as.publish(false)
	asked := make([]*owned.Ownership, len(which))
	for i, a := range which {
		until := as.delayEnds[a.ownership.Number]
		if a.valuesRead {
			a.releaseFrom(now.Add(o.HandoffDelay))
		} else if until.After(now) {
			a.releaseFrom(until)
		}
		asked[i] = a.ownership
	}
	as.membership.lease.Board.Ask(asked, cause)
}

// renew ends ownerships of an earlier server generation. Each begins again, under an epoch that
// passes a guard, after its work has ended and the release was answered. A partition that stays
// with this client has no handoff delay; if it moves later, it has the delay then.
func (as *assignments) renew(outdated []*assignment, now time.Time) {
	cause := fmt.Errorf("%w: a failover ended the epoch", as.shared.config.Errors.TrustLost)
	drains := func(a *assignment) bool { return a.state >= draining }
	as.withdraw(slices.DeleteFunc(slices.Clone(outdated), drains), cause, now)
	for _, a := range outdated {
		if a.readyAt.After(now) {
			as.delayEnds[a.ownership.Number] = a.readyAt
		}
		a.releaseFrom(now)
	}
	as.endOwnerships(outdated, cause)
}

// handOver ends ownerships by a release.
func (as *assignments) handOver(which []*assignment) {
	as.endBy(which, as.releaseCause(), true)
}

// releaseCause returns why ownerships end by a release.
func (as *assignments) releaseCause() error {
	if as.membership.leaving() {
		return as.membership.reason
	}
	return as.shared.config.Errors.Handoff
}

// endOwnerships ends those of the given ownerships that have not ended, counts them, and returns
// their number. All that end together end in one call. They are logged later, see logEnded.
func (as *assignments) endOwnerships(which []*assignment, cause error) int {
	return as.endBy(which, cause, false)
}

// endBy is endOwnerships, by a release or without one.
func (as *assignments) endBy(which []*assignment, cause error, handedOver bool) int {
	ending := make([]*owned.Ownership, 0, len(which))
	for _, a := range which {
		if !a.ownership.Ended() {
			ending = append(ending, a.ownership)
		}
	}
	as.membership.lease.Board.End(ending, cause)
	as.membership.count()
	switch n := int64(len(ending)); {
	case errors.Is(cause, as.shared.config.Errors.Handoff):
		as.losses.Handoff += n
	case errors.Is(cause, as.shared.config.Errors.DrainTimeout):
		as.losses.DrainTimeout += n
	case errors.Is(cause, as.shared.config.Errors.TrustLost):
		as.losses.TrustLost += n
	default:
		as.losses.Closed += n
	}
	if len(ending) > 0 {
		as.shared.noteEnd(ended{as.membership.lease, owned.Numbers(ending), cause, handedOver})
	}
	return len(ending)
}

// remove removes an assignment that is over in the database and has ended. Work on it that
// continues is still watched: no callback of Run works under the next ownership of that partition
// here until the earlier callback has returned.
func (as *assignments) remove(a *assignment) {
	if as.assigned[a.ownership.Number] == a {
		as.set(a.ownership.Number, nil)
	}
	if !a.ownership.Pinned() {
		as.shared.endDrain(a)
		return
	}
	as.shared.workEnded(a)
	a.gone(time.Now())
	as.shared.beginDrain(a)
}
