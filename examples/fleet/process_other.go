//go:build !unix

package main

import (
	"errors"
	"syscall"
)

// canFreeze tells whether there is a signal to freeze a process with.
const canFreeze = false

func attributes() *syscall.SysProcAttr { return nil }

// askToEnd lets the worker read the end of its standard input: there is no SIGTERM here.
func (w *worker) askToEnd() error { return w.stdin.Close() }

func (w *worker) freeze() error { return errors.ErrUnsupported }

func (w *worker) thaw() error { return errors.ErrUnsupported }
