package lock

import "errors"

// The errors to test for with errors.Is. A call returns an error that wraps one of them, and whose
// text names the operation and the lock.
var (
	// ErrHeld is returned by TryAcquire and TryAcquireShared if the lock is not free. The text names a
	// client that holds or awaits the lock, since when, and when its session expires without another
	// heartbeat. Every call returns it if ctx comes from work under the same lock, because a lock is
	// not reentrant.
	ErrHeld = errors.New("pgleases: lock is held")

	// ErrLost is returned by Guard and Release, and wrapped by the cause of Held.Context, if the lock
	// is not held any longer. It was lost with the trust in the session, or by a failover that lost
	// the acquisition, or it was released before.
	ErrLost = errors.New("pgleases: lock is lost")
)

// errReleased is the cause of the context of a lock that was released.
var errReleased = errors.New("pgleases: lock was released")
