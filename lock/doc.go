// Package lock has named locks: "only one worker executes this". You acquire a lock, work under it,
// and release it. Lock names need no registration.
//
//	locks := lock.New(client, pool)
//	err := locks.Do(ctx, "schema-upgrade", func(ctx context.Context) error { return upgrade(ctx) })
//
// # What holds a lock
//
// Locks belong to the session of a [pgleases.Client], which its heartbeats keep alive: a client
// with a thousand locks sends no more heartbeats than one without locks. Acquiring and releasing go
// over the application's pool, one round trip each. A holder that crashes loses its locks a TTL
// after its last heartbeat; if no client runs then, when the next client has run for that TTL. A
// holder that is cut off or paused loses them earlier, at its trust deadline: Held.Context ends, and
// Guard refuses, before another client gets the lock. A lost lock never comes back.
//
// A lock is a row that is deleted when no client holds it or waits for it. So an unused name takes
// no space: one name for each webhook or order is fine.
//
// # Order
//
// Clients that wait get a lock in the order of their requests. A client has one request for a name
// in the queue. Its calls of Acquire wait for that in memory, in their order, so they cost the
// database nothing when their contexts end. When one of them has the lock, the client asks for the
// next, behind the other clients. Readers (AcquireShared) and writers
// wait in one queue: readers that are next to each other get the lock together, and a reader does
// not pass a writer that waits. TryAcquire passes no client that waits. A notification wakes a
// client whose turn has come; if notifications do not arrive, for example behind a connection
// pooler, the client sees it at its next heartbeat.
//
// A lock is not re-entrant: a client that holds it and calls Acquire again waits for itself, and
// TryAcquire returns ErrHeld.
//
// # What is not promised
//
// A lock cannot stop a frozen process from continuing later, when another client has the lock. The
// process may freeze between a check of the context and a write. Fence writes that must not happen
// then. In the lock's own database, use [Held.Guard]. Elsewhere, compare [Held.Token],
// which rises with each acquisition of a name. As for leases, two primaries that both accept writes
// are two databases.
package lock
