//go:build !unix

package pgserver

import (
	"errors"
	"os"
	"syscall"
)

// Systems without PostgreSQL's signals: a server can only be killed there, and what a died process leaves stays.
const (
	sigFast      = syscall.SIGINT
	sigImmediate = syscall.SIGQUIT
	sigKill      = syscall.SIGKILL
	sigPause     = syscall.Signal(-1)
	sigResume    = syscall.Signal(-2)
)

func attributes(*account, syscall.Signal) *syscall.SysProcAttr { return nil }

func signal(pid int, sig syscall.Signal) error {
	if sig == sigPause || sig == sigResume {
		return errors.ErrUnsupported
	}
	p, err := os.FindProcess(pid)
	if err != nil {
		return nil // gone already
	}
	return p.Kill()
}

func tryLock(*os.File) bool { return true }

func rename(string, string) error { return nil } // an open file cannot be renamed; nobody sweeps here

func ownedByUs(os.FileInfo) bool { return false }

func removeSegment(string) {}
