// Package lock has named locks. Of all processes that ask for a name, one at a time gets the lock
// and works under it. You need not register names, and a name that is not used costs nothing, so
// you can take one lock for each webhook or order.
//
//	locks := lock.New(client, pool)
//	err := locks.Do(ctx, "schema-upgrade", func(ctx context.Context) error {
//		return upgrade(ctx) // while this runs, no other process is in a function under this name
//	})
//
// [Locks.Do] waits for its turn. [Locks.TryDo] returns false at once if a live process holds the
// lock. To hold a lock over several functions, call [Locks.Acquire] or [Locks.TryAcquire], and
// [Held.Release] later. [Locks.AcquireShared] is for readers that may work together.
//
// Take a lock for a critical section. If work is divided for a long time under few names, take a
// lease of package pgleases instead. The page docs/locks.md helps you choose.
//
// # How long a lock is held
//
// A lock belongs to the session of a [pgleases.Client], which the client's heartbeats keep alive.
// So a client with a thousand locks sends no more heartbeats than a client without locks. Acquiring
// a lock and releasing it take one round trip each, over the pool of the application.
//
// If the holder crashes, the lock is free a TTL after its last heartbeat. If no other client runs
// at that time, the lock is free when the next client has run for that TTL.
//
// If the holder is cut off or frozen, it loses the lock at its trust deadline, before another
// client can get it. [Held.Context] ends then, and [Held.Guard] refuses. A lost lock never comes
// back.
//
// # Order
//
// Clients get a lock in the order of their requests. A client has at most one request for a name in
// the queue, and its calls of Acquire wait for that request in memory, in their order. So a call
// whose context ends there costs the database nothing. When one of the calls has the lock, the
// client asks for the next one, behind the other clients.
//
// Readers (AcquireShared) and writers wait in the same queue. Readers that are next to each other
// get the lock together, and a reader does not pass a writer that waits. TryAcquire passes no
// client that waits.
//
// A notification wakes the client whose turn has come. If notifications do not arrive, for example
// behind a connection pooler, the client sees its turn at its next heartbeat.
//
// A lock is not reentrant. If a client that holds a lock calls Acquire again, the call waits for
// the client itself, and TryAcquire returns [ErrHeld]. If the call has the context of the work under
// that lock, or one derived from it, Acquire returns ErrHeld at once too.
//
// # What is not promised
//
// A lock cannot stop a process that was frozen from continuing later, when another client has the
// lock, because a process may freeze between a check of its context and a write. So fence the
// writes that must not happen then. In the database of the lock, use [Held.Guard]. Elsewhere, let
// the receiver compare [Held.Token], which rises with each acquisition of a name.
//
// As for leases, two primaries that both accept writes are two databases.
package lock
