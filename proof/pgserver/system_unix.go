//go:build unix

package pgserver

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
)

const (
	sigFast      = syscall.SIGINT  // PostgreSQL: end all sessions, write a checkpoint, stop
	sigImmediate = syscall.SIGQUIT // PostgreSQL: stop as in a crash, but clean up shared memory
	sigKill      = syscall.SIGKILL
	sigPause     = syscall.SIGSTOP
	sigResume    = syscall.SIGCONT
)

// signal sends a signal; a process that is gone already is no error.
func signal(pid int, sig syscall.Signal) error {
	if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return os.NewSyscallError("kill", err)
	}
	return nil
}

// tryLock locks the file for as long as it is open in this process; false when another process has the lock.
func tryLock(f *os.File) bool {
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil
}

func rename(from, to string) error { return os.Rename(from, to) }

func ownedByUs(info os.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(stat.Uid) == os.Getuid()
}

// removeSegment removes the shared memory that a killed server left, some 56 bytes. Nothing depends on it.
func removeSegment(id string) {
	if id != "" {
		_ = exec.Command("ipcrm", "-m", id).Run()
	}
}
