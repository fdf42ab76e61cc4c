//go:build unix && !linux

package pgserver

import (
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// attributes leaves the program in our process group: without a death signal, Ctrl-C should at least reach it.
func attributes(syscall.Signal) *syscall.SysProcAttr { return &syscall.SysProcAttr{} }

// memoryDir: there is none that one could count on.
func memoryDir() string { return "" }

// processTable returns the command lines of all living processes by pid; none where there is no ps.
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
