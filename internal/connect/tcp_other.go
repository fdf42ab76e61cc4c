//go:build !linux

package connect

import (
	"syscall"
	"time"
)

// tcpUserTimeout does nothing where there is no such option.
func tcpUserTimeout(syscall.RawConn, time.Duration) {}

// tcpSevered cannot tell.
func tcpSevered(syscall.RawConn) bool { return false }
