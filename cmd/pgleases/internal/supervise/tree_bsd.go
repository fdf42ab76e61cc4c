//go:build unix && !linux

package supervise

import (
	"errors"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Without the features of Linux, a program's descendants are those in its process group.

// boottime returns the time of a clock that is the same for all processes of the machine. On macOS
// it runs while the machine sleeps.
func boottime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err) // every unix has it
	}
	return time.Duration(ts.Nano())
}

func adoptOrphans() error { return nil }

func ownGroup(string) (*syscall.SysProcAttr, *os.File) {
	return &syscall.SysProcAttr{Setpgid: true}, nil
}

// treeGone kills the rest of the program's group, and reports whether the group was empty.
func treeGone(pid int) bool {
	return errors.Is(syscall.Kill(-pid, syscall.SIGKILL), syscall.ESRCH)
}

func executable() (string, error) { return os.Executable() }

func newGroup() string { return "" }

func killGroup(string) {}

func removeGroup(string) {}

func eachChild(func(int)) bool { return false }

func searchChildren(func(int)) error { return nil }
