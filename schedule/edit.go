package schedule

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/wrap"
)

// put creates or edits a schedule, in a transaction.
func (s *Scheduler) put(ctx context.Context, tx pgx.Tx, want *scheduleRow, rule Rule) error {
	for {
		now, have, err := s.db.sendGet(ctx, tx, want.Name, want.Args)
		switch {
		case err != nil:
			return err
		case have != nil:
			return s.replace(ctx, tx, have, want, rule, now)
		}
		created, err := s.create(ctx, tx, want, rule, now)
		if err != nil || created {
			return err
		}
	}
}

// create creates a schedule, and reports whether it did. It does not if there is one of its name.
func (s *Scheduler) create(
	ctx context.Context, tx pgx.Tx, want *scheduleRow, rule Rule, now time.Time,
) (created bool, err error) {
	begun := scheduleRow{row: row{Name: want.Name}, Policy: want.Policy, Anchor: now, Cursor: now}
	return s.db.sendCreate(ctx, tx, want, now, begun.next(rule))
}

// putMissing creates a schedule if there is none of its name.
func (s *Scheduler) putMissing(ctx context.Context, tx pgx.Tx, want *scheduleRow, rule Rule) error {
	now, have, err := s.db.sendGet(ctx, tx, want.Name, want.Args)
	if err == nil && have == nil {
		_, err = s.create(ctx, tx, want, rule, now)
	}
	return err
}

// replace edits a schedule that is locked, if it differs from what the caller wants.
func (s *Scheduler) replace(ctx context.Context, tx pgx.Tx, have, want *scheduleRow, rule Rule, now time.Time) error {
	same := alike(want, have)
	if same && !want.Declared {
		return nil
	}
	next, c := *have, canceled{}
	if have.Rule != want.Rule {
		var err error
		c, err = have.supersede(now)
		if err != nil {
			return err
		}
		// the cursor may be in the future, if the clock was set back
		next.Anchor, next.Cursor = now, c.until
		next.CursorLocal, next.Trying = nil, nil
	}
	next.Policy = want.Policy
	return s.db.sendReplace(ctx, tx, have.ID, want, now, next.next(rule), c)
}

// alike reports whether a schedule is already what the caller wants.
func alike(r, have *scheduleRow) bool {
	return r.Key == have.Key && r.Kind == have.Kind && have.SameArgs && r.Rule == have.Rule &&
		r.Policy == have.Policy && r.Declared == have.Declared
}

var errUnknownRule = errors.New("the ticks of its old rule are not known in this process")

// canceled are ticks that an edit cancels.
type canceled struct {
	until time.Time // where the cursor goes
	last  time.Time // the last of these ticks; until if there are none
	ticks int64
}

// supersede returns the passed ticks of a schedule without an outcome, which are canceled when it
// begins now.
func (r *scheduleRow) supersede(now time.Time) (canceled, error) {
	if !now.After(r.Cursor) {
		return canceled{until: r.Cursor, last: r.Cursor}, nil // the clock was set back
	}
	rule, err := Parse(r.Rule)
	if err != nil {
		return canceled{}, wrap.Errorf("%w: %w", errUnknownRule, err)
	}
	p := rule.ticksPassed(r.Anchor, r.cursor(), now)
	if p.Count == 0 {
		return canceled{until: now, last: now}, nil
	}
	return canceled{until: now, last: p.Last.At, ticks: p.Count}, nil
}
