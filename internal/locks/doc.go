// Package locks is what a client's session does for package lock: it knows every acquisition by its
// nonce, ends those that are held when they are lost, watches those that wait, gives back what no
// one holds, and sweeps away what expired sessions held.
//
// Package lock takes and releases locks itself, on the application's pool. It calls the methods in
// locks.go from any goroutine. The client's goroutine alone calls those in session.go.
package locks
