// Package suites runs the test suites that other projects wrote for elections and locks over
// pgleases. Each suite knows nothing of pgleases: a file here maps its interface to a lease, to
// package leader or to package lock.
//
//	go test -count=10 .
//
// It is a module of its own, because the suites bring their projects with them.
package suites
