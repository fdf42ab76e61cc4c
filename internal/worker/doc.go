// Package worker has what everything shares that works for the application: runs of schedules,
// batches of consumers, locks, and callbacks of leases.
package worker
