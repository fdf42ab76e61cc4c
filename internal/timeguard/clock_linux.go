package timeguard

import (
	"fmt"
	"syscall"
	"unsafe"
)

const clockMonotonic = 1 // CLOCK_MONOTONIC of clock_gettime(2), which package syscall does not name

// Now returns the time of the machine's monotonic clock. All processes share it, and it cannot be
// set. Package time reads the same clock, but exposes only differences within a process.
func Now() Instant {
	var t syscall.Timespec
	_, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockMonotonic, uintptr(unsafe.Pointer(&t)), 0)
	if errno != 0 {
		panic(fmt.Sprintf("timeguard: clock_gettime: %v", errno)) // every Linux has this clock
	}
	return Instant(t.Nano())
}
