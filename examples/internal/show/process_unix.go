//go:build unix

package show

import "syscall"

// CanFreeze reports whether the system has a signal that freezes a process.
const CanFreeze = true

// AskToEnd sends SIGTERM, as a process manager does.
func (w *Worker) AskToEnd() error { return w.cmd.Process.Signal(syscall.SIGTERM) }

// Freeze stops the process until Thaw, as a machine that is suspended would.
func (w *Worker) Freeze() error { return w.cmd.Process.Signal(syscall.SIGSTOP) }

// Thaw lets it continue.
func (w *Worker) Thaw() error { return w.cmd.Process.Signal(syscall.SIGCONT) }
