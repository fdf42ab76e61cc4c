package schedule

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/pgleases/pgleases/internal/handlers"
	"github.com/pgleases/pgleases/internal/store"
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

// An identity is what identifies a row that could not be decoded.
type identity struct {
	ID        int64  `json:"id"`
	Name      string `json:"name"`
	Key       string `json:"key"`
	Kind      string `json:"kind"`
	Partition int    `json:"partition"`
}

// unreadableRow returns what identifies a row that could not be decoded.
func unreadableRow(text string, why error) (row, error) {
	var of identity
	if err := json.Unmarshal([]byte(text), &of); err != nil {
		return row{}, unreadable{err}
	}
	return row{ID: of.ID, Name: of.Name, Key: of.Key, Kind: of.Kind, Partition: of.Partition, ill: unreadable{why}}, nil
}

// sendSetAside blocks a schedule or job whose row cannot be read. It does not wait for long for who
// corrects it.
func (d *db) sendSetAside(ctx context.Context, tx *handlers.Transaction, of subject, why error) error {
	err := d.inTime(ctx, d.times.Answer, func(ctx context.Context) error {
		limit, wait := statementLimit.Milliseconds(), d.lockWait(0).Milliseconds()
		if err := tx.QueryRow(ctx, d.statements.Limit, limit, wait).Scan(nil, nil); err != nil {
			return err
		}
		args := []any{of.ID, of.Job, *storableText(why), blockedLeast.Milliseconds(), blockedMost.Milliseconds()}
		return void(ctx, tx, d.statements.SetAside, args...)
	})
	if store.LockTimeout(err) {
		return locked{err}
	}
	return err
}

// showUnreadable shows what identifies a schedule in a text that cannot be decoded, and why not.
func (s *Schedule) showUnreadable(text string, why error) {
	var of identity
	_ = json.Unmarshal([]byte(text), &of) // the fields that can be read are set
	s.ID, s.Partition = of.ID, of.Partition
	s.Name, s.Key = of.Name, of.Key
	s.Kind = of.Kind
	s.State, s.Why = StateBlocked, unreadable{why}.Error()
}

// showUnreadable is that of a Schedule.
func (j *Job) showUnreadable(text string, why error) {
	var of identity
	_ = json.Unmarshal([]byte(text), &of)
	j.ID, j.Kind = of.ID, of.Kind
	j.Name, j.Key = of.Name, of.Key
	j.State, j.Why = StateBlocked, unreadable{why}.Error()
}
