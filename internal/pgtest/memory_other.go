//go:build !linux

package pgtest

// memoryFolder: no other system has one for everybody.
func memoryFolder() string { return "" }
