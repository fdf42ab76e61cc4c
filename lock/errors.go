package lock

import "errors"

// The errors to test for with errors.Is. What a call returns wraps one of them in a text that names
// the values at hand.
var (
	// ErrHeld is returned by TryAcquire and TryAcquireShared: the lock is not free. The text names the
	// holder, or the first of them, since when it holds the lock, and until when it lives if it falls
	// silent.
	ErrHeld = errors.New("pgleases: lock is held")

	// ErrLost is returned by Guard and Release, and wrapped by the cause of Held.Context: the lock is
	// not held any more. It was lost with the trust in the session, or by a failover that lost the
	// acquisition, or it was released before.
	ErrLost = errors.New("pgleases: lock is lost")
)

// errReleased is the cause of the context of a lock that was released.
var errReleased = errors.New("pgleases: lock was released")
