// Package worker has what everything shares that calls handlers of the application: schedulers and
// consumers.
package worker
