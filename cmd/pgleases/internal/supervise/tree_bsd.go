//go:build unix && !linux

package supervise

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Without the features of Linux, a program's descendants are those in its process group.

// bootClock is, on macOS, a clock that runs while the machine sleeps.
const bootClock = unix.CLOCK_MONOTONIC

func adoptOrphans() error { return nil }

func ownGroup(string) (*syscall.SysProcAttr, *os.File) {
	return &syscall.SysProcAttr{Setpgid: true}, nil
}

// treeGone kills the rest of the program's group, and reports whether the group was empty.
func treeGone(pid int) bool { return errors.Is(syscall.Kill(-pid, syscall.SIGKILL), syscall.ESRCH) }

func executable() (string, error) { return os.Executable() }

func newGroup() string { return "" }

func killGroup(string) {}

func removeGroup(string) {}

func eachChild(func(int)) bool { return false }

func searchChildren(func(int)) error { return nil }
