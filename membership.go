package pgleases

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/pgleases/pgleases/internal/owned"
	"github.com/pgleases/pgleases/internal/store"
)

// Joining leases, leaving them, and changing their weight.

// leases is what the client joined, and what is to be done with it.
type leases struct {
	byName   map[string]*membership
	waiting  map[string][]*joining    // calls for a name whose membership has to end first
	draining map[*assignment]struct{} // of all leases; also those that are struck out, until the work on them ends
	relics   map[string]bool          // of these the session owns what it ended without a release: it is released before it is shown anew
	joining  *membership              // its join is under way; nil: none is
	joins    int64                    // counts the joins that were sent: a leave names the last, and ends no later membership
	drained  []string                 // who drained the client, and why; nil: nobody has

	unannounced map[string]*announcement // by lease, of what was released to sessions that are not told yet
}

// A membership is the engine's side of a Lease. It outlives sessions: after an eviction the client joins again.
type membership struct {
	lease       *Lease
	assignments assignments

	joined     bool // the session is a member
	generation int64
	paused     []string      // who paused it, and why; nil: nobody has
	toRead     bool          // it changed since generation was read, or nothing was read yet
	retryAt    time.Time     // of joining
	retry      time.Duration // after the next failure to join

	callers []*joining // calls of Client.Lease that wait for the join
	handles int        // calls of Client.Lease that were answered

	readUntil map[int]time.Time // until when the hand-off delay lasts of what was renewed, by partition

	weight      int
	weightLost  bool        // the database has another one, or may have
	weightCalls weightCalls // that wait for the database to have the weight

	leaving       error // why; nil: it stays
	awaitsRelease bool  // a leave was sent; it is sent again with the next release
	intestate     bool  // an attempt to leave it has failed: it names no heirs any more, which takes a plan

	apart   bool      // its last release met a lock: until one succeeds, it is released apart from others
	triedAt time.Time // that release
}

// weightCalls are calls of SetWeight.
type weightCalls map[chan<- error]struct{}

// A joining is a call of Client.Lease.
type joining struct {
	name       string
	partitions int
	options    leaseOptions
	done       chan<- error
	lease      *Lease // set before done
}

// newMembership begins a membership, to be joined.
func (e *engine) newMembership(name string, partitions int, o leaseOptions) *membership {
	l := &Lease{client: e.client, name: name, partitions: partitions, options: o, board: owned.NewBoard(name, e.currentValidity(), e.client.wakeUp)}
	m := &membership{
		lease: l, assignments: assignments{of: make([]*assignment, partitions)}, readUntil: make(map[int]time.Time),
		weight: o.weight, weightCalls: make(weightCalls),
	}
	e.leases.byName[name] = m
	return m
}

// membershipOf returns the membership of a lease; nil where the lease has ended.
func (e *engine) membershipOf(l *Lease) *membership {
	if m := e.leases.byName[l.name]; m != nil && m.lease == l {
		return m
	}
	return nil
}

// find returns a membership of which that is true; nil: there is none.
func (e *engine) find(is func(*membership) bool) *membership {
	for _, m := range e.leases.byName {
		if is(m) {
			return m
		}
	}
	return nil
}

// join is Client.Lease.
func (e *engine) join(j *joining) {
	if e.ending.reason != nil {
		j.done <- e.ending.reason
		return
	}
	m := e.leases.byName[j.name]
	if m == nil {
		m = e.newMembership(j.name, j.partitions, j.options)
	}
	switch l := m.lease; {
	case m.leaving != nil:
		e.leases.waiting[j.name] = append(e.leases.waiting[j.name], j)
	case l.partitions != j.partitions:
		j.done <- fmt.Errorf("%w: this client joined it with %d, not %d", ErrPartitionCount, l.partitions, j.partitions)
	case l.options != j.options:
		j.done <- fmt.Errorf("this client joined it with other options: %v, not %v", l.options, j.options)
	case m.joined:
		m.answer(j)
	default:
		m.callers = append(m.callers, j)
	}
}

func (o leaseOptions) String() string {
	return fmt.Sprintf("weight %d, hand-off delay %v, drain timeout %v", o.weight, o.handoffDelay, o.drainTimeout)
}

// answer tells a call of Client.Lease that the client has joined.
func (m *membership) answer(j *joining) {
	m.handles++
	j.lease = m.lease
	j.done <- nil
}

// abandon undoes a call of Client.Lease whose caller stopped waiting.
func (e *engine) abandon(j *joining) {
	isIt := func(other *joining) bool { return other == j }
	if queue := slices.DeleteFunc(e.leases.waiting[j.name], isIt); len(queue) > 0 {
		e.leases.waiting[j.name] = queue
	} else {
		delete(e.leases.waiting, j.name)
	}
	m := e.leases.byName[j.name]
	if m == nil {
		return
	}
	before := len(m.callers)
	m.callers = slices.DeleteFunc(m.callers, isIt)
	if j.lease == m.lease {
		m.handles--
	} else if len(m.callers) == before {
		return // it had been refused
	}
	if m.handles == 0 && len(m.callers) == 0 && m.leaving == nil {
		e.leave(m, ErrClosed)
	}
}

// nextJoin is the lease to be joined that has waited longest, and when that is due.
func (e *engine) nextJoin() (*membership, time.Time) {
	return soonest(maps.Values(e.leases.byName), func(m *membership) time.Time {
		if m.joined || m.leaving != nil {
			return never
		}
		return m.retryAt
	})
}

func (e *engine) joinDue(time.Time) time.Time {
	_, at := e.nextJoin()
	return at
}

// joinEach is how long a join may take for each partition, all of which the first one makes.
const joinEach = 50 * time.Microsecond

func (e *engine) beginJoin(time.Time) *operation {
	m, _ := e.nextJoin()
	e.leases.joining = m
	e.leases.joins++
	number := e.leases.joins
	session, name, partitions, weight, calls := e.session.number, m.lease.name, m.lease.partitions, m.weight, maps.Clone(m.weightCalls)
	return &operation{limit: e.limit() + time.Duration(partitions)*joinEach, call: func(ctx context.Context, c conn) func(error) error {
		join, err := c.Join(ctx, session, name, partitions, weight, number)
		return func(error) error { return e.joinAnswered(m, join, err, calls) }
	}}
}

// joinAnswered takes the answer to a join, which carried the weight of these calls of SetWeight.
func (e *engine) joinAnswered(m *membership, join store.Join, err error, calls weightCalls) error {
	now := time.Now()
	e.leases.joining, m.retryAt = nil, now
	if err == nil && join.Alive && !join.Joined {
		if n := join.Partitions; n == 0 || max(n, -n) == m.lease.partitions { // it was made or dropped meanwhile
			if m.leaving != nil {
				e.endMembership(m, m.leaving)
			}
			return nil // once more
		}
		err = fmt.Errorf("%w: it has %d, not %d", ErrPartitionCount, join.Partitions, m.lease.partitions)
		if join.Partitions < 0 {
			err = fmt.Errorf("%w: it was dropped, and may be made again with %d only for 24 h, not with %d, unless pgleases drop --partitions says so",
				ErrPartitionCount, -join.Partitions, m.lease.partitions)
		}
	}
	switch {
	case err != nil && m.leaving != nil: // where it was applied all the same, a heartbeat tells of a stray
		e.endMembership(m, m.leaving)
		return err
	case err != nil && store.Transient(err) && !errors.Is(err, ErrPartitionCount):
		m.retry = min(max(2*m.retry, retryMin), e.options.heartbeat)
		m.retryAt = now.Add(m.retry + rand.N(retryMin))
		return err
	case err != nil && m.handles > 0: // it had joined before the session was lost
		m.retryAt = now.Add(e.options.heartbeat)
		m.refuse(err)
		return fmt.Errorf("join lease %q again: %w", m.lease.name, err)
	case err != nil:
		e.endMembership(m, err)
		return nil
	case !join.Alive:
		e.evicted(false)
		return nil
	}
	// What a new member is given comes after the plan, which a notification or a heartbeat tells. It may have something where an earlier join
	// was applied whose answer was lost, or from an earlier membership.
	m.toRead = !join.Claimed && (m.retry > 0 || e.leases.relics[m.lease.name])
	m.joined, m.generation, m.retry = true, 0, 0
	if join.Claimed {
		e.plans.claimed[m.lease.name] = true
		e.plans.request(now, m.lease.name)
	} else {
		e.plans.request(now.Add(join.DueIn+time.Millisecond), m.lease.name)
	}
	for _, j := range m.callers {
		m.answer(j)
	}
	m.callers = nil
	m.answerWeight(calls, nil)
	return nil
}

// heardLeases takes what a heartbeat tells of the leases that the session is a member of.
func (e *engine) heardLeases(beats []store.LeaseBeat) {
	now := time.Now()
	isMember := make(map[string]bool, len(beats))
	for _, b := range beats {
		isMember[b.Name] = true
		m := e.leases.byName[b.Name]
		if m == nil {
			m = e.adopt(b.Name)
		}
		if !m.joined && m.leaving == nil {
			continue // it is joined once more
		}
		m.joined = true // where it was not, the answer to its join was lost
		m.toRead = m.toRead || m.generation != b.Generation
		m.weightLost = m.leaving == nil && b.Weight != m.weight
		if _, planned := e.plans.at[b.Name]; b.DueIn == 0 && !planned {
			e.plans.request(now, b.Name)
		}
	}
	for name, m := range e.leases.byName {
		if m.joined && !isMember[name] {
			e.unjoined(m)
		}
	}
}

// adopt takes a lease that the session is a member of though no call waits for it any more: a join whose answer was lost,
// given up since. The client leaves it with all that it was given.
func (e *engine) adopt(name string) *membership {
	m := e.newMembership(name, maxPartitions, leaseOptions{}) // nobody knows how many it has
	m.joined, m.toRead, m.leaving = true, true, ErrClosed
	return m
}

// leave begins to leave: everything drains, and is released as its work ends. A caller of Close or Leave has stopped its
// loop; a client that was superseded may still be in it.
func (e *engine) leave(m *membership, reason error) {
	now := time.Now()
	m.leaving = reason
	m.refuse(reason)
	e.withdraw(m, m.serving(), reason, now)
	if errors.Is(reason, ErrClosed) {
		for _, t := range m.all() {
			t.readyAt = now
		}
	}
	if !m.joined { // nothing can be released
		e.strikeAll(m)
	}
	delete(e.plans.at, m.lease.name)
	if !m.joined && m != e.leases.joining && e.ending.reason == nil {
		e.endMembership(m, reason)
	}
}

// refuse answers all calls that wait.
func (m *membership) refuse(err error) {
	for _, j := range m.callers {
		j.done <- err
	}
	m.callers = nil
	m.answerWeight(m.weightCalls, err)
}

// unjoined takes the news that the session is no member: it joins again, or has left. All that it owned ends. Where the session lives
// and joins again, it owns that still in the database: it is released then, so that none comes back under its epoch.
func (e *engine) unjoined(m *membership) {
	m.joined, m.awaitsRelease, m.toRead = false, false, false
	m.retryAt = time.Now()
	cause := m.leaving
	if cause == nil {
		cause = fmt.Errorf("%w: the membership was removed", ErrTrustLost)
	}
	assignments, over := m.all(), m.leaving != nil || !e.session.registered
	e.withdraw(m, m.serving(), cause, m.retryAt)
	m.lease.board.EndHolds(cause)
	e.end(m, assignments, cause)
	if over {
		e.strikeAll(m)
	}
	if m.leaving != nil && e.ending.reason == nil {
		e.endMembership(m, m.leaving)
	}
}

// strikeAll strikes out what a membership has left when it is over. Where the session lives, the database may say that it owns that.
func (e *engine) strikeAll(m *membership) {
	if e.session.registered && m.assignments.n > 0 {
		e.leases.relics[m.lease.name] = true
	}
	for _, t := range m.all() {
		e.strike(t)
	}
}

// endMembership ends a lease for good. Calls of Client.Lease for its name that came meanwhile begin anew.
func (e *engine) endMembership(m *membership, err error) {
	m.refuse(err)
	l := m.lease
	l.board.Close(e.session.invalid, err)
	delete(e.leases.byName, l.name)
	queue := e.leases.waiting[l.name]
	delete(e.leases.waiting, l.name)
	for _, j := range queue {
		e.join(j)
	}
}

// setWeight is Lease.SetWeight.
func (e *engine) setWeight(l *Lease, weight int, done chan<- error) {
	switch m := e.membershipOf(l); {
	case m == nil:
		done <- l.Err()
	case m.leaving != nil:
		done <- m.leaving
	default:
		m.weight = weight
		m.weightCalls[done] = struct{}{}
	}
}

// abandonWeight forgets a call of SetWeight whose caller stopped waiting. The weight is set all the same.
func (e *engine) abandonWeight(l *Lease, done chan<- error) {
	if m := e.membershipOf(l); m != nil {
		if _, waits := m.weightCalls[done]; waits {
			delete(m.weightCalls, done)
			m.weightLost = true
		}
	}
}

// answerWeight answers those of the calls of SetWeight that still wait, and reports whether any does.
func (m *membership) answerWeight(calls weightCalls, err error) (told bool) {
	for done := range calls {
		if _, waits := m.weightCalls[done]; waits { // it may have been given up, or answered by a leave
			delete(m.weightCalls, done)
			done <- err
			told = true
		}
	}
	return told
}

func (m *membership) weightDue() bool {
	return m.joined && m.leaving == nil && (len(m.weightCalls) > 0 || m.weightLost)
}

func (e *engine) weightDue(time.Time) time.Time {
	return atOnceIf(e.find((*membership).weightDue) != nil)
}

func (e *engine) beginWeight(time.Time) *operation {
	m := e.find((*membership).weightDue)
	session, name, weight, calls := e.session.number, m.lease.name, m.weight, maps.Clone(m.weightCalls)
	return &operation{limit: e.limit(), call: func(ctx context.Context, c conn) func(error) error {
		member, err := c.SetWeight(ctx, session, name, weight)
		return func(error) error {
			switch {
			case err != nil && (store.Transient(err) || !m.answerWeight(calls, err)): // nobody else is told
				return fmt.Errorf("lease %q: %w", name, err)
			case err != nil:
				return nil
			case !member:
				if e.membershipOf(m.lease) != nil {
					e.unjoined(m) // it joins again, with the weight
				}
				return nil
			}
			m.weightLost = m.weight != weight
			m.answerWeight(calls, nil)
			e.plans.request(time.Now(), name)
			return nil
		}
	}}
}
