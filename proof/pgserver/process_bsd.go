//go:build unix && !linux

package pgserver

import (
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// attributes leaves the program in this process's group: without a death signal, at least Ctrl-C
// should reach it.
func attributes(syscall.Signal) *syscall.SysProcAttr { return &syscall.SysProcAttr{} }

// processTable returns the command lines of all live processes by pid. It is empty if there is no
// ps.
func processTable() map[int]string {
	table := make(map[int]string)
	out, err := exec.Command("ps", "-axww", "-o", "pid=,command=").Output()
	if err != nil {
		return table
	}
	for line := range strings.Lines(string(out)) {
		number, command, _ := strings.Cut(strings.TrimSpace(line), " ")
		if pid, err := strconv.Atoi(number); err == nil {
			table[pid] = strings.TrimSpace(command)
		}
	}
	return table
}
