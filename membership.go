package pgleases

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/pgleases/pgleases/internal/ranges"
	"github.com/pgleases/pgleases/internal/store"
)

// A membership is the engine's side of a lease.
type membership struct {
	owned      map[int]*ownership // serving and draining, by partition
	joined     bool               // the session is a member
	generation int64              // of what was read last
	dirty      bool               // to be read
	retryAt    time.Time          // of a join that failed

	waiters []*joining
	handles int // Lease calls that were answered

	weight        int
	weightLost    bool           // the database has another one
	weightWaiters []chan<- error // for the database to have the weight

	leaving   error // why; nil: it stays
	leaveSent bool
}

// A joining is a call of Client.Lease.
type joining struct {
	name       string
	partitions int
	options    leaseOptions
	done       chan error
	lease      *Lease // set before done
}

func (e *engine) join(j *joining) {
	if e.ending != nil {
		j.done <- e.ending
		return
	}
	l := e.leases[j.name]
	switch {
	case l == nil:
		l = &Lease{
			client: e.c, name: j.name, partitions: j.partitions, options: j.options, ended: make(chan struct{}),
			membership: membership{owned: make(map[int]*ownership), weight: j.options.weight},
		}
		l.snapshot.Store(&snapshot{term: e.trusted(), values: noValues, changed: make(chan struct{})})
		e.leases[j.name] = l
		l.waiters = append(l.waiters, j)
	case l.leaving != nil:
		e.waiting[j.name] = append(e.waiting[j.name], j)
	case l.partitions != j.partitions:
		j.done <- fmt.Errorf("%w: this client joined it with %d, not %d", ErrPartitionCount, l.partitions, j.partitions)
	case l.options != j.options:
		j.done <- fmt.Errorf("this client joined it with other options: %v, not %v", l.options, j.options)
	case l.joined:
		e.answer(l, j)
	default:
		l.waiters = append(l.waiters, j)
	}
}

func (o leaseOptions) String() string {
	return fmt.Sprintf("weight %d, hand-off delay %v, drain timeout %v", o.weight, o.handoffDelay, o.drainTimeout)
}

// answer tells a call of Client.Lease that it has joined.
func (e *engine) answer(l *Lease, j *joining) {
	l.handles++
	j.lease = l
	j.done <- nil
}

// abandon undoes a call of Client.Lease that was not waited for.
func (e *engine) abandon(j *joining) {
	gone := func(w *joining) bool { return w == j }
	if queue := slices.DeleteFunc(e.waiting[j.name], gone); len(queue) > 0 {
		e.waiting[j.name] = queue
	} else {
		delete(e.waiting, j.name)
	}
	l := e.leases[j.name]
	if l == nil {
		return
	}
	before := len(l.waiters)
	l.waiters = slices.DeleteFunc(l.waiters, gone)
	if j.lease == l {
		l.handles--
	} else if len(l.waiters) == before {
		return // it had been refused
	}
	if l.handles == 0 && len(l.waiters) == 0 && l.leaving == nil {
		e.leaveFor(l, ErrClosed)
	}
}

// joinEach is how long a join may take for each partition, which the first one makes.
const joinEach = 50 * time.Microsecond

func (e *engine) opJoin(now time.Time) *operation {
	if e.ending != nil {
		return nil
	}
	for _, l := range e.leases {
		if l.joined || l.leaving != nil || now.Before(l.retryAt) {
			continue
		}
		session, weight, weightWaiters := e.session, l.weight, len(l.weightWaiters)
		return &operation{name: "join", joins: l, limit: e.limit() + time.Duration(l.partitions)*joinEach, run: func(ctx context.Context, c conn) func(error) error {
			join, err := c.Join(ctx, session, l.name, l.partitions, weight)
			return func(error) error { return e.joinAnswered(l, join, err, weightWaiters) }
		}}
	}
	return nil
}

// joinAnswered takes the answer to a join, which carried the weight that the first so many waiters wait for.
func (e *engine) joinAnswered(l *Lease, join store.Join, err error, weightWaiters int) error {
	now := time.Now()
	l.retryAt = now
	if err == nil && join.Alive && !join.Joined {
		if join.Partitions == 0 || join.Partitions == l.partitions {
			return nil // it was made or dropped meanwhile: once more
		}
		err = fmt.Errorf("%w: it has %d, not %d", ErrPartitionCount, join.Partitions, l.partitions)
	}
	switch {
	case err != nil && l.leaving != nil: // where it was applied all the same, a heartbeat tells of a stray
		e.endLease(l, l.leaving)
		return err
	case err != nil && store.Transient(err) && !errors.Is(err, ErrPartitionCount):
		l.retryAt = now.Add(retryMin + rand.N(retryMin))
		return err
	case err != nil && l.handles > 0: // it had joined before the session was lost
		l.retryAt = now.Add(e.o.heartbeat)
		return fmt.Errorf("join lease %q again: %w", l.name, err)
	case err != nil:
		e.endLease(l, err)
		return nil
	case !join.Alive:
		e.evicted()
		return nil
	}
	l.joined, l.generation, l.dirty = true, 0, true
	e.readAt = now
	e.ask(now.Add(join.DueIn+time.Millisecond), []string{l.name})
	for _, j := range l.waiters {
		e.answer(l, j)
	}
	l.waiters = nil
	e.answerWeight(l, weightWaiters, nil)
	return nil
}

// adopt takes a lease that the session is a member of and nobody asked for, to leave it with all that it was given.
func (e *engine) adopt(name string) *Lease {
	l := &Lease{client: e.c, name: name, ended: make(chan struct{}), membership: membership{
		owned: make(map[int]*ownership), joined: true, dirty: true, leaving: ErrClosed}}
	l.snapshot.Store(&snapshot{term: e.trusted(), values: noValues, changed: make(chan struct{})})
	e.leases[name] = l
	return l
}

// leave is Lease.Leave.
func (e *engine) leave(l *Lease) {
	if e.leases[l.name] == l && l.leaving == nil {
		e.leaveFor(l, ErrClosed)
	}
}

// leaveFor begins to leave: everything drains, and is released as its work ends. Who closes or leaves has stopped its loop;
// who was superseded may still be in it.
func (e *engine) leaveFor(l *Lease, reason error) {
	now := time.Now()
	l.leaving = reason
	e.failWaiters(l, reason)
	e.withdraw(l, serving(l), reason, now)
	if errors.Is(reason, ErrClosed) {
		for _, o := range l.owned {
			o.readyAt = now
		}
	}
	delete(e.plans, l.name)
	if !l.joined && (e.running == nil || e.running.joins != l) && e.ending == nil {
		e.endLease(l, reason)
	}
}

func (e *engine) failWaiters(l *Lease, err error) {
	for _, j := range l.waiters {
		j.done <- err
	}
	l.waiters = nil
	e.answerWeight(l, len(l.weightWaiters), err)
}

// unjoined takes the news that the session is no member: it joins again, or has left.
func (e *engine) unjoined(l *Lease) {
	l.joined, l.leaveSent, l.dirty = false, false, false
	l.retryAt = time.Now()
	removed := serving(l)
	for _, o := range l.owned {
		if l.leaving == nil {
			e.endOwnership(o, fmt.Errorf("%w: the membership was removed", ErrTrustLost))
		}
		e.forget(o)
	}
	e.publish(l)
	if len(removed) > 0 {
		e.c.log.Warn("pgleases: partitions lost", slog.String("lease", l.name),
			slog.String("partitions", ranges.Short(numbersOf(removed))), slog.String("cause", "the membership was removed"))
	}
	if l.leaving != nil && e.ending == nil {
		e.endLease(l, l.leaving)
	}
}

// endLease ends a lease for good; calls of Client.Lease for its name that came meanwhile begin anew.
func (e *engine) endLease(l *Lease, err error) {
	e.failWaiters(l, err)
	l.endErr = err
	close(l.ended)
	final := &snapshot{term: e.nothing, values: noValues, changed: make(chan struct{})}
	close(final.changed)
	old := l.snapshot.Swap(final)
	close(old.changed)
	for _, o := range l.owned {
		e.forget(o)
	}
	delete(e.leases, l.name)
	queue := e.waiting[l.name]
	delete(e.waiting, l.name)
	for _, j := range queue {
		e.join(j)
	}
}

func (e *engine) setWeight(l *Lease, weight int, done chan<- error) {
	switch {
	case e.leases[l.name] != l:
		done <- l.endErr
	case l.leaving != nil:
		done <- l.leaving
	default:
		l.weight = weight
		l.weightWaiters = append(l.weightWaiters, done)
	}
}

func (e *engine) answerWeight(l *Lease, waiters int, err error) {
	for _, done := range l.weightWaiters[:waiters] {
		done <- err
	}
	l.weightWaiters = l.weightWaiters[waiters:]
}

func (e *engine) opWeight() *operation {
	for _, l := range e.leases {
		if !l.joined || l.leaving != nil || len(l.weightWaiters) == 0 && !l.weightLost {
			continue
		}
		session, weight, waiters := e.session, l.weight, len(l.weightWaiters)
		return &operation{name: "set weight", limit: e.limit(), run: func(ctx context.Context, c conn) func(error) error {
			member, err := c.SetWeight(ctx, session, l.name, weight)
			return func(error) error {
				switch {
				case err != nil && store.Transient(err):
					return err
				case err == nil && !member:
					if e.leases[l.name] == l {
						e.unjoined(l) // it joins again, with the weight
					}
					return nil
				}
				l.weightLost = false
				e.answerWeight(l, min(waiters, len(l.weightWaiters)), err)
				e.ask(time.Now(), []string{l.name})
				return nil
			}
		}}
	}
	return nil
}
