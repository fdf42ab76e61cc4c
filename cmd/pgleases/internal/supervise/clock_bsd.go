//go:build unix && !linux && !aix && !netbsd

package supervise

import "golang.org/x/sys/unix"

// bootClock is, on macOS, a clock that runs while the machine sleeps.
const bootClock = unix.CLOCK_MONOTONIC
