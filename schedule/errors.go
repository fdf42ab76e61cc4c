package schedule

import (
	"errors"
	"fmt"
	"time"
)

// The errors to test for with errors.Is. What a call returns wraps one of them in a text that names the values at hand.
var (
	// ErrNotFound is returned by Get, Pause, Resume and Delete: the group has no schedule of this name; by Trigger, Backfill and RetryTick;
	// and by Job, Cancel and Retry.
	ErrNotFound = errors.New("schedule: not found")

	// ErrUnknown is returned by the methods that change a schedule or a job: the connection failed at the commit, so the change may be made,
	// or may not.
	ErrUnknown = errors.New("schedule: it is not known whether this was done")

	// ErrExists is returned by Enqueue, EnqueueTx and Retry: there is a job with this unique key, see Unique.
	ErrExists = errors.New("schedule: a job with this unique key exists")

	// ErrTimeout is the cause of a handler's context that ended because the run took longer than its kind's Timeout.
	ErrTimeout = errors.New("schedule: the run took longer than its timeout")

	// ErrDrained is the cause of a handler's context that ended because the partition is wanted elsewhere, or Run ends, and the run did not end
	// within WithDrain. Nothing of it was committed; it is run again.
	ErrDrained = errors.New("schedule: the run did not end in time for the hand-over")
)

// Discard is an error for handlers to return: the tick is dead at once, whatever Retry says, with the text of err.
func Discard(err error) error {
	if err == nil {
		err = errors.New("discarded")
	}
	return discarded{err}
}

type discarded struct{ error }

func (e discarded) Unwrap() error { return e.error }

// Snooze is an error for handlers to return: nothing of the run is committed, and the tick is run again after d, by the database's clock; what is less than 0
// is 0. That is no failed attempt, and there is no limit of it. Until then the tick counts as under way, see Overlap.
func Snooze(d time.Duration) error { return snoozed(max(0, d)) }

type snoozed time.Duration

func (e snoozed) Error() string { return fmt.Sprintf("schedule: snoozed for %v", time.Duration(e)) }
