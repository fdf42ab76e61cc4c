package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgleases/pgleases/internal/handlers"
)

// What a handler says counts, whatever it wraps, and whatever failed after it.
func TestVerdictCounts(t *testing.T) {
	t.Parallel()
	refused := &pgconn.PgError{Code: "40001"}
	for _, c := range []struct {
		err  error
		of   Fault
		wait time.Duration
		text string
	}{
		{nil, None, 0, ""},
		{refused, None, 0, refused.Error()},
		{Snooze(time.Minute), Snoozed, time.Minute, "snoozed for 1m0s"},
		{Snooze(-time.Minute), Snoozed, 0, "snoozed for 0s"},
		{Discard(refused), Discarded, 0, refused.Error()},
		{Discard(nil), Discarded, 0, "discarded"},
		{Unavailable(io.EOF), Away, 0, "unavailable: EOF"},
		{Unavailable(nil), Away, 0, "unavailable: the handler gave no error"},
		{fmt.Errorf("mail: %w", Lost(Unavailable(io.EOF))), Away, 0, "mail: unavailable: EOF"},
		{errors.Join(Snooze(time.Second), Discard(io.EOF)), Snoozed, time.Second, "snoozed for 1s\nEOF"},
		{Discard(Snooze(time.Hour)), Discarded, 0, "snoozed for 1h0m0s"},
	} {
		for _, err := range []error{c.err, Copy(c.err)} {
			of, wait := Verdict(err)
			if of != c.of || wait != c.wait || err != nil && err.Error() != c.text {
				t.Errorf("%v: %v, %v; want %v, %v, %q", err, of, wait, c.of, c.wait, c.text)
			}
			if f := Whose(err); c.of != None && (f != c.of || f.Passes() || f.Blameless() || f.Final()) {
				t.Errorf("%v is a fault of %v, want %v", err, f, c.of)
			}
		}
	}
}

// The copy of an error that names a row of a batch names it too, with the text of the cause.
func TestCopyNamesTheRow(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		row  int
		of   Fault
		text string
	}{
		{RowError(3, io.EOF), 3, None, "EOF"},
		{RowError(0, nil), 0, None, "RowError without an error"},
		{fmt.Errorf("mail: %w", RowError(3, Unavailable(io.EOF))), 3, Away, "unavailable: EOF"},
		{Discard(RowError(3, io.EOF)), 3, Discarded, "EOF"},
		{errors.Join(RowError(1, io.EOF), RowError(2, io.ErrClosedPipe)), 1, None, "EOF"},
	} {
		err := Copy(c.err)
		row, named := RowIn(err)
		if of, _ := Verdict(err); row != c.row || !named || of != c.of || err.Error() != c.text {
			t.Errorf("%v: row %d, %v, %v, %q; want %d, %v, %q", c.err, row, named, of, err, c.row, c.of, c.text)
		}
	}
	if row, named := RowIn(Copy(io.EOF)); named {
		t.Errorf("it names row %d", row)
	}
}

// A mine is an error of the application whose methods panic, or end their goroutine, or never return.
type mine struct{ method func() }

func (m mine) Error() string { m.method(); return "" }

// The copy of an error has what is searched for, and none of the methods of the application.
func TestCopyHasNoForeignMethods(t *testing.T) {
	t.Parallel()
	mined := false
	m := mine{func() {
		if mined {
			panic("called after it was copied")
		}
	}}
	own, refused := errors.New("own"), &pgconn.PgError{Code: "23505"}
	err := Copy(errors.Join(m, Discard(m), own, refused, context.Canceled, io.EOF), own)
	mined = true
	_ = err.Error()
	if of, _ := Verdict(err); of != Discarded || errors.As(err, new(mine)) {
		t.Errorf("the copy %#v says %v, or has the original", err, of)
	}
	finds := errors.Is(err, own) && errors.Is(err, context.Canceled) && errors.As(err, new(*pgconn.PgError))
	if !finds || errors.Is(err, io.EOF) {
		t.Errorf("the copy %#v has not what is searched for, or more", err)
	}
}

// Whatever a handler does in place of returning an error, its call ends with one.
func TestCallsEndWithErrors(t *testing.T) {
	t.Parallel()
	for name, does := range map[string]func() error{
		"panic":        func() error { panic("on fire") },
		"error panics": func() error { return Discard(mine{func() { panic("on fire") }}) },
		"FailNow":      func() error { new(testing.T).FailNow(); return nil },
	} {
		err := handlers.Call(func() error { return Copy(does()) })
		if of, _ := Verdict(err); !errors.As(err, new(handlers.CutShort)) || of != None {
			t.Errorf("%s: %v, %v", name, err, of)
		}
	}
}
