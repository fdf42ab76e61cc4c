//go:build !linux

package connect

import (
	"syscall"
	"time"
)

// tcpUserTimeout has no effect, because the system has no such option.
func tcpUserTimeout(syscall.RawConn, time.Duration) {}

// tcpSevered always returns false, because it cannot find out.
func tcpSevered(syscall.RawConn) bool { return false }
