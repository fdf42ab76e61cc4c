package schedule

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// put creates or edits a schedule, in a transaction.
func (s *Scheduler) put(ctx context.Context, tx pgx.Tx, want *record, rule Rule) error {
	for {
		now, have, err := s.db.sendGet(ctx, tx, want.Name, want.Args)
		if err != nil {
			return err
		}
		same := have != nil && alike(want, have)
		if same && !want.Declared {
			return nil
		}
		r, outcomes := *want, []newEntry(nil)
		if have == nil {
			r.Cursor, r.Anchor = now, now
		} else {
			r.keep(have)
		}
		if have != nil && have.Rule != r.Rule {
			if outcomes, err = r.supersede(have, now); err != nil {
				return err
			}
			// the cursor may be in the future, if the clock was set back
			r.Anchor, r.CursorLocal, r.BlockedSince = now, nil, nil
		}
		r.Registered, r.Due = now, r.next(rule)
		if !same {
			r.Revision++
			// blocked_since stays: the blocked time does not count as lateness
			r.BlockedReason = nil
		}
		written, err := s.db.sendPut(ctx, tx, &r, outcomes)
		if err != nil || written {
			return err
		}
	}
}

// keep copies the fields that the caller does not set.
func (r *record) keep(have *record) {
	r.ID, r.Anchor, r.Cursor, r.CursorLocal, r.Revision, r.PausedAt = have.ID, have.Anchor, have.Cursor, have.CursorLocal, have.Revision, have.PausedAt
	r.BlockedReason, r.BlockedSince, r.Trying, r.Failures = have.BlockedReason, have.BlockedSince, have.Trying, have.Failures
}

// alike reports whether a schedule is already what the caller wants.
func alike(r, have *record) bool {
	return r.Key == have.Key && r.Kind == have.Kind && have.SameArgs && r.Rule == have.Rule && r.Policy == have.Policy && r.Declared == have.Declared
}

var errUnknownRule = errors.New("the ticks of its old rule are not known in this process")

// supersede makes the schedule begin now. Passed ticks of its old rule without an outcome are
// canceled.
func (r *record) supersede(have *record, now time.Time) ([]newEntry, error) {
	r.Trying = nil
	if !now.After(have.Cursor) {
		return nil, nil // the clock was set back
	}
	rule, err := Parse(have.Rule)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUnknownRule, err)
	}
	since, p := have.Cursor, rule.ticksPassed(have.Anchor, have.cursor(), now)
	r.Cursor, r.CursorLocal = now, nil
	if p.Count == 0 {
		return nil, nil
	}
	return []newEntry{{Since: since, Until: p.Last.At, Ticks: p.Count, Outcome: OutcomeCanceled}}, nil
}
