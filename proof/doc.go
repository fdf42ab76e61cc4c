// Package proof attacks pgleases through its public API, over real time, with fleets of processes,
// servers that crash, standbys that are promoted, and clocks that are stepped. It is a module of
// its own, so that its dependencies are not dependencies of the library's users.
package proof
