package engine

import (
	"cmp"
	"context"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/when"
)

// Releases: a draining partition goes to its next owner when the work on it has ended, and the
// owner is notified. Also fences, and leaving leases.

// releases has the partitions that the next statements release and announce.
type releases struct {
	batch int   // the most partitions that one statement releases or fences; see fitting
	apart apart // leases whose release met a lock

	unannounced    map[string]map[int64]struct{} // by lease: the new owners' sessions that are not notified yet
	announcedApart apart                         // leases whose announcement met a lock
}

func newReleases() releases {
	return releases{
		batch: maxBatch, apart: make(apart),
		unannounced: make(map[string]map[int64]struct{}), announcedApart: make(apart),
	}
}

// apart has leases whose last statement met a lock, with the time of that. A statement waits for
// the locks of all its leases. So these leases follow after all others, one by one.
type apart map[string]time.Time

// keepNext removes from due the leases that are not part of the next statement.
func (a apart) keepNext(due map[string]bool) {
	first, _ := when.Soonest(maps.Keys(due), func(lease string) time.Time { return a[lease] })
	maps.DeleteFunc(due, func(lease string, _ bool) bool {
		_, isApart := a[lease]
		return isApart && lease != first
	})
}

// tried notes the result of a statement.
func (a apart) tried(about iter.Seq[string], err error, now time.Time) {
	for lease := range about {
		switch {
		case err == nil:
			delete(a, lease)
		case store.LockTimeout(err):
			a[lease] = now
		}
	}
}

// nextRelease returns the assignments, of those that are due, that one statement releases now, and
// the leases to leave.
func (rs *releases) nextRelease(due []*assignment, toLeave iter.Seq[*membership]) release {
	about := make(map[string]bool) // leases
	for _, a := range due {
		about[a.membership.lease.Name] = true
	}
	for m := range toLeave {
		about[m.lease.Name] = true
	}
	rs.apart.keepNext(about)
	due = slices.DeleteFunc(due, func(a *assignment) bool { return !about[a.membership.lease.Name] })
	leaving := make(map[*membership]bool)
	for m := range toLeave {
		if about[m.lease.Name] {
			leaving[m] = true
		}
	}
	if len(due) > rs.batch { // so that the statement does not keep the client from its heartbeat
		if len(leaving) > 0 { // first, so that no other leaving client names this one as successor
			return newRelease(nil, slices.Collect(maps.Keys(leaving)))
		}
		slices.SortFunc(due, func(a, b *assignment) int {
			byLease := strings.Compare(a.membership.lease.Name, b.membership.lease.Name)
			return cmp.Or(byLease, a.ownership.Number-b.ownership.Number)
		})
		due = due[:rs.batch]
	}
	for _, a := range due {
		if a.membership.state == stateLeaves {
			leaving[a.membership] = true
		}
	}
	return newRelease(due, slices.Collect(maps.Keys(leaving)))
}

// A release is one statement: the assignments that it releases, and the leases that it leaves.
type release struct {
	assignments []*assignment
	leaving     []*membership
	about       map[string]bool // leases

	rows       []store.Release
	leaves     []store.Leave
	successors bool // the leaves name the successors of the released partitions
}

func newRelease(assignments []*assignment, leaving []*membership) release {
	r := release{
		assignments: assignments, leaving: leaving, about: make(map[string]bool),
		rows: rowsOf(assignments, (*assignment).releaseEpoch),
	}
	released := make(map[*membership]int)
	for _, a := range assignments {
		r.about[a.membership.lease.Name] = true
		released[a.membership]++
	}
	r.successors = len(assignments) > 0 && len(leaving) > 0
	for _, m := range leaving { // now: in the first message, and in the one that releases the last partition
		r.about[m.lease.Name] = true
		all := released[m] == m.assignments.n
		r.leaves = append(r.leaves, store.Leave{
			Lease: m.lease.Name, Now: !m.leaveSent || all, Returns: m.returns,
		})
		r.successors = r.successors && !m.noSuccessors && !m.returns // what waits has no successor
	}
	return r
}

func rowsOf(assignments []*assignment, epoch func(*assignment) int64) []store.Release {
	rows := make([]store.Release, len(assignments))
	for i, a := range assignments {
		rows[i] = store.Release{Lease: a.membership.lease.Name, Partition: a.ownership.Number, Epoch: epoch(a)}
	}
	return rows
}

// tried notes the result of a release.
func (rs *releases) tried(r release, err error, began time.Time) {
	rs.apart.tried(maps.Keys(r.about), err, began)
	for _, m := range r.leaving {
		m.leaveTried(err)
	}
}

// announce notes that a lease has changed for a session.
func (rs *releases) announce(a announcement) {
	if rs.unannounced[a.lease] == nil {
		rs.unannounced[a.lease] = make(map[int64]struct{})
	}
	if a.known {
		rs.unannounced[a.lease][a.session] = struct{}{}
	}
}

// nextAnnouncement returns leases that have changed, and the sessions to notify.
func (rs *releases) nextAnnouncement() (names []string, sessions []int64) {
	due, concerned := make(map[string]bool), make(map[int64]struct{})
	for name := range rs.unannounced {
		due[name] = true
	}
	rs.announcedApart.keepNext(due)
	for name := range due {
		maps.Copy(concerned, rs.unannounced[name])
	}
	return slices.Sorted(maps.Keys(due)), slices.Collect(maps.Keys(concerned))
}

// announced notes the result of an announcement. No other statement of the client ran meanwhile, so
// the announcement had all sessions that are noted here.
func (rs *releases) announced(names []string, err error, began time.Time) {
	rs.announcedApart.tried(slices.Values(names), err, began)
	for _, name := range names {
		if err == nil {
			delete(rs.unannounced, name)
		}
	}
}

// --- the members' side of releases

// toLeave returns the memberships whose leave is to be sent, with or without releases.
func (ms *members) toLeave() iter.Seq[*membership] { return maps.Keys(ms.agenda.leaves) }

// releaseDue returns when a partition is to be released, or a lease to be left.
func (ms *members) releaseDue(now time.Time) time.Time {
	if len(ms.agenda.leaves) > 0 {
		return when.AtOnce
	}
	_, at := when.Soonest(maps.Keys(ms.shared.draining), func(a *assignment) time.Time { return a.releasableAt(now) })
	return at
}

// releasable returns the assignments that may be released now.
func (ms *members) releasable(now time.Time) (due []*assignment) {
	for a := range ms.shared.draining {
		if !a.releasableAt(now).After(now) {
			due = append(due, a)
		}
	}
	return due
}

// An announcement says that a lease has changed for a session, which may not be known.
type announcement struct {
	lease   string
	session int64
	known   bool
}

// released handles the result of each release. It returns the changes to announce, and whether a
// heartbeat has to follow. A release is done, or busy (see store.Released), or
// neither. If it is neither, an earlier release was executed and its answer was lost, or the
// session is gone. A read then returns the partitions that the session owns.
func (ms *members) released(
	which []*assignment, answer store.Released, session int64, now time.Time,
) (changed []announcement, beat bool) {
	handed, busy := byPlace(answer)
	leftNow := setOf(answer.Left)
	released, kept := make(map[*membership][]*assignment), make(map[*membership][]int)
	for _, a := range which {
		m, k := a.membership, store.Release{Lease: a.membership.lease.Name, Partition: a.ownership.Number}
		h, done := handed[k]
		switch {
		case busy[k]:
			a.foundBusy(now)
			continue
		case !done && a.state == fencing:
			m.setToRead(true) // the fence may have raised the epoch, and a read shows it
			a.releaseFrom(now.Add(busyRetry))
			continue
		case !done:
			// The new owners were in the lost answer: they were not notified. If the session is
			// gone, a heartbeat shows it. Without one, the client would read its partitions and
			// release them again and again.
			beat = true
			m.setToRead(true)
			changed = append(changed, announcement{lease: m.lease.Name})
		case leftNow[m.lease.Name]: // the new owner was notified
		case h.Owner != session:
			changed = append(changed, announcement{m.lease.Name, h.Owner, h.Owner != 0})
		case !ms.shared.trusted() || m.leaving(): // it came back while no partition is shown
			m.setToRead(true)
		default:
			kept[m] = append(kept[m], m.assignments.begin(h.Partition, h.Epoch).ownership.Number)
			m.setToRead(true) // if it was renewed, it may have another target
		}
		if done && h.Owner == 0 {
			m.releasedToNoOwner()
		}
		released[m] = append(released[m], a)
	}
	for m, assignments := range released {
		m.assignments.handOver(assignments)
		for _, a := range assignments {
			m.assignments.remove(a)
		}
	}
	for m, gained := range kept {
		m.assignments.serve(gained)
	}
	return changed, beat
}

func setOf(names []string) map[string]bool {
	set := make(map[string]bool, len(names))
	for _, name := range names {
		set[name] = true
	}
	return set
}

// byPlace returns the released partitions, and those with an open guarded transaction, by lease and
// partition.
func byPlace(answer store.Released) (handed map[store.Release]store.Handed, busy map[store.Release]bool) {
	handed, busy = make(map[store.Release]store.Handed), make(map[store.Release]bool)
	for _, h := range answer.Released {
		handed[store.Release{Lease: h.Lease, Partition: h.Partition}] = h
	}
	for _, b := range answer.Busy {
		busy[b] = true
	}
	return handed, busy
}

// left handles the result of leaving leases. It returns the leases that the session is no longer a
// member of. It also returns whether a heartbeat has to find out more: the session got a partition
// meanwhile, or is not a member.
func (ms *members) left(leaving []*membership, answer store.Released) (gone []*membership, beat bool) {
	leftNow := setOf(answer.Left)
	for _, m := range leaving {
		if ms.byName[m.lease.Name] != m || !m.leaving() {
			continue
		}
		m.setLeaveSent(true)
		if leftNow[m.lease.Name] {
			gone = append(gone, m)
		} else if m.assignments.n == 0 {
			m.setToRead(true)
			beat = true
		}
	}
	return gone, beat
}

// fenceDue returns when guarded transactions keep a release waiting.
func (ms *members) fenceDue(generation int64) time.Time {
	fenceAt := func(a *assignment) time.Time { return when.AtOnceIf(a.wantsFence(generation)) }
	_, at := when.Soonest(maps.Keys(ms.shared.draining), fenceAt)
	return at
}

// toFence returns assignments whose release waits for guarded transactions, up to the given number,
// and marks them as fencing: no further guarded transaction begins on them.
func (ms *members) toFence(generation int64, most int) (busy []*assignment) {
	for a := range ms.shared.draining {
		if a.wantsFence(generation) && len(busy) < most {
			busy = append(busy, a)
			a.fence()
		}
	}
	return busy
}

// fenceSent notes that a fence was sent, and may have been executed.
func fenceSent(busy []*assignment) {
	for _, a := range busy {
		a.fenceSent()
		a.membership.setToRead(true) // its answer has the epoch
	}
}

// planWithout plans leases without the session of this client ID, which leaves them, and sets the
// successors of its partitions there. If the plan moves other partitions too, or if it is alone and
// leaves out leases that are to be balanced with these, it sets no successors: a plan is made after
// the session has left. It also returns whether it has read many memberships of other leases. It
// runs in the goroutine of the release, which alone uses leaving meanwhile.
func planWithout(
	ctx context.Context, c Conn, plan func([]store.LeaseSnapshot) []store.Move,
	session int64, id string, leaving []store.Leave, alone bool,
) (many bool, err error) {
	names, successors := make([]string, len(leaving)), make(map[string]map[int]int64, len(leaving))
	for i, l := range leaving {
		names[i], successors[l.Lease] = l.Lease, make(map[int]int64)
	}
	read, err := c.Snapshot(ctx, names, alone)
	if err != nil {
		return false, err
	}
	many = readsMany(read, names)
	generations := make(map[string]int64, len(read))
	for i, r := range read {
		of, leaves := successors[r.Name]
		if !leaves {
			continue
		}
		generations[r.Name] = r.Generation
		read[i].Members = slices.DeleteFunc(r.Members, func(m store.Member) bool { return m.Session == session })
		read[i].Awaited = slices.DeleteFunc(r.Awaited, func(a store.Awaited) bool { return a.ID == id })
		for partition, owner := range r.Owners {
			if owner == session { // as if it had left
				r.Owners[partition], r.OwnerIDs[partition] = 0, id
				of[partition] = 0
			}
		}
	}
	if alone && sharesMembers(read) {
		return many, nil
	}
	for _, m := range plan(read) {
		if _, owned := successors[m.Lease][m.Partition]; !owned {
			return many, nil
		}
		successors[m.Lease][m.Partition] = m.Target
	}
	for i, l := range leaving {
		leaving[i].Planned, leaving[i].Successors = generations[l.Lease], successors[l.Lease]
	}
	return many, nil
}
