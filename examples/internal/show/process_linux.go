package show

import "syscall"

// attributes makes the kernel kill a worker, even a frozen one, when the program ends. In a group of
// their own, the workers do not get the terminal's Ctrl-C: the program ends them.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
