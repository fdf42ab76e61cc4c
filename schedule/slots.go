package schedule

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// This file keeps the limits of kinds: what a run does to have a slot, and when the planner has one try. See Limit.

// scarce is a kind of which a run found no slot. It is the planner's goroutine's.
type scarce struct {
	tried  time.Time        // when one last found none
	until  time.Time        // then one tries anyway
	tries  int              // how many may try now, since slots became free
	marked map[subject]bool // schedules that were told to wait: the time from there on makes none late
}

// admits reports whether an item may try to begin as far as its kind's limit goes; if not, after which time one may.
func (p *planner) admits(it item, now time.Time) (ok bool, wait time.Duration) {
	k := p.s.kind(it.Kind)
	if k == nil || !k.limits.limited {
		return true, 0
	}
	s := p.scarce[it.Kind]
	switch {
	case !it.Job && (s == nil || !s.marked[it.subject]): // or its tick would be late for it
		return true, 0
	case p.hasAll(it.Kind):
		return false, p.s.lookEvery
	case s == nil || s.tries > 0 || !now.Before(s.until):
		return true, 0
	}
	return false, s.until.Sub(now)
}

// hasAll reports whether as many of a kind run in this process as may at once.
func (p *planner) hasAll(kind string) bool {
	k := p.s.kind(kind)
	return k != nil && k.limits.limited && p.ofKind[kind] >= k.limits.atOnce
}

// admitted notes that an item tries to begin.
func (p *planner) admitted(it item, now time.Time) {
	p.ofKind[it.Kind]++
	switch s := p.scarce[it.Kind]; {
	case s == nil:
	case s.tries > 0:
		s.tries--
	case !now.Before(s.until):
		s.until = now.Add(p.s.lookEvery)
	}
}

// slotless notes at the end of a run whether it had found no slot.
func (p *planner) slotless(f finish, now time.Time) {
	if p.ofKind[f.Kind]--; p.ofKind[f.Kind] == 0 {
		delete(p.ofKind, f.Kind)
	}
	found := f.again == nil || !f.again.slotless
	s := p.scarce[f.Kind]
	switch {
	case found && s != nil:
		s.tries = min(s.tries+1, p.s.mostRunning()) // what it had is free
	case !found && s == nil:
		s = &scarce{until: now.Add(p.s.lookEvery), marked: make(map[subject]bool)}
		p.scarce[f.Kind], p.hides = s, p.crowded
		fallthrough
	case !found:
		s.tried = now
		if !f.Job {
			s.marked[f.subject] = true
		}
	}
}

// slotWaits returns the kinds of which as much is queued as may begin next, or some, and waits for a slot: others have them all, or this process has.
func (p *planner) slotWaits() (kinds []string) {
	waiting := make(map[string]int)
	for _, q := range p.queues {
		for _, it := range q {
			if p.scarce[it.Kind] == nil && !p.hasAll(it.Kind) {
				continue
			}
			if waiting[it.Kind]++; waiting[it.Kind] == min(p.s.kind(it.Kind).limits.atOnce, lookLeast) {
				kinds = append(kinds, it.Kind)
			}
		}
	}
	return kinds
}

// withKept returns what was found, and what is queued of the keys and kinds that were left out.
func (p *planner) withKept(l *look) []item {
	if len(l.but) == 0 && len(l.butKinds) == 0 {
		return l.due
	}
	due := slices.Clone(l.due)
	for _, q := range p.queues {
		for _, it := range q {
			if _, passed := l.passed[it.Key]; passed || slices.Contains(l.butKinds, it.Kind) {
				due = append(due, it)
			}
		}
	}
	slices.SortStableFunc(due, func(a, b item) int { return a.due().Compare(b.due()) })
	return due
}

// slotted has another of the kind try, where one has got a slot. It is safe for concurrent use.
func (p *planner) slotted(kind string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gained[kind]++
	select {
	case p.stir <- struct{}{}:
	default:
	}
}

// regain takes what slotted has noted.
func (p *planner) regain() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for kind, n := range p.gained {
		if s := p.scarce[kind]; s != nil {
			s.tries = min(s.tries+n, p.s.mostRunning())
		}
	}
	clear(p.gained)
}

// forget forgets the kinds of which nothing has tried for a while: nothing waits for a slot, or for something else.
func (p *planner) forget() {
	maps.DeleteFunc(p.scarce, func(_ string, s *scarce) bool { return time.Since(s.tried) >= 2*p.s.lookEvery+time.Second })
}

// takeSlot takes a slot for a run in its transaction, and for a call outside until freeSlot; where none is free the run waits.
func (p *planner) takeSlot(ctx context.Context, o *ownership, tx *transaction, k *kind, run string, outside bool) (taken bool, err error) {
	if !k.limits.limited {
		return true, nil
	}
	call := &run
	if !outside {
		call = nil
	}
	err = p.s.within(ctx, func(ctx context.Context) error {
		taken, err = p.s.sendTake(ctx, tx, k, o.Partition, call)
		return err
	})
	switch {
	case err != nil:
	case taken:
		p.slotted(k.name)
	default: // perhaps as there are none any more: a standby was promoted that had not heard of them
		k.slotsMade.Store(false)
	}
	return taken, err
}

// freeSlot frees the slot of a call outside of a transaction. It tries until the ownership ends, which frees it too.
func (p *planner) freeSlot(o *ownership, kind, run string) {
	_ = p.s.repeat(o.life, 1<<30, func(error) bool { return true }, func() error {
		return p.s.within(o.life, func(ctx context.Context) error { return p.s.sendFree(ctx, p.s.pool, kind, run) })
	})
}

// makeSlots makes the slots of a kind, once in a process, and again where none was found.
func (p *planner) makeSlots(ctx context.Context, k *kind) error {
	if k == nil || !k.limits.limited || k.slotsMade.Load() {
		return nil
	}
	err := p.s.within(ctx, func(ctx context.Context) error {
		return p.s.inTx(ctx, func(tx pgx.Tx) error { return p.s.sendMakeSlots(ctx, tx, k) })
	})
	if err == nil {
		k.slotsMade.Store(true)
	}
	return err
}

// waitForSlot leaves everything as it is, and says why.
func (d *decision) waitForSlot(r *record, k *kind) {
	*d = decision{step: step{Cursor: r.Cursor, CursorLocal: r.CursorLocal, Due: r.Due, Trying: r.Trying}}
	d.Waits = kept(fmt.Errorf("as many runs of kind %q are under way as its limit allows", k.name))
}
