// Package worker has what everything shares that works for the application: runs of schedules,
// batches of consumers, locks, and callbacks of leases. These words mean the same everywhere:
//
//   - A slot lets one run or batch be under way, and Slots decide for which kind of work the next
//     one is. A lane is such a kind: healthy, slow or doubted work.
//   - Ill work has met a Reason itself, and has not succeeded since. Slow work is ill work, and also
//     that of doubted groups: it has fewer slots, which is the room that it has.
//   - A place lets one transaction have a connection of the pool while a handler works in it. Places
//     belong to the pool, and all Runs on it wait for them in turn.
//   - A share is what one Run may take of a pool. Its Most is how many slots the Run has.
package worker
