package schedule

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/pgleases/pgleases/internal/handlers"
)

// This file treats rows of the tables that this process cannot read, because somebody edited them
// by hand, or a newer version wrote them. Each is left as it is, blocked, and the others go on.

// unreadable is the error of a row that cannot be read.
type unreadable struct{ error }

func (e unreadable) Unwrap() error { return e.error }

func (e unreadable) Error() string {
	return fmt.Sprintf("its row cannot be read: %v; correct the row, or run the version that wrote it", e.error)
}

func isUnreadable(err error) bool { return errors.As(err, new(unreadable)) }

// unreadableRow returns what identifies a row that could not be decoded.
func unreadableRow(text string, why error) (row, error) {
	var of struct {
		ID        int64  `json:"id"`
		Name      string `json:"name"`
		Key       string `json:"key"`
		Kind      string `json:"kind"`
		Partition int    `json:"partition"`
	}
	if err := json.Unmarshal([]byte(text), &of); err != nil {
		return row{}, unreadable{err}
	}
	return row{ID: of.ID, Name: of.Name, Key: of.Key, Kind: of.Kind, Partition: of.Partition, ill: unreadable{why}}, nil
}

// sendSetAside blocks a schedule or job whose row cannot be read.
func (d *db) sendSetAside(ctx context.Context, tx *handlers.Transaction, of subject, why error) error {
	return d.inTime(ctx, d.times.Answer, func(ctx context.Context) error {
		args := []any{of.ID, of.Job, *storableText(why), blockedLeast.Milliseconds(), blockedMost.Milliseconds()}
		return void(ctx, tx, d.statements.SetAside, args...)
	})
}

func (s *Schedule) showUnreadable(err error) { s.State, s.Why = StateBlocked, err.Error() }

func (j *Job) showUnreadable(err error) { j.State, j.Why = StateBlocked, err.Error() }
