// Package lock has named locks: "only one worker executes this". A lock is taken, worked under, and
// released; nobody has to say beforehand which names there are.
//
//	locks := lock.New(client, pool)
//	err := locks.Do(ctx, "schema-upgrade", func(ctx context.Context) error { return upgrade(ctx) })
//
// # What holds a lock
//
// Locks belong to the session of a [pgleases.Client], which its heartbeats keep alive: a thousand
// locks cost no more heartbeats than none. Taking and releasing one goes over the application's
// pool, a round trip each. A holder that crashes loses its locks a TTL after its last heartbeat.
// One that is cut off or paused loses them by itself before that, at its trust deadline:
// Held.Context ends, and Guard refuses, before anybody else gets the lock. A lock that was lost
// never comes back.
//
// A lock is a row that goes away when nobody holds or awaits it. So names cost nothing once they
// are not used: one for each webhook or order is fine.
//
// # Order
//
// Those that wait get a lock in the order in which they came, readers (AcquireShared) and writers
// in one queue: readers that stand together get it together, and none passes a writer that waits.
// TryAcquire passes nobody who waits. Who waits is told by a notification; where those do not
// arrive, as behind a connection pooler, at its next heartbeat.
//
// A lock is not re-entrant: a client that holds one and asks for it again waits for itself, or is
// told ErrHeld.
//
// # What is not promised
//
// No lock keeps a process that froze from going on a moment later, when another has the lock: it
// may stop between looking at the context and writing. What must not happen then is fenced by
// [Held.Guard], in the database of the lock, or by [Held.Token], which rises with each acquisition
// of a name, where another system compares it. As for leases, two primaries that both accept writes
// are two databases.
package lock
