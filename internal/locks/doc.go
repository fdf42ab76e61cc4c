// Package locks is the part of a client's session that serves package lock. It knows every
// acquisition by its nonce, ends held locks when they are lost, and watches acquisitions that wait.
// It releases rows without a holder, and removes the rows of expired sessions.
//
// Package lock acquires and releases locks itself, on the application's pool. It calls the methods
// in locks.go from any goroutine. Only the client's goroutine calls the methods in session.go.
package locks
