//go:build !linux

package pgtest

// memoryFolder returns "": no other system has a folder in memory for all users.
func memoryFolder() string { return "" }
