package owned

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

var errLost = errors.New("lost")

// show returns a board that shows n ownerships.
func show(n int) (*Board, []*Ownership) {
	b := NewBoard("orders", Invalid(time.Now()), func() {})
	v := Valid(time.Now(), time.Hour)
	var all []*Ownership
	for i := range n {
		all = append(all, b.Own(v, i, 1))
	}
	b.Show(v, all)
	return b, all
}

func TestValidityThatWasSeenToEndIsNotProlonged(t *testing.T) {
	for name, looks := range map[string]func(*Validity) bool{
		"Holds":     (*Validity).Holds,
		"Remaining": func(v *Validity) bool { return v.Remaining() > 0 },
	} {
		synctest.Test(t, func(t *testing.T) {
			v := Valid(time.Now(), time.Second)
			if time.Sleep(time.Second / 2); !looks(v) || !v.Prolong(time.Now().Add(time.Second)) {
				t.Errorf("%s: it is over too soon", name)
			}
			time.Sleep(time.Second)
			if looks(v) || v.Prolong(time.Now().Add(time.Second)) || looks(v) {
				t.Errorf("%s: after a reader saw its end it continues", name)
			}
		})
	}
}

// All contexts end in one order, and no lock is held meanwhile, because the work under them may
// need it at once.
func TestEndCancelsHoldsFirst(t *testing.T) {
	const partitions, holds = 64, 3
	for name, end := range map[string]func(*Board, []*Ownership){
		"End":      func(b *Board, all []*Ownership) { b.End(all, errLost) },
		"EndHolds": func(b *Board, all []*Ownership) { b.EndHolds(errLost); b.End(all, errLost) },
	} {
		var ends []string
		b, all := show(partitions)
		note := func(what string, cancel context.CancelCauseFunc) context.CancelCauseFunc {
			return func(cause error) {
				if !b.mu.TryLock() {
					t.Errorf("%s: a %s ends under the lock", name, what)
				} else {
					b.mu.Unlock()
				}
				ends = append(ends, what)
				cancel(cause)
			}
		}
		for range holds {
			h := b.Hold(context.Background())
			h.cancel = note("hold", h.cancel)
		}
		for _, o := range all {
			o.Context()
			o.cancel = note("ownership", o.cancel)
		}
		end(b, all)
		want := slices.Concat(slices.Repeat([]string{"hold"}, holds), slices.Repeat([]string{"ownership"}, partitions))
		if !slices.Equal(ends, want) {
			t.Errorf("%s: they end in this order: %v", name, ends)
		}
	}
}

func TestEndOfSomeEndsOnlyTheirHolds(t *testing.T) {
	b, all := show(3)
	before := b.Hold(context.Background())
	b.Show(all[0].Validity, []*Ownership{all[0], all[2]})
	after := b.Hold(context.Background())
	b.End(all[1:2], errLost)
	if before.Context().Err() == nil || after.Context().Err() != nil {
		t.Errorf("of %v and %v the first was to end: %v, %v",
			before.Values(), after.Values(), before.Context().Err(), after.Context().Err())
	}
	for range 2 {
		before.Release()
		after.Release()
	}
	if len(b.holds) > 0 || slices.ContainsFunc(all, (*Ownership).Pinned) {
		t.Errorf("%d holds are left after their release", len(b.holds))
	}
}

func TestEndMakesNoContext(t *testing.T) {
	b, all := show(3)
	asked := all[1].Context()
	b.End(all, errLost)
	if asked.Err() == nil {
		t.Error("the context that was asked for has not ended")
	}
	for _, o := range []*Ownership{all[0], all[2]} {
		if o.ctx != nil {
			t.Errorf("partition %d has a context", o.Number)
		}
		if cause := context.Cause(o.Context()); cause != errLost {
			t.Errorf("asked for afterwards, the context of partition %d has the cause %v", o.Number, cause)
		}
	}
}
