package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// boottime is a clock that all processes of the machine read alike, and that runs while the machine sleeps.
func boottime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic(err) // there since Linux 2.6.39
	}
	return time.Duration(ts.Nano())
}

// adoptOrphans makes descendants that lose their parent children of this process.
func adoptOrphans() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("adopt orphans: %w", err)
	}
	return nil
}

// ownGroup starts a process in a group of its own; the kernel kills it when the thread ends that started it.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// treeGone reports whether nothing is left of the program: without children there are no descendants, all orphans being adopted.
func treeGone(int) bool { return true }

// executable is this program, also where its file was replaced.
func executable() (string, error) { return "/proc/self/exe", nil }

// directChildren returns the children of this process, dead ones too, and an error where there may be others. The file `children` would
// leave out some while others end.
func directChildren() (children []int, failed error) {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer proc.Close()
	names, err := proc.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	self := []byte(strconv.Itoa(os.Getpid()))
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + name + "/stat")
		switch {
		case errors.Is(err, os.ErrNotExist), errors.Is(err, syscall.ESRCH), errors.Is(err, os.ErrPermission):
			continue // it is gone, or somebody else's
		case err != nil: // no file is free, for instance
			failed = err
			continue
		}
		// pid (name) state parent ...; the name may contain anything
		fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
		if len(fields) > 1 && bytes.Equal(fields[1], self) {
			children = append(children, pid)
		}
	}
	return children, failed
}
