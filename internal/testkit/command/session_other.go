//go:build !linux

package command

import "syscall"

// ownSession changes nothing: see session_linux.go.
func ownSession() *syscall.SysProcAttr { return nil }
