//go:build unix && !linux && !aix

package supervise

import (
	"errors"
	"os"
	"syscall"
)

// Without the features of Linux, a program's descendants are those in its process group.

func adoptOrphans() error { return nil }

func keeperAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

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

func childrenNow() []int { return nil }

func named([]int) string { return "of its process group" }

// runApart does nothing: this process has no other children than its own.
func runApart() (code int, apart bool, err error) { return 0, false, nil }
