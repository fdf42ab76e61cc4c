package pgserver

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

func attributes(death syscall.Signal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{
		Pdeathsig: death,
		// A process group of its own. Ctrl-C at a terminal goes to this process, which then stops
		// the server. If this process ends while the server is stopped by a signal, the group
		// becomes an orphan, and the kernel continues it. So the server receives the death signal.
		Setpgid: true,
	}
}

// processTable returns the command lines of all live processes by pid. Zombies have no command
// line.
func processTable() map[int]string {
	table := make(map[int]string)
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range files {
		line, err := os.ReadFile(file)
		if err != nil || len(line) == 0 {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil {
			table[pid] = string(bytes.ReplaceAll(line, []byte{0}, []byte{' '}))
		}
	}
	return table
}
