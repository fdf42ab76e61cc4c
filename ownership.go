package pgleases

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/pgleases/pgleases/internal/ranges"
	"github.com/pgleases/pgleases/internal/store"
)

// The life of an ownership on its owner's side: read, shown, withdrawn, drained, released.

// A drain is the engine's side of an ownership: asked to end, it drains; then it is released. Once its release was sent the
// partition does not come back under this epoch, whatever is read: the release may arrive late.
type drain struct {
	draining bool
	since    time.Time
	readyAt  time.Time // not released before
	limitAt  time.Time // not waited for longer; zero: as long as it takes
	warnAt   time.Time
	overdue  bool // the drain timeout passed
	read     bool // somebody read Values that contained it
	ended    bool
}

// opRead reads what is owned of the leases that changed.
func (e *engine) opRead() *operation {
	var names []string
	for name, l := range e.leases {
		if l.joined && l.dirty {
			names = append(names, name)
		}
	}
	if names == nil {
		return nil
	}
	session, timeline := e.session, e.watch.run.Timeline
	return &operation{name: "read", limit: e.limit(), run: func(ctx context.Context, c conn) func(error) error {
		reads, err := c.Read(ctx, session, names)
		return func(error) error {
			if err != nil {
				return err
			}
			now := time.Now()
			e.checkTrust(now)
			for _, r := range reads {
				if r.Timeline != timeline || (r.Timeline == r.Settled) != e.settled { // promoted or settled since the last heartbeat
					e.nextBeat = now
					return nil
				}
				if l := e.leases[r.Name]; l != nil && l.joined && e.term != nil {
					e.readAnswered(l, r)
				}
			}
			if e.timeline != timeline && e.term != nil {
				e.timeline = timeline
				e.trust(e.anchor)
			}
			return nil
		}
	}}
}

// readAnswered takes what the database says the session owns of a lease.
func (e *engine) readAnswered(l *Lease, r store.LeaseRead) {
	now := time.Now()
	l.generation, l.dirty = r.Generation, false
	var wanted, gained []*ownership
	owned := make(map[int]bool, len(r.Owned))
	for _, p := range r.Owned {
		owned[p.Partition] = true
		o := l.owned[p.Partition]
		if o != nil && o.epoch != p.Epoch { // released, or a failover raised the epoch
			cause := ErrHandover
			if !o.draining {
				cause = fmt.Errorf("%w: a failover raised the epoch", ErrTrustLost)
			}
			e.endOwnership(o, cause)
			e.forget(o)
			o = nil
		}
		switch {
		case o != nil:
			if p.Moving && !o.draining {
				wanted = append(wanted, o)
			}
		case e.settled && p.Moving:
			wanted = append(wanted, e.own(l, p.Partition, p.Epoch)) // it moved on before it was seen
		case e.settled:
			gained = append(gained, e.own(l, p.Partition, p.Epoch))
		}
	}
	var lost []int
	for number, o := range l.owned {
		if !owned[number] {
			if !o.draining {
				lost = append(lost, number)
				e.endOwnership(o, fmt.Errorf("%w: a failover lost the ownership", ErrTrustLost))
			}
			e.forget(o)
		}
	}
	if len(lost) > 0 {
		e.c.log.Warn("pgleases: partitions lost", slog.String("lease", l.name),
			slog.String("partitions", ranges.Short(lost)), slog.String("cause", "the server does not confirm them"))
	}
	e.withdraw(l, wanted, ErrHandover, now)
	e.serve(l, gained, now)
	if l.leaving != nil && len(l.owned) == 0 {
		l.leaveSent = false // nothing is left to wait for: leave again
	}
}

// own begins an ownership.
func (e *engine) own(l *Lease, number int, epoch int64) *ownership {
	o := &ownership{lease: l, term: e.term, number: number, epoch: epoch}
	o.ctx, o.end = context.WithCancelCause(context.Background())
	o.wish, o.ask = context.WithCancelCause(o.ctx)
	l.owned[number] = o
	e.stats.Gains++
	return o
}

// serve shows ownerships that began; one who leaves gives them straight back.
func (e *engine) serve(l *Lease, gained []*ownership, now time.Time) {
	if l.leaving != nil {
		e.withdraw(l, gained, l.leaving, now)
		return
	}
	e.publish(l)
	if len(gained) > 0 {
		e.c.log.Info("pgleases: partitions gained", slog.String("lease", l.name),
			slog.String("partitions", ranges.Short(numbersOf(gained))))
	}
}

func numbersOf(owned []*ownership) []int {
	numbers := make([]int, len(owned))
	for i, o := range owned {
		numbers[i] = o.number
	}
	return numbers
}

// serving returns the ownerships of a lease that are shown, by partition.
func serving(l *Lease) []*ownership {
	owned := make([]*ownership, 0, len(l.owned))
	for _, o := range l.owned {
		if !o.draining {
			owned = append(owned, o)
		}
	}
	slices.SortFunc(owned, func(a, b *ownership) int { return a.number - b.number })
	return owned
}

// trusted is the term to show; one that never began where there is none.
func (e *engine) trusted() *term {
	if e.term == nil {
		return e.nothing
	}
	return e.term
}

// publish shows what is served, if that changed. The new snapshot is stored first; what readers then mark as read in the
// old one, they do not return.
func (e *engine) publish(l *Lease) {
	old := l.snapshot.Load()
	next := &snapshot{term: e.trusted(), values: noValues, changed: make(chan struct{})}
	if e.term != nil {
		next.owned = serving(l)
	}
	if next.term == old.term && slices.Equal(next.owned, old.owned) {
		return
	}
	if len(next.owned) > 0 {
		next.values = numbersOf(next.owned)
	}
	l.snapshot.Store(next)
	if old.read.Load() {
		for _, o := range old.owned {
			o.read = true
		}
	}
	close(old.changed)
}

// withdraw takes ownerships out of what is shown, and asks for their work to end.
func (e *engine) withdraw(l *Lease, owned []*ownership, cause error, now time.Time) {
	for _, o := range owned {
		o.draining, o.since, o.readyAt, o.warnAt = true, now, now, now.Add(warnAfter)
		if limit := l.options.drainTimeout; limit > 0 {
			o.limitAt = now.Add(limit)
		}
		e.draining[o] = struct{}{}
	}
	e.publish(l)
	for _, o := range owned {
		if o.read {
			o.readyAt = now.Add(l.options.handoffDelay)
		}
		o.ask(cause)
	}
}

// endOwnership ends an ownership's context, and tells the holds that contain it.
func (e *engine) endOwnership(o *ownership, cause error) {
	if o.ended {
		return
	}
	o.ended = true
	switch losses := &e.stats.Losses; {
	case errors.Is(cause, ErrHandover):
		losses.Handover++
	case errors.Is(cause, ErrDrainTimeout):
		losses.DrainTimeout++
	case errors.Is(cause, ErrTrustLost):
		losses.TrustLost++
	default:
		losses.Closed++
	}
	o.end(cause)
	o.lease.mu.Lock()
	defer o.lease.mu.Unlock()
	for h := range o.lease.holds {
		if h.contains(o) {
			h.cancel(cause)
		}
	}
}

// forget strikes out an ownership that is not this session's any more.
func (e *engine) forget(o *ownership) {
	cause := ErrHandover
	if o.lease.leaving != nil {
		cause = o.lease.leaving
	}
	e.endOwnership(o, cause)
	o.draining = true
	delete(e.draining, o)
	if o.lease.owned[o.number] == o {
		delete(o.lease.owned, o.number)
	}
}

func (o *ownership) pinned() bool {
	o.lease.mu.Lock()
	defer o.lease.mu.Unlock()
	return o.pins > 0
}

// pinned returns the partitions of a lease that are in work.
func (e *engine) pinned(l *Lease) []int {
	var numbers []int
	for _, o := range l.owned {
		if o.pinned() {
			numbers = append(numbers, o.number)
		}
	}
	slices.Sort(numbers)
	return numbers
}

// drainAll looks after what drains: who waits too long is told of, or waited for no more.
func (e *engine) drainAll(now time.Time) {
	for o := range e.draining {
		if !o.limitAt.IsZero() && !o.overdue && !now.Before(o.limitAt) && o.pinned() {
			o.overdue = true
			e.c.log.Warn("pgleases: work did not end within the drain timeout", slog.String("lease", o.lease.name),
				slog.Int("partition", o.number), slog.Duration("after", now.Sub(o.since)))
			e.endOwnership(o, ErrDrainTimeout)
		}
		if e.hurried != nil && !o.ended && o.pinned() {
			e.endOwnership(o, e.ending)
		}
		if !now.Before(o.warnAt) {
			if o.pinned() {
				e.c.log.Warn("pgleases: hand-over waits for work", slog.String("lease", o.lease.name),
					slog.Int("partition", o.number), slog.Duration("for", now.Sub(o.since).Round(time.Second)))
			}
			o.warnAt = now.Add(now.Sub(o.since))
		}
	}
}

// releasable reports whether an ownership's work has ended.
func (o *ownership) releasable(now time.Time) bool {
	return o.draining && !now.Before(o.readyAt) && (o.overdue || !o.pinned())
}

// maxReleases bounds what one statement releases, so that it does not keep a client from its heartbeat.
const maxReleases = 8192

// releasing returns what is to be released now, and the leases to leave.
func (e *engine) releasing(now time.Time) (owned []*ownership, leaving []string) {
	for o := range e.draining {
		if o.lease.joined && o.releasable(now) {
			owned = append(owned, o)
		}
	}
	if len(owned) > maxReleases {
		slices.SortFunc(owned, func(a, b *ownership) int {
			return cmp.Or(strings.Compare(a.lease.name, b.lease.name), a.number-b.number)
		})
		owned = owned[:maxReleases]
	}
	free := make(map[*Lease]bool)
	for _, o := range owned {
		free[o.lease] = true
	}
	for name, l := range e.leases {
		if l.leaving != nil && l.joined && (!l.leaveSent || free[l]) {
			leaving = append(leaving, name)
		}
	}
	return owned, leaving
}

// opRelease releases everything whose work has ended, in one statement, and leaves leases.
func (e *engine) opRelease(now time.Time) *operation {
	owned, leaving := e.releasing(now)
	if !e.settled || len(owned)+len(leaving) == 0 {
		return nil
	}
	session := e.session
	releases := make([]store.Release, len(owned))
	for i, o := range owned {
		releases[i] = store.Release{Lease: o.lease.name, Partition: o.number, Epoch: o.epoch}
	}
	return &operation{name: "release", limit: e.limit(), run: func(ctx context.Context, c conn) func(error) error {
		released, err := c.Release(ctx, session, releases, leaving)
		return func(error) error {
			if err == nil {
				e.released(owned, leaving, released)
			}
			return err
		}
	}}
}

// released takes the answer to a release. What is neither released nor busy was released by an earlier one, whose answer was
// lost: a read tells who has it.
func (e *engine) released(owned []*ownership, leaving []string, answer store.Released) {
	now := time.Now()
	type key struct {
		lease     string
		partition int
	}
	handed := make(map[key]store.Handed, len(answer.Released))
	for _, h := range answer.Released {
		handed[key{h.Lease, h.Partition}] = h
	}
	busy := make(map[key]bool, len(answer.Busy))
	for _, b := range answer.Busy {
		busy[key{b.Lease, b.Partition}] = true
	}
	gone, back := make(map[*Lease][]int), make(map[*Lease][]*ownership)
	for _, o := range owned {
		l, k := o.lease, key{o.lease.name, o.number}
		h, isHanded := handed[k]
		switch {
		case busy[k]:
			o.readyAt = now.Add(busyRetry)
			continue
		case !isHanded || h.Owner == e.session && (e.term == nil || l.leaving != nil):
			l.dirty = l.joined
			e.readAt = now
			e.forget(o)
		case h.Owner == e.session:
			e.forget(o)
			back[l] = append(back[l], e.own(l, o.number, h.Epoch))
		default:
			e.forget(o)
			gone[l] = append(gone[l], o.number)
		}
	}
	for l, gained := range back {
		e.serve(l, gained, now)
	}
	for l, numbers := range gone {
		e.c.log.Info("pgleases: partitions handed over", slog.String("lease", l.name),
			slog.String("partitions", ranges.Short(numbers)))
	}
	for _, name := range leaving {
		if l := e.leases[name]; l != nil && l.leaving != nil {
			l.leaveSent = true
			if len(l.owned) == 0 && !slices.Contains(answer.Left, name) {
				l.dirty, e.readAt = true, now // something was given to it meanwhile
			}
		}
	}
	for _, name := range answer.Left {
		if l := e.leases[name]; l != nil && l.leaving != nil {
			e.unjoined(l)
		}
	}
	e.ask(now, answer.Asking)
}

// holds reports whether there is an ownership that somebody may still work under, be it shown or draining.
func (e *engine) holds() bool {
	for _, l := range e.leases {
		for _, o := range l.owned {
			if !o.ended {
				return true
			}
		}
	}
	return false
}
