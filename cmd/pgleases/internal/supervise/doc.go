// Package supervise runs a program under a lease, one process for each partition that this process
// owns. It implements `pgleases run`.
//
// In the order of a run: apart_linux.go makes sure that this process gets no children but those
// of the program. supervise.go opens a client and calls Lease.Run. For each partition, child.go
// starts a keeper, and sends it the time until which the ownership can be trusted. keep.go is the
// keeper, a process that starts the program, kills all its processes in time, and reports how
// that went. status.go shows on a Unix socket what this process owns.
//
// tree_linux.go and tree_bsd.go have the code that differs between systems. docs/cli.md says when
// a program may still run beside its successor.
package supervise
