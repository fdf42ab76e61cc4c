package connect

import (
	"syscall"
	"time"
)

const optionUserTimeout = 18 // TCP_USER_TIMEOUT of tcp(7), which package syscall does not name

// tcpUserTimeout is not required: the client's own clock bounds statements.
func tcpUserTimeout(raw syscall.RawConn, timeout time.Duration) {
	_ = raw.Control(func(fd uintptr) {
		_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, optionUserTimeout, int(timeout.Milliseconds()))
	})
}

const established = 1 // TCP_ESTABLISHED of the kernel, the first byte of TCP_INFO

// tcpSevered reports whether a connection that this side has not closed is no longer established.
func tcpSevered(raw syscall.RawConn) bool {
	severed := false
	_ = raw.Control(func(fd uintptr) {
		// This reads the first four bytes.
		info, err := syscall.GetsockoptInet4Addr(int(fd), syscall.IPPROTO_TCP, syscall.TCP_INFO)
		severed = err == nil && info[0] != established
	})
	return severed
}
