package schedule

import "errors"

// The errors to test for with errors.Is. What a call returns wraps one of them in a text that names the values at hand.
var (
	// ErrNotFound is returned by Get, Pause, Resume and Delete: the group has no schedule of this name.
	ErrNotFound = errors.New("schedule: not found")

	// ErrTimeout is the cause of a handler's context that ended because the run took longer than its kind's Timeout.
	ErrTimeout = errors.New("schedule: the run took longer than its timeout")

	// ErrDrained is the cause of a handler's context that ended because the partition is wanted elsewhere, or Run ends, and the run did not end
	// within WithDrain. Nothing of it was committed; it is run again.
	ErrDrained = errors.New("schedule: the run did not end in time for the hand-over")
)
