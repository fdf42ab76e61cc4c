package schedule

import (
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/handlers"
	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/worker"
)

// Test for these errors with errors.Is. A method wraps one of them in an error that names the
// values.
var (
	// ErrNotFound is returned by Get, Pause, Resume, Delete, Trigger and Backfill if the group has no
	// schedule of this name, by Job and Cancel if it has no such job, and by Retry and RetryTick.
	ErrNotFound = errors.New("schedule: not found")

	// ErrUnknown is returned by the methods that change a schedule or a job, if the connection
	// failed during the commit. The change may be made, or not.
	ErrUnknown = errors.New("schedule: the commit may have succeeded or failed")

	// ErrExists is returned by Enqueue, EnqueueTx and Retry if a live job has the unique key, see
	// WithUnique.
	ErrExists = errors.New("schedule: a job with this unique key exists")

	// ErrTimeout is the cause of a handler's context if the run took longer than the WithTimeout of
	// its kind.
	ErrTimeout = errors.New("schedule: the run took longer than its timeout")

	// ErrDrained is the cause of a handler's context if another process asked for the partition, or
	// Run ends, and the run did not end within WithDrainTimeout. The run was not committed; it runs
	// again.
	ErrDrained = errors.New("schedule: the run did not end in time for the handoff")

	// ErrCanceled is the cause of a handler's context if Cancel canceled the job, or Delete deleted
	// the schedule. The run cannot commit, and does not run again.
	ErrCanceled = errors.New("schedule: the job was canceled, or the schedule deleted, during the run")
)

// Discard returns an error for handlers to return. It makes the tick fail at once, whatever
// WithMaxAttempts says. The history gets the text of err.
func Discard(err error) error { return worker.Discard(err) }

// Snooze returns an error for handlers to return. The run is then rolled back, and the tick runs
// again after d, by the database's clock. A negative d is 0. A snooze is not a failed attempt, and
// the number of snoozes has no limit. Until then the tick counts as under way, see WithOverlap.
func Snooze(d time.Duration) error { return worker.Snooze(d) }

// Unavailable returns an error for handlers to return. It says that something they need is away,
// for example a mail server, and the run is not at fault. It is rolled back and runs again, after a
// pause that grows from 100 ms to 1 min, by the database's clock. This is not a failed attempt, and
// their number has no limit. Meanwhile the process tries one run of the kind at a time. Until then
// the tick counts as under way, see WithOverlap.
func Unavailable(err error) error { return worker.Unavailable(err) }

// The functions below classify errors. All SQLSTATEs of the package are here, and in the table of
// package worker.

// The SQLSTATEs that package schedule raises.
const (
	codeDeleted = "PS001"
	codeMoved   = "PS002"
	codeEnded   = "PS003"
)

// conflict reports whether the database broke a transaction off in favor of another.
func conflict(err error) bool { return worker.Whose(err) == worker.Conflict }

// timeIsUp reports whether a run failed because its timeout passed.
func timeIsUp(err error) bool { return errors.As(err, new(timedOut)) }

// passing reports whether a transaction of this package may succeed if it is repeated.
func passing(err error) bool { return worker.Whose(err).Passes() }

// remedied adds to the error of a record that the database refuses what to do about it.
func remedied(err error) error {
	switch {
	case store.Denied(err):
		return fmt.Errorf("%w; give the role what pgleases grants ROLE --for=schedules prints", err)
	case lasts(err):
		return fmt.Errorf("%w; remove what refuses it, such as a trigger on the table history", err)
	}
	return err
}

// moved reports whether an edit came first, or the step was committed before.
func moved(err error) bool {
	code := store.Code(err)
	return code == codeMoved || code == codeDeleted
}

// idled reports whether the server ended a transaction because it was idle.
func idled(err error) bool { return store.Code(err) == "25P03" }

// tookTooLong reports whether the server ended a transaction by its transaction_timeout.
func tookTooLong(err error) bool { return store.Code(err) == "25P04" }

// saidBy returns what the error of a handler says is to happen: see worker.Verdict.
func saidBy(err error) worker.Fault {
	verdict, _ := worker.Verdict(err)
	return verdict
}

// decisive reports whether the handler said what is to happen, so that it counts whatever else
// failed.
func decisive(err error) bool { return saidBy(err) != worker.None }

// final reports whether a failed run must not be repeated: the handler returned Discard, or may
// have committed its work.
func final(err error) bool {
	return saidBy(err) == worker.Discarded || errors.Is(err, handlers.ErrEnded) || store.Code(err) == codeEnded
}

// refusal returns the error of a change, in the words of the database if it refused the change.
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

// locked is the error of a run at its end, if another transaction has locked the schedule's row.
type locked struct{ error }

func (e locked) Unwrap() error { return e.error }

// changedItself is the error of a run if its schedule or job was changed during the run, by the
// handler or by another transaction.
type changedItself struct{ error }

func (e changedItself) Error() string {
	return fmt.Sprintf("the handler changed the schedule or job that it ran for: %v", e.error)
}
func (e changedItself) Unwrap() error { return e.error }

// timedOut is the error of a handler whose timeout passed. It hides the errors that err wraps,
// except what the handler said is to happen.
type timedOut struct{ err error }

func (e timedOut) Unwrap() error { return worker.SaidIn(e.err) }

func (e timedOut) Error() string {
	if e.err == nil {
		return ErrTimeout.Error()
	}
	return fmt.Sprintf("%v: %v", ErrTimeout, e.err)
}

var (
	errCutOff  = errors.New("the process crashed or was cut off during the call")
	errCrashed = errors.New("processes crashed during the run: see WithMaxCrashes")
)

func storableText(err error) *string {
	text := handlers.Storable(err.Error())
	return &text
}

func inASCII(text *string) *string {
	if text == nil {
		return nil
	}
	quoted := handlers.InASCII(*text)
	return &quoted
}

// copied copies an error of the application, see worker.Copy.
func copied(err error) error { return worker.Copy(err, pgleases.ErrNotOwner) }
