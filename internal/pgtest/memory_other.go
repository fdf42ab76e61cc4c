//go:build !linux

package pgtest

// MemoryFolder returns "": no other system has a folder in memory for all users.
func MemoryFolder() string { return "" }
