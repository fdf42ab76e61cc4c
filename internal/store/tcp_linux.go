package store

import (
	"syscall"
	"time"
)

const optionUserTimeout = 18 // TCP_USER_TIMEOUT of tcp(7), which package syscall does not name

// tcpUserTimeout is a help, not a need: statements are bounded by the client's own clock.
func tcpUserTimeout(raw syscall.RawConn, timeout time.Duration) {
	_ = raw.Control(func(fd uintptr) {
		_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, optionUserTimeout, int(timeout.Milliseconds()))
	})
}
