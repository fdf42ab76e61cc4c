package schedule

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/store"
)

// The errors to test for with errors.Is. What a call returns wraps one of them in a text that names
// the values at hand.
var (
	// ErrNotFound is returned by Get, Pause, Resume and Delete: the group has no schedule of this
	// name; by Trigger, Backfill and RetryTick; and by Job, Cancel and Retry.
	ErrNotFound = errors.New("schedule: not found")

	// ErrUnknown is returned by the methods that change a schedule or a job: the connection failed at
	// the commit, so the change may be made, or may not.
	ErrUnknown = errors.New("schedule: it is not known whether this was done")

	// ErrExists is returned by Enqueue, EnqueueTx and Retry: there is a job with this unique key, see
	// WithUnique.
	ErrExists = errors.New("schedule: a job with this unique key exists")

	// ErrTimeout is the cause of a handler's context that ended because the run took longer than its
	// kind's WithTimeout.
	ErrTimeout = errors.New("schedule: the run took longer than its timeout")

	// ErrDrained is the cause of a handler's context that ended because the partition is wanted
	// elsewhere, or Run ends, and the run did not end within WithDrainTimeout. Nothing of it was
	// committed; it runs again.
	ErrDrained = errors.New("schedule: the run did not end in time for the handoff")
)

// Discard is an error for handlers to return: the tick failed at once, whatever WithMaxAttempts
// says, with the text of err.
func Discard(err error) error {
	return discarded{cmp.Or(err, errors.New("discarded"))}
}

type discarded struct{ error }

func (e discarded) Unwrap() error { return e.error }

// Snooze is an error for handlers to return: nothing of the run is committed, and the tick runs
// again after d, by the database's clock; a negative d is 0. A snooze is no failed attempt, and
// there is no limit of snoozes. Until then the tick counts as under way, see WithOverlap.
func Snooze(d time.Duration) error { return snoozed(max(0, d)) }

type snoozed time.Duration

func (e snoozed) Error() string { return fmt.Sprintf("schedule: snoozed for %v", time.Duration(e)) }

// What follows says what an error means: the SQLSTATEs are here, and nowhere else.

// The SQLSTATEs that package schedule raises.
const (
	codeDeleted = "PS001"
	codeMoved   = "PS002"
	codeEnded   = "PS003"
)

// conflict reports whether the database broke a transaction off in favor of another.
func conflict(err error) bool {
	code := store.Code(err)
	return code == "40001" || code == "40P01"
}

// broken reports whether a transaction failed for a reason that is not its own: the connection, the
// server, a lock.
func broken(err error) bool {
	switch {
	case errors.As(err, new(timedOut)):
		return false // its connection was closed for that
	case errors.As(err, new(lost)):
		return true
	}
	code := store.Code(err)
	return code == "55P03" || strings.HasPrefix(code, "08") || strings.HasPrefix(code, "57P0")
}

// passing reports whether a transaction of ours may succeed when it is repeated; also if an
// administrator, or the role's statement_timeout, has canceled a statement.
func passing(err error) bool { return conflict(err) || broken(err) || store.Code(err) == "57014" }

// moved reports whether an edit came first, or the step had been committed before.
func moved(err error) bool {
	code := store.Code(err)
	return code == codeMoved || code == codeDeleted
}

// idled reports whether the server ended a transaction because it was idle.
func idled(err error) bool { return store.Code(err) == "25P03" }

// tookTooLong reports whether the server ended a transaction by its transaction_timeout.
func tookTooLong(err error) bool { return store.Code(err) == "25P04" }

// decisive reports whether a handler said what is to become of its tick, whatever led to that.
func decisive(err error) bool { return errors.As(err, new(snoozed)) || errors.As(err, new(discarded)) }

// final reports whether a run that failed so is not to be tried again: the handler said so, or may
// have committed its work.
func final(err error) bool {
	return errors.As(err, new(discarded)) || errors.Is(err, errEnded) || store.Code(err) == codeEnded
}

// refusedCommit reports whether the server has answered a COMMIT, and made nothing of it: any other
// error is of a connection that ends.
func refusedCommit(err error) bool {
	var refused *pgconn.PgError
	return errors.As(err, &refused) && (refused.SeverityUnlocalized == "ERROR" || idled(err) || tookTooLong(err))
}

// refusal is the error of a change that the database refuses.
func refusal(err error) error {
	var refused *pgconn.PgError
	if !errors.As(err, &refused) {
		return err
	}
	text := refused.Message
	if refused.Hint != "" {
		text += ": " + refused.Hint
	}
	switch refused.Code {
	case "42704":
		return fmt.Errorf("%w: %s", ErrNotFound, text)
	case "23505":
		return fmt.Errorf("%w: %s", ErrExists, text)
	case "55000", "22023":
		return errors.New(text)
	}
	return err
}

// lost is an error of a transaction whose connection is gone.
type lost struct{ error }

func (e lost) Unwrap() error { return e.error }

// locked is an error of the end of a run: another transaction has the schedule's row locked.
type locked struct{ error }

func (e locked) Unwrap() error { return e.error }

// changedItself is an error of a run whose schedule or job had been changed at its end: by its
// handler, or by another transaction.
type changedItself struct{ error }

func (e changedItself) Error() string {
	return fmt.Sprintf("the handler changed the schedule or job that it ran for: %v", e.error)
}
func (e changedItself) Unwrap() error { return e.error }

// timedOut is a handler's error if its time is over. What is wrapped in it is no other fault.
type timedOut struct{ err error }

func (e timedOut) Error() string {
	if e.err == nil {
		return ErrTimeout.Error()
	}
	return fmt.Sprintf("%v: %v", ErrTimeout, e.err)
}

var (
	errEnded   = errors.New("the handler ended its transaction itself: what it did there before stands, if it committed it")
	errCrashed = errors.New("processes crashed while it ran: see WithMaxCrashes")
)

// maxText is how many bytes of an error's text are kept.
const maxText = 64 << 10

// storable is a text as the database can keep it: UTF-8 without a NUL, and not of any length.
func storable(text string) string {
	text = strings.ToValidUTF8(text[:min(len(text), maxText)], "\uFFFD")
	return strings.ReplaceAll(text, "\x00", "\uFFFD")
}

func storableText(err error) *string {
	text := storable(err.Error())
	return &text
}

func inASCII(text *string) *string {
	if text == nil || !strings.ContainsFunc(*text, func(r rune) bool { return r >= utf8.RuneSelf }) {
		return text
	}
	quoted := strconv.QuoteToASCII(*text)
	return &quoted
}

// userError returns an error of the application's that has none of its methods: their panics end
// here, which are caught, for example of a nil pointer in an interface. It has the text, and what
// this package looks for of what err wraps, as far as that is found.
func userError(err error) error {
	if err == nil {
		return nil
	}
	f := flattened{text: storable(err.Error())}
	for left, n := []error{err}, 0; len(left) > 0 && n < 1000; n++ { // an error may wrap itself
		e := left[0]
		f.keep(e)
		left = append(left[1:], unwrapped(e)...)
	}
	return f
}

// keep keeps of an error what this package looks for. The first verdict counts.
func (f *flattened) keep(err error) {
	switch w := err.(type) {
	case snoozed:
		if !decisive(f) {
			f.of = append(f.of, w)
		}
	case discarded:
		if !decisive(f) {
			f.of = append(f.of, discarded{})
		}
	case *pgconn.PgError:
		if w != nil {
			f.of = append(f.of, w)
		}
	}
	if err == pgleases.ErrNotOwner || err == context.DeadlineExceeded || err == context.Canceled {
		f.of = append(f.of, err)
	}
}

func unwrapped(err error) []error {
	switch w := err.(type) {
	case *pgconn.ConnectError: // the handler did not set that deadline
	case interface{ Unwrap() error }:
		return []error{w.Unwrap()}
	case interface{ Unwrap() []error }:
		return w.Unwrap()
	}
	return nil
}

type flattened struct {
	text string
	of   []error
}

func (f flattened) Error() string   { return f.text }
func (f flattened) Unwrap() []error { return f.of }

// caught makes a panic of the application's code an error of it, because in no other run of the
// process anything is wrong.
func caught(err *error) {
	if p := recover(); p != nil {
		stack := debug.Stack()
		*err = errors.New(storable(fmt.Sprintf("panic: %T\n%s", p, stack)))
		defer func() { _ = recover() }() // the value may panic again when it is printed
		*err = errors.New(storable(fmt.Sprintf("panic: %v\n%s", p, stack)))
	}
}
