// Package interleavings plays the statements of the protocol against each other in every order.
//
// Two sessions on a real server each run one operation, for example a plan and a release. Each
// operation is a list of statements, as internal/store sends them, in the transactions in which it
// sends them. A driver lets one session go on at a time, as PostgreSQL's isolation tester does. A
// session stops when a statement ends, before its commit, at the end of each locking or writing
// statement inside a function of the schema, and when it waits for a lock of the other session.
// The driver plays every order of these steps. After each commit an oracle compares the tables with
// what they were before, and after each order it lets time pass, and everything must get an owner.
//
// Functions have no ends of statements that a driver could see. So the tests run the schema with
// gates in it, see gates.go: at a gate a session waits for an advisory lock that the driver holds.
//
// To run it, with all pairs:
//
//	CI=true go test -v ./interleavings
package interleavings
