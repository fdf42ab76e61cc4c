//go:build unix

package main

import "syscall"

// canFreeze tells whether there is a signal to freeze a process with.
const canFreeze = true

// askToEnd is what a process manager does.
func (w *worker) askToEnd() error { return w.cmd.Process.Signal(syscall.SIGTERM) }

func (w *worker) freeze() error { return w.cmd.Process.Signal(syscall.SIGSTOP) }

func (w *worker) thaw() error { return w.cmd.Process.Signal(syscall.SIGCONT) }
