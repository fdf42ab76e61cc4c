package engine

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/pgleases/pgleases/internal/logqueue"
	"github.com/pgleases/pgleases/internal/owned"
	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/worker"
)

// members are the leases that the client joins, is a member of, and leaves.
type members struct {
	client  *Client
	config  *Config
	refuses error // why no lease can be joined any more; nil: leases can be joined

	agenda agenda // what is to be done for which membership
	shared shared // of all assignments

	byName   map[string]*membership
	waiting  map[string][]*joinCall // calls for a name whose membership has to end first
	underWay *membership            // whose join is under way; nil: no join is
	// number of joins that were sent: a leave names the last one, and ends no later membership
	joinsSent int64
	// leases with ownerships that ended without a release: they are released before they are shown
	// again
	unreleased map[string]bool
	// leases that cannot be joined again, with the number of partitions that they have here
	refused map[string]int
	sum     LeaseStats // of all memberships, including those that have ended
	warned  bool       // of too many leases
	drained override   // of the client
	drains  logqueue.Condition
}

// A membership is the engine's side of a Lease. It outlives sessions: after an eviction the client
// joins again.
type membership struct {
	lease       *Lease
	agenda      *agenda // of all memberships
	assignments assignments

	state  memberState // changed by become
	queued bool        // it is in the queue of joins
	closed bool        // it has ended
	reason error       // why it is left; nil: it is not left

	generation int64
	paused     override // of the lease
	pauses     logqueue.Condition
	unowned    unowned
	retryAt    time.Time          // when to join again
	retry      time.Duration      // the pause after the next failure to join
	refusal    logqueue.Condition // it cannot be joined again

	callers       []*joinCall // calls of Client.Join that wait for the join
	answeredJoins int         // calls of Client.Join that were answered

	weight      int
	weightLost  bool        // the database has another weight, or may have
	weightCalls weightCalls // calls that wait until the database has the weight

	// the client ends and is to come back, so the partitions wait for it
	returns   bool
	waiting   int  // partitions that it has released for that
	leaveSent bool // a leave was sent; the next release sends it again. Set by setLeaveSent
	// an attempt to leave has failed: later attempts name no successors, because that requires a
	// plan
	noSuccessors bool
}

// A memberState changes as the diagram in doc.go shows.
type memberState int

const (
	stateJoins  memberState = iota // the session is not a member, and is to become one
	stateMember                    // the session is a member
	stateLeaves                    // it is still a member: what it owns drains, and it leaves with the last release
	// stateLeft: the session is not a member. The membership waits for the answer to its join, or for the
	// client's end.
	stateLeft
)

// inDatabase reports whether the session is a member in the database.
func (m *membership) inDatabase() bool { return m.state == stateMember || m.state == stateLeaves }

// leaving reports whether the client leaves or has left the lease.
func (m *membership) leaving() bool { return m.state >= stateLeaves }

// weightCalls are calls of SetWeight.
type weightCalls map[chan<- error]struct{}

// A joinCall is a call of Client.Join.
type joinCall struct {
	name       string
	partitions int
	options    LeaseOptions
	done       chan<- error
	lease      *Lease // set before done
}

func newMembers(c *Client, now time.Time) members {
	return members{
		client: c, config: &c.config, agenda: newAgenda(), shared: newShared(c, now),
		byName: make(map[string]*membership), waiting: make(map[string][]*joinCall),
		unreleased: make(map[string]bool), refused: make(map[string]int),
	}
}

// add begins a membership that is to be joined.
func (ms *members) add(name string, partitions int, o LeaseOptions) *membership {
	board := owned.NewBoard(name, ms.shared.shown(), ms.client.wakeUp)
	l := &Lease{client: ms.client, Name: name, Partitions: partitions, Options: o, Board: board}
	l.stats.Store(new(LeaseStats))
	l.news.Store(&News{Next: make(chan struct{})})
	m := newMembership(l, &ms.agenda, &ms.shared)
	ms.byName[name] = m
	m.become(stateJoins)
	ms.client.leases.Store(name, l)
	return m
}

func newMembership(l *Lease, g *agenda, s *shared) *membership {
	m := &membership{lease: l, agenda: g, weight: l.Options.Weight, weightCalls: make(weightCalls)}
	m.assignments = newAssignments(m, s)
	return m
}

// of returns the membership of a lease; nil: the lease has ended.
func (ms *members) of(l *Lease) *membership {
	m := ms.byName[l.Name]
	if m != nil && m.lease == l {
		return m
	}
	return nil
}

// all returns all memberships, in no order.
func (ms *members) all() iter.Seq[*membership] { return maps.Values(ms.byName) }

// find returns a membership that satisfies the function; nil: no membership does.
func (ms *members) find(is func(*membership) bool) *membership {
	for _, m := range ms.byName {
		if is(m) {
			return m
		}
	}
	return nil
}

// inDatabase reports whether the session is a member of a lease.
func (ms *members) inDatabase() bool { return ms.agenda.inDatabase > 0 }

// among returns those of the leases that the session is a member of, and does not leave.
func (ms *members) among(names []string) (of []string) {
	for _, name := range names {
		m := ms.byName[name]
		if m != nil && m.state == stateMember {
			of = append(of, name)
		}
	}
	return of
}

// ownsAny reports whether an ownership has not ended, shown or draining.
func (ms *members) ownsAny() bool {
	owns := func(a *assignment) bool { return a != nil && !a.ownership.Ended() }
	return ms.find(func(m *membership) bool { return slices.ContainsFunc(m.assignments.assigned, owns) }) != nil
}

// --- joining

// join is Client.Join.
func (ms *members) join(j *joinCall) {
	if ms.refuses != nil {
		j.done <- ms.refuses
		return
	}
	m := ms.byName[j.name]
	if m == nil {
		m = ms.add(j.name, j.partitions, j.options)
	}
	switch l := m.lease; {
	case m.leaving():
		ms.waiting[j.name] = append(ms.waiting[j.name], j)
	case l.Partitions != j.partitions:
		j.done <- fmt.Errorf("%w: this client joined it with %d, not %d",
			ms.config.Errors.PartitionCount, l.Partitions, j.partitions)
	case l.Options != j.options:
		j.done <- fmt.Errorf("this client joined it with other options: %v, not %v", l.Options, j.options)
	case m.state == stateMember:
		m.answer(j)
	default:
		m.addCaller(j)
	}
}

func (o LeaseOptions) String() string {
	ceiling := "no ceiling"
	if o.MaxPartitions > 0 {
		ceiling = fmt.Sprintf("at most %d partitions", o.MaxPartitions)
	}
	return fmt.Sprintf("weight %d, handoff delay %v, drain timeout %v, rebalance delay %v, restart grace %v, %s",
		o.Weight, o.HandoffDelay, o.DrainTimeout, o.RebalanceDelay, o.RestartGrace, ceiling)
}

// addCaller adds a call of Client.Join, which waits for the join.
func (m *membership) addCaller(j *joinCall) { m.callers = append(m.callers, j) }

// answer answers a call of Client.Join: the client has joined.
func (m *membership) answer(j *joinCall) {
	m.answeredJoins++
	j.lease = m.lease
	j.done <- nil
}

// abandon undoes a call of Client.Join whose caller stopped waiting. It returns the membership that
// the client has to leave because of that, or nil.
func (ms *members) abandon(j *joinCall) *membership {
	queue := slices.DeleteFunc(ms.waiting[j.name], func(other *joinCall) bool { return other == j })
	if len(queue) > 0 {
		ms.waiting[j.name] = queue
	} else {
		delete(ms.waiting, j.name)
	}
	m := ms.byName[j.name]
	if m == nil {
		return nil
	}
	if !m.abandon(j) || m.answeredJoins > 0 || len(m.callers) > 0 || m.leaving() {
		return nil
	}
	return m
}

// abandon undoes a call of Client.Join. It reports false if the call was refused.
func (m *membership) abandon(j *joinCall) bool {
	before := len(m.callers)
	m.callers = slices.DeleteFunc(m.callers, func(other *joinCall) bool { return other == j })
	if j.lease == m.lease {
		m.answeredJoins--
		return true
	}
	return len(m.callers) < before
}

// beginJoin begins the next join, and numbers it.
func (ms *members) beginJoin(now time.Time) (*membership, int64) {
	ms.underWay, _ = ms.agenda.nextJoin(now)
	ms.joinsSent++
	return ms.underWay, ms.joinsSent
}

// AdvisedLeases is how many leases of one client docs/sizing.md advises at most. Joins, heartbeats
// and plans were measured up to there.
const AdvisedLeases = 10_000

// warn logs once that the client has more leases than advised.
func (ms *members) warn() {
	n := ms.agenda.inDatabase
	if n > AdvisedLeases && !ms.warned {
		ms.warned = true
		ms.config.Log.Warn("pgleases: client joined more leases than advised",
			slog.Int("leases", n), slog.Int("advised", AdvisedLeases))
	}
}

// joined handles the answer to a join. It returns whether the session is a member, and the error
// that requires another attempt.
func (ms *members) joined(m *membership, join store.Join, err error, now time.Time) (isMember bool, again error) {
	ms.underWay = nil
	m.joinFrom(now)
	defer m.joinTried()
	refused := err == nil && join.Alive && !join.Joined
	if refused && join.Successor != "" {
		err = fmt.Errorf("%w by %q", ms.config.Errors.LeaseReplaced, join.Successor)
	} else if refused {
		err = ms.miscounted(join, m.lease.Partitions)
	}
	switch {
	case err != nil:
		return false, ms.notJoined(m, err, now)
	case refused && m.state == stateLeft:
		ms.closeLease(m, m.reason)
		return false, nil
	case refused || !join.Alive:
		return false, nil // join again, in another session if this one is gone
	}
	// A new member gets its partitions after the plan, which a notification or a heartbeat
	// announces. It may own partitions already if an earlier join, whose answer was lost, was
	// executed, or from an earlier membership.
	m.becameMember()
	ms.notRefused(m)
	m.logJoinedAgain(ms.config.Log, now)
	mayOwn := m.retry > 0 || ms.unreleased[m.lease.Name]
	if mayOwn && !join.Claimed {
		m.setToRead(true)
	}
	if mayOwn || m.answeredJoins > 0 {
		join.Generation = 0 // whatever a heartbeat returns, the lease is read
	}
	ms.warn()
	m.joined(join.Generation)
	return true, nil
}

// joined notes that a join succeeded, and answers the calls that wait for it. A later generation
// makes the client read what it owns.
func (m *membership) joined(generation int64) {
	m.generation, m.retry = generation, 0
	for _, j := range m.callers {
		m.answer(j)
	}
	m.callers = nil
}

// joinFrom makes that time the earliest for its next join.
func (m *membership) joinFrom(at time.Time) { m.retryAt = at }

// backOff spaces attempts to join.
func (m *membership) backOff(heartbeat time.Duration, now time.Time) {
	m.retry = min(max(2*m.retry, retryMin), heartbeat)
	m.joinFrom(now.Add(m.retry + rand.N(retryMin)))
}

// notJoined handles the error of a join. It returns the error that requires another attempt.
func (ms *members) notJoined(m *membership, err error, now time.Time) error {
	switch {
	case m.state == stateLeft: // if the join was executed anyway, a heartbeat finds a stray
		ms.closeLease(m, m.reason)
		return err
	case m.state == stateLeaves: // the join was to change the weight
		return err
	case errors.Is(err, ms.config.Errors.LeaseReplaced):
		if m.answeredJoins > 0 { // otherwise only the calls that wait need to know
			ms.config.Log.Error("pgleases: lease ended", slog.String("lease", m.lease.Name), slog.Any("cause", err))
		}
		ms.removeAll(m, false) // the database has no partition of it
		ms.closeLease(m, err)
		return nil
	case !worker.Whose(err).Final() && !errors.Is(err, ms.config.Errors.PartitionCount):
		m.backOff(ms.config.Heartbeat, now)
		return err
	case m.answeredJoins > 0: // it had joined before the session was lost
		m.joinFrom(now.Add(ms.config.Heartbeat))
		m.refuse(err)
		if errors.Is(err, ms.config.Errors.PartitionCount) {
			ms.refused[m.lease.Name] = m.lease.Partitions
			m.count()
		}
		m.logRefused(ms.config.Log, err, now)
		return fmt.Errorf("join lease %q again: %w", m.lease.Name, err)
	}
	ms.closeLease(m, err)
	return nil
}

// refusedEvery is how often a client logs that it cannot join a lease again. It works on nothing of
// that lease until somebody acts, so one line would be overlooked.
const refusedEvery = time.Minute

// logRefused logs that a lease cannot be joined again.
func (m *membership) logRefused(log *slog.Logger, err error, now time.Time) {
	if m.refusal.Last(refusedEvery, now) {
		log.Error("pgleases: lease cannot be joined again", slog.String("lease", m.lease.Name), slog.Any("error", err))
	}
}

// logJoinedAgain logs that a lease was joined after a line said that it cannot be.
func (m *membership) logJoinedAgain(log *slog.Logger, now time.Time) {
	lasted, wasLogged := m.refusal.End(now)
	if wasLogged {
		log.Info("pgleases: lease joined again", slog.String("lease", m.lease.Name), slog.Duration("after", lasted))
	}
}

// notRefused notes that nothing keeps the client from a lease any more.
func (ms *members) notRefused(m *membership) {
	delete(ms.refused, m.lease.Name)
	m.count()
}

// becameMember notes that the session is a member.
func (m *membership) becameMember() {
	switch m.state {
	case stateJoins:
		m.become(stateMember)
	case stateLeft:
		m.become(stateLeaves)
	}
}

// becameNoMember notes that the session is not a member.
func (m *membership) becameNoMember() {
	switch m.state {
	case stateMember:
		m.become(stateJoins)
	case stateLeaves:
		m.become(stateLeft)
	}
	m.setLeaveSent(false)
	m.setToRead(false)
	m.setUnowned(0, false)
}

// miscounted returns the error of a join that was refused because of the number of partitions. It
// returns nil if the lease was created or dropped meanwhile.
func (ms *members) miscounted(join store.Join, wanted int) error {
	const (
		dropped = "%w: it was dropped, and for 24 h it can be created again only with %d, not with %d; " +
			"change that with pgleases drop --partitions"
		another = "%w: it has %d, not %d; start every process with %[2]d, " +
			"or change the number with pgleases replace, as docs/changing-n.md says"
	)
	switch {
	case wanted == join.Partitions || wanted == join.DroppedWith:
	case join.DroppedWith > 0:
		return fmt.Errorf(dropped, ms.config.Errors.PartitionCount, join.DroppedWith, wanted)
	case join.Partitions > 0:
		return fmt.Errorf(another, ms.config.Errors.PartitionCount, join.Partitions, wanted)
	}
	return nil
}

// heard handles what a heartbeat says about the leases that the session is a member of. It returns
// the leases that need a plan, and the memberships that the database does not have.
func (ms *members) heard(beats []store.LeaseBeat, server int64) (toPlan []string, gone []*membership) {
	isMember := make(map[string]bool, len(beats))
	for _, b := range beats {
		isMember[b.Name] = true
		m := ms.byName[b.Name]
		switch {
		case m == nil:
			m = ms.takeStray(b.Name)
		case m.state == stateJoins:
			// An earlier join was executed, and its answer was lost. It is sent again, and that
			// answer counts.
			continue
		}
		m.lease.hear(b.Generation, server)
		m.becameMember() // if it was not a member, the answer to its join was lost
		if m.generation != b.Generation {
			m.setToRead(true)
		}
		m.setWeightLost(!m.leaving() && b.Weight != m.weight)
		if b.DueIn == 0 {
			toPlan = append(toPlan, b.Name)
		}
	}
	for name, m := range ms.byName {
		if m.inDatabase() && !isMember[name] {
			gone = append(gone, m)
		}
	}
	return toPlan, gone
}

// takeStray takes a lease that the session is a member of without a waiting call: the answer to a
// join was lost, and the call was given up since. The client leaves it with everything that it was
// given.
func (ms *members) takeStray(name string) *membership {
	m := ms.add(name, MaxPartitions, LeaseOptions{}) // its number of partitions is not known
	m.becameMember()
	m.leave(ms.config.Errors.Closed)
	m.setToRead(true)
	return m
}

// --- leaving

// leave begins to leave: everything drains, and is released when its work ends. A caller of Close
// or Leave has stopped its loop; a superseded client may still be in its loop. leave reports
// whether the membership is over: the database has no part of it.
func (ms *members) leave(m *membership, reason error, sessionLives bool, now time.Time) (over bool) {
	m.leave(reason)
	m.assignments.withdraw(m.assignments.serving(), reason, now)
	if errors.Is(reason, ms.config.Errors.Closed) {
		for _, a := range m.assignments.list() {
			a.releaseFrom(now)
		}
	}
	if m.inDatabase() {
		return false
	}
	ms.removeAll(m, sessionLives) // a release is not possible
	return m != ms.underWay
}

// leave notes that the lease is left, for that reason, and refuses all waiting calls.
func (m *membership) leave(reason error) {
	switch m.state {
	case stateMember:
		m.become(stateLeaves)
	case stateJoins:
		m.become(stateLeft)
	}
	m.reason = reason
	m.refuse(reason)
}

// comeBack notes that the client ends, and is to come back.
func (m *membership) comeBack() { m.returns = m.lease.Options.RestartGrace > 0 }

// releasedToNoOwner notes a partition that was released and has no owner now.
func (m *membership) releasedToNoOwner() { m.waiting++ }

// logWaiting logs how many partitions wait for the client's return.
func (ms *members) logWaiting(m *membership) {
	if m.returns && m.waiting > 0 && m.weight > 0 && !ms.drained.active {
		ms.config.Log.Info("pgleases: partitions wait for the return of this client",
			slog.String("lease", m.lease.Name),
			slog.Int("count", m.waiting), slog.Duration("for", m.lease.Options.RestartGrace))
	}
}

// leaveTried notes the result of an attempt to leave.
func (m *membership) leaveTried(err error) { m.noSuccessors = m.noSuccessors || err != nil }

// refuse answers all waiting calls with the error.
func (m *membership) refuse(err error) {
	for _, j := range m.callers {
		j.done <- err
	}
	m.callers = nil
	m.answerWeight(m.weightCalls, err)
}

// removed notes that the session is not a member: it joins again, or has left. All its ownerships
// end. If the session lives and joins again, it still owns the partitions in the database. Then
// they are released, so that none comes back under its epoch.
func (ms *members) removed(m *membership, sessionLives bool, now time.Time) {
	m.becameNoMember()
	m.joinFrom(now)
	cause := cmp.Or(m.reason, fmt.Errorf("%w: the membership was removed", ms.config.Errors.TrustLost))
	all := m.assignments.list()
	m.assignments.withdraw(m.assignments.serving(), cause, now)
	m.lease.Board.EndHolds(cause)
	m.assignments.endOwnerships(all, cause)
	if m.leaving() || !sessionLives {
		ms.removeAll(m, sessionLives)
	}
}

// removeAll removes what is left of a membership that is over. If the session lives, a later read
// may return that it owns those partitions.
func (ms *members) removeAll(m *membership, sessionLives bool) {
	if sessionLives && m.assignments.n > 0 {
		ms.unreleased[m.lease.Name] = true
	}
	for _, a := range m.assignments.list() {
		m.assignments.remove(a)
	}
}

// closeLease ends a membership for good. Calls of Client.Join for its name that arrived meanwhile
// begin again.
func (ms *members) closeLease(m *membership, err error) {
	m.refuse(err)
	l := m.lease
	ms.shared.logGiven(l)
	ms.logWaiting(m)
	l.Board.Close(ms.shared.invalid, err)
	delete(ms.byName, l.Name)
	ms.notRefused(m)
	m.close()
	queue := ms.waiting[l.Name]
	delete(ms.waiting, l.Name)
	for _, j := range queue {
		ms.join(j)
	}
}

// endAll ends all ownerships of all leases, and returns their number. The holds end first, because
// with many partitions the rest takes time.
func (ms *members) endAll(cause error) (n int) {
	for m := range ms.all() {
		m.lease.Board.EndHolds(cause)
	}
	for m := range ms.all() {
		n += m.assignments.endOwnerships(m.assignments.list(), cause)
	}
	return n
}

// finish ends everything, for good.
func (ms *members) finish(reason error) {
	ms.endAll(reason)
	for m := range ms.all() {
		ms.closeLease(m, reason)
	}
	for a := range ms.shared.draining {
		if a.ownership.Pinned() {
			a.endLog() // its work goes on, so no line says that it has ended
		}
		ms.shared.endDrain(a)
	}
	ms.shared.logEnded()
}
