//go:build !unix

package show

import (
	"errors"
	"syscall"
)

// CanFreeze reports whether the system has a signal that freezes a process.
const CanFreeze = false

func attributes() *syscall.SysProcAttr { return nil }

// AskToEnd lets the worker read the end of its standard input: there is no SIGTERM here.
func (w *Worker) AskToEnd() error { return w.stdin.Close() }

// Freeze stops the process until Thaw, as a machine that is suspended would.
func (w *Worker) Freeze() error { return errors.ErrUnsupported }

// Thaw lets it continue.
func (w *Worker) Thaw() error { return errors.ErrUnsupported }
