// Package owned is what readers see of a lease: the partitions that a client owns now, and until
// when it may act as their owner. It uses no database, and starts no goroutine that outlives a
// call.
//
// One goroutine writes, the client's: it shows snapshots on a Board, asks for the end of work, and
// ends ownerships. Any number of goroutines read, with a few atomic operations and the clock and
// without a lock, or pin the partitions that they work on.
package owned
