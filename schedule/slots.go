package schedule

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/handlers"
	"github.com/pgleases/pgleases/internal/logqueue"
)

// This file takes and frees slots of kinds with a limit, see WithMaxConcurrent. The queue decides
// which run tries.

// makeSlots creates the slots of a kind, once in a process, and again if no slot was found.
func (e *execution) makeSlots() error {
	k := e.kind
	if k == nil || !k.limits.limited || k.slotsMade.Load() {
		return nil
	}
	err := e.db.briefly(e.o.ctx, func(ctx context.Context, tx pgx.Tx) error { return e.db.sendMakeSlots(ctx, tx, k) })
	if err == nil {
		k.slotsMade.Store(true)
	}
	return err
}

// takeSlot takes a slot: for a run until its transaction ends, for a call outside until freeSlot.
func (e *execution) takeSlot(ctx context.Context, tx *handlers.Transaction, outside bool) (taken bool, err error) {
	if !e.kind.limits.limited {
		return true, nil
	}
	call := &e.id
	if !outside {
		call = nil
	}
	var slot *int
	err = e.db.inTime(ctx, e.db.times.Answer, func(ctx context.Context) error {
		slot, err = e.db.sendTakeSlot(ctx, tx, e.kind, e.o.Partition, call)
		return err
	})
	taken = err == nil && slot != nil
	e.slots = append(e.slots, slot)
	switch {
	case err != nil:
	case taken:
		e.gotSlot(e.kind.name)
	default: // the slots may be missing, if a standby without them was promoted
		e.kind.slotsMade.Store(false)
	}
	return taken, err
}

// freeSlot frees the slot of a call outside of a transaction. It retries until the partition must
// move; the end of the ownership also frees the slot. After an error, the run needs no place.
func (e *execution) freeSlot() {
	if !e.slot {
		return
	}
	life := e.writing()
	var fails logqueue.Condition
	again := func(err error) bool {
		if fails.Begin(time.Now()) {
			e.logger().Warn("schedule: slot not freed, retried", slog.Any("error", err))
		}
		e.parked(e.item.subject)
		return true
	}
	var slot *int // of one attempt; after several, each of them may have taken one
	if len(e.slots) == 1 {
		slot = e.slots[0]
	}
	err := e.db.repeat(life, 1<<30, again, func() error {
		return e.db.within(life, func(ctx context.Context) error {
			return e.db.asking(ctx, func(ctx context.Context, q querier) error {
				return e.db.sendFreeSlot(ctx, q, e.kind.name, slot, e.id)
			})
		})
	})
	if err != nil {
		return
	}
	lasted, log := fails.End(time.Now())
	if log {
		e.logger().Info("schedule: slot freed", slog.Duration("for", lasted))
	}
}

// waitForSlot leaves the schedule or job as it is, with the reason that it is blocked.
func (d *decision) waitForSlot(of runnable, k *kind) {
	r := of.common()
	st := step{Due: r.Due, Trying: r.Trying}
	if s, is := of.(*scheduleRow); is {
		st.Before, st.Cursor = s.Cursor, s.Cursor
		st.CursorLocal = s.CursorLocal
	}
	*d = decision{step: st}
	d.BlockedReason = storableText(fmt.Errorf("the limit of runs of kind %q is reached", k.name))
}
