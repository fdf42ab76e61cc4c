package show

import "syscall"

// attributes has the kernel kill a worker when the program ends, however it does, even if the
// worker is frozen. In a group of their own the workers do not get the terminal's Ctrl-C: the
// program ends them.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
