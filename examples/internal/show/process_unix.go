//go:build unix

package show

import "syscall"

// CanFreeze tells whether there is a signal to freeze a process with.
const CanFreeze = true

// AskToEnd is what a process manager does.
func (w *Worker) AskToEnd() error { return w.cmd.Process.Signal(syscall.SIGTERM) }

// Freeze stops the process until Thaw, as a machine that is suspended would.
func (w *Worker) Freeze() error { return w.cmd.Process.Signal(syscall.SIGSTOP) }

// Thaw has it go on.
func (w *Worker) Thaw() error { return w.cmd.Process.Signal(syscall.SIGCONT) }
