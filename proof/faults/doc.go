// Package faults breaks things around clients. It runs clients in processes of their own and kills
// and freezes them ([Process]). It freezes and delays their connections ([Proxy]). It exposes a
// [Fleet] of them to a random stream of faults from a table, while package oracle watches.
// [Effects] writes under Guard, and tries to write as a zombie, a process that acts under an
// ownership that has ended.
package faults
