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
)

// Ending a client: Close, or a newer process with its ID.

// close begins the client's end, for that reason.
func (e *engine) close(reason error) {
	if e.ending != nil {
		return
	}
	e.ending = reason
	for _, l := range e.leases {
		e.leaveFor(l, reason)
	}
}

// hurry ends the wait for work.
func (e *engine) hurry(cause error) {
	if e.hurried != nil {
		return
	}
	e.hurried = cause
	e.hurryEnd = time.Now().Add(closeGrace)
}

// left reports whether no membership is left.
func (e *engine) left() bool {
	for _, l := range e.leases {
		if l.joined {
			return false
		}
	}
	return len(e.plans) == 0
}

// finished reports whether the client may end: it has left, or what is left cannot be done.
func (e *engine) finished(now time.Time) bool {
	unreachable := e.conn == nil || !e.registered || len(e.troubles["heartbeat"]) > 0
	switch {
	case e.ending == nil:
		return false
	case e.ended:
		return true
	case e.term == nil && unreachable:
		return true
	case e.hurried == nil:
		return false
	case !now.Before(e.hurryEnd) || len(e.troubles["connect"]) > 0:
		return true
	}
	owned, leaving := e.releasing(now)
	return e.running == nil && len(owned)+len(leaving)+len(e.plans) == 0 && !e.left()
}

// finish leaves nothing behind but the answer.
func (e *engine) finish() {
	if e.running != nil {
		e.running.cancel()
		(<-e.results)()
	}
	if e.conn != nil {
		e.conn.Close()
		e.conn, e.listening = nil, false
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(e.leases)) {
		l := e.leases[name]
		if pinned := e.pinned(l); len(pinned) > 0 {
			errs = append(errs, fmt.Errorf("pgleases: close: partitions of lease %q still in work: %s",
				l.name, ranges.Short(pinned)))
		} else if n := len(l.owned); n > 0 {
			errs = append(errs, fmt.Errorf("pgleases: close: %d partitions of lease %q not released: they move when the session expires",
				n, l.name))
		}
		for _, o := range l.owned {
			e.endOwnership(o, e.ending)
		}
		e.endLease(l, e.ending)
	}
	if len(errs) > 0 && e.hurried != nil {
		errs = append(errs, e.hurried)
	}
	e.term = nil
	e.publishStats()
	e.c.closeErr = errors.Join(errs...)
	e.c.err = e.ending
	e.c.log.Info("pgleases: client ended", slog.Any("reason", e.ending))
	close(e.c.done)
}

func (e *engine) opEnd() *operation {
	session := e.session
	return &operation{name: "end the session", limit: e.limit(), run: func(ctx context.Context, c conn) func(error) error {
		ended, err := c.End(ctx, session)
		return func(error) error {
			e.ended = ended
			e.nextBeat = time.Now() // if it is a member still, that tells of what
			return err
		}
	}}
}
