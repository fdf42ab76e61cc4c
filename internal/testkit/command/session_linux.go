package command

import "syscall"

// ownSession makes a command begin a session, as a service manager does. Linux shares the processors
// among sessions (sched_autogroup_enabled) before it shares them within one, and each process of a
// PostgreSQL server is a session of its own. In the session of go test, a command would have a small
// part of what is left beside the compiler and all other tests. Because Ctrl-C does not reach the
// session, the command is killed when the tests end.
func ownSession() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
}
