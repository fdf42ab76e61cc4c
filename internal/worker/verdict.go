package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgleases/pgleases/internal/handlers"
)

// A verdict is an error with which a handler says what is to happen, other than that it has failed.
// It counts whatever the error wraps, and whatever happened to the transaction.
type verdict struct {
	of    Fault
	wait  time.Duration // of Snoozed
	cause error         // not of Snoozed
}

func (v verdict) Error() string {
	switch v.of {
	case Snoozed:
		return fmt.Sprintf("snoozed for %v", v.wait)
	case Away:
		return fmt.Sprintf("unavailable: %v", v.cause)
	}
	return v.cause.Error()
}

func (v verdict) Unwrap() error { return v.cause }

// Snooze returns an error for handlers to return: not now, but after d. A negative d is 0.
func Snooze(d time.Duration) error { return verdict{of: Snoozed, wait: max(0, d)} }

// Discard returns an error for handlers to return: it has failed, and another attempt would fail
// too.
func Discard(err error) error {
	return verdict{of: Discarded, cause: cmp.Or(err, errors.New("discarded"))}
}

// Unavailable returns an error for handlers to return: something that they need is away.
func Unavailable(err error) error {
	return verdict{of: Away, cause: cmp.Or(err, errors.New("the handler gave no error"))}
}

// A rowError says which row of a batch is the cause.
type rowError struct {
	row int
	err error
}

func (e *rowError) Error() string { return fmt.Sprintf("row %d of the batch: %v", e.row, e.err) }
func (e *rowError) Unwrap() error { return e.err }

// RowError returns an error for handlers of a batch to return: a row of it is the cause.
func RowError(row int, err error) error {
	return &rowError{row, cmp.Or(err, errors.New("RowError without an error"))}
}

// RowIn returns which row an error names, if it names one.
func RowIn(err error) (row int, named bool) {
	var e *rowError
	if !errors.As(err, &e) {
		return 0, false
	}
	return e.row, true
}

// Verdict returns what the error of a handler says is to happen: Snoozed, with how long to wait,
// Discarded or Away. It is None if the error says nothing, so that the handler has failed.
func Verdict(err error) (of Fault, wait time.Duration) {
	var v verdict
	errors.As(err, &v)
	return v.of, v.wait
}

// SaidIn returns the verdict that an error wraps, alone; nil if there is none.
func SaidIn(err error) error {
	var v verdict
	if !errors.As(err, &v) {
		return nil
	}
	return v
}

// Copy copies an error of the application without its methods, which may panic later. The copy has
// the text, and of the errors that it wraps those that code of this module searches for: a verdict or
// a row, of which the first counts, an error of the server, the end of a context, and the others.
// If it names a row, the text is that of its cause. Copy itself may panic, see handlers.Call.
func Copy(err error, others ...error) error {
	if err == nil {
		return nil
	}
	c := handlers.Copied{Text: handlers.Storable(err.Error())}
	for left, n := []error{err}, 0; len(left) > 0 && n < 1000; n++ { // an error may wrap itself
		keep(&c, left[0], others)
		left = append(left[1:], wrapped(left[0])...)
	}
	return c
}

// keep adds to a copy what this module searches for in an error.
func keep(c *handlers.Copied, err error, others []error) {
	switch e := err.(type) {
	case verdict:
		v, _ := Verdict(*c)
		if v == None {
			c.Of = append(c.Of, verdict{e.of, e.wait, errors.New("")}) // without the methods of its cause
		}
	case *rowError:
		if _, named := RowIn(*c); !named {
			c.Of = append(c.Of, &rowError{e.row, errors.New("")})
			c.Text = handlers.Storable(e.err.Error())
		}
	case *pgconn.PgError:
		if e != nil {
			c.Of = append(c.Of, e)
		}
	}
	sought := append([]error{context.DeadlineExceeded, context.Canceled}, others...)
	if slices.ContainsFunc(sought, func(other error) bool { return other == err }) {
		c.Of = append(c.Of, err)
	}
}

func wrapped(err error) []error {
	switch w := err.(type) {
	case *pgconn.ConnectError: // its deadline was not set by the handler
	case interface{ Unwrap() error }:
		return []error{w.Unwrap()}
	case interface{ Unwrap() []error }:
		return w.Unwrap()
	}
	return nil
}
