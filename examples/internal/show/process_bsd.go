//go:build unix && !linux

package show

import "syscall"

// attributes puts a worker in a group of its own, without the terminal's Ctrl-C: the program ends
// the workers. When it was killed they find their standard input at its end; and a frozen one's
// group, having become an orphan, is sent SIGHUP and SIGCONT by the system.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
