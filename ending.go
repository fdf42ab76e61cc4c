package pgleases

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/pgleases/pgleases/internal/ranges"
	"github.com/pgleases/pgleases/internal/store"
)

// Ending a client: Close, or a newer process with its ID.

// ending is the client's end.
type ending struct {
	reason       error     // nil: it does not end
	lookUp       bool      // the process that superseded it, for the reason's text
	hurried      error     // why Close waits for work no more; nil: it waits
	giveUpAt     time.Time // when to leave behind what could not be released since
	planUntil    time.Time // how long to plan what guarded transactions of others keep; zero: nothing was left over yet
	sessionEnded bool      // in the database
}

// close begins the client's end, for that reason.
func (e *engine) close(reason error) {
	if e.ending.reason != nil {
		return
	}
	e.ending.reason = reason
	for _, m := range e.leases.byName {
		e.leave(m, reason)
	}
	e.askForLocks(reason)
}

// hurry ends the wait for work.
func (e *engine) hurry(cause error) {
	if e.ending.hurried != nil {
		return
	}
	e.ending.hurried = cause
	e.ending.giveUpAt = time.Now().Add(closeGrace)
}

func (e *engine) lookUpDue(time.Time) time.Time { return atOnceIf(e.ending.lookUp) }

// beginLookUp reads which process superseded this one.
func (e *engine) beginLookUp(time.Time) *operation {
	lookUp := func(ctx context.Context, c conn) (*store.Process, error) {
		return c.Superseder(ctx, e.options.clientID)
	}
	return ask(e.limit(), lookUp, func(newer *store.Process, err error) {
		e.ending.lookUp = false
		if err == nil {
			e.ending.reason = e.superseded(newer)
		}
	})
}

// onlySessionRemains reports whether nothing remains to be done in the database but to end the session.
func (e *engine) onlySessionRemains() bool {
	return !e.joinedAny() && !e.locks.remain() && len(e.plans.at)+len(e.leases.unannounced) == 0
}

// joinedAny reports whether the session is a member of a lease.
func (e *engine) joinedAny() bool {
	return e.find(func(m *membership) bool { return m.joined }) != nil
}

// leavesToOthers reports whether a client that ends leaves to the others what a guarded transaction keeps from being given. Most are
// over in no time. It is no member of a lease, so the transaction is none of its own.
func (e *engine) leavesToOthers(now time.Time) bool {
	if e.ending.reason == nil || e.joinedAny() {
		return false
	}
	if e.ending.planUntil.IsZero() {
		e.ending.planUntil = now.Add(closeGrace)
	}
	return !now.Before(e.ending.planUntil)
}

func (e *engine) endDue(time.Time) time.Time {
	return atOnceIf(e.ending.reason != nil && e.onlySessionRemains())
}

func (e *engine) beginEnd(time.Time) *operation {
	session := e.session.number
	end := func(ctx context.Context, c conn) (bool, error) { return c.End(ctx, session) }
	return ask(e.limit(), end, func(ended bool, _ error) {
		e.ending.sessionEnded = ended
		e.session.beatNow() // if it is a member still, that tells of what
	})
}

// finished reports whether the client may end: it has left, or what is left cannot be done.
func (e *engine) finished(now time.Time) bool {
	unreachable := e.connection.conn == nil || !e.session.registered || e.session.beatFailed
	switch {
	case e.ending.reason == nil:
		return false
	case e.ending.sessionEnded:
		return true
	case e.session.validity == nil && unreachable:
		return true
	case e.ending.hurried == nil:
		return false
	case !now.Before(e.ending.giveUpAt) || e.connection.connectFailed:
		return true
	}
	return e.idle() && e.releaseDue(now).After(now) && len(e.plans.at)+len(e.leases.unannounced) == 0 &&
		!e.locks.any(lockReleases) && !e.onlySessionRemains()
}

// idle reports whether no duty is under way.
func (e *engine) idle() bool {
	return e.agenda.running == nil || e.agenda.running.duty == waitForNotifications
}

// finish leaves nothing behind but the answer.
func (e *engine) finish() {
	if e.agenda.running != nil {
		e.agenda.running.cancel()
		(<-e.agenda.results)()
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(e.leases.byName)) {
		m := e.leases.byName[name]
		if pinned := e.inWork(m); len(pinned) > 0 {
			errs = append(errs, fmt.Errorf("pgleases: close: partitions of lease %q still in work: %s", name, ranges.Short(pinned)))
		} else if n := m.assignments.n; n > 0 {
			errs = append(errs, fmt.Errorf("pgleases: close: %d partitions of lease %q not released: they move when the session expires",
				n, name))
		}
	}
	for _, name := range e.finishLocks(e.ending.reason) {
		errs = append(errs, fmt.Errorf("pgleases: close: lock %q not released: it is free when the session expires", name))
	}
	e.endAll(e.ending.reason)
	for _, m := range e.leases.byName {
		e.endMembership(m, e.ending.reason)
	}
	clear(e.leases.draining)
	e.tellEnded()
	if len(errs) > 0 && e.ending.hurried != nil {
		errs = append(errs, e.ending.hurried)
	}
	e.session.validity = nil
	if e.connection.conn != nil { // after the ends of all that is owned
		e.connection.conn.Close()
		e.connection.conn, e.connection.listening = nil, false
	}
	e.publishStats()
	c := e.client
	c.closeErr, c.err = errors.Join(errs...), e.ending.reason
	c.log.Info("pgleases: client ended", slog.Any("reason", e.ending.reason))
	close(c.done)
}
