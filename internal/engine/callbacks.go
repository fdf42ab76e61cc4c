package engine

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
)

// callbacks are the functions of the application that run in Within, whose end a Close waits for,
// and that may call Close themselves, by the number of their goroutine.
type callbacks struct{ running sync.Map }

// Within runs a callback of the application. If the callback calls Close, Close does not wait for
// the callback's end.
func (c *Client) Within(callback string, f func()) {
	number := goroutine()
	c.callbacks.running.Store(number, callback)
	defer c.callbacks.running.Delete(number)
	f()
}

// of returns why a Close cannot wait in this goroutine; nil: it is no callback's.
func (cs *callbacks) of() error {
	callback, inside := cs.running.Load(goroutine())
	if !inside {
		return nil
	}
	return fmt.Errorf("pgleases: close: it was called in %s, which it would wait for; "+
		"the client ends when the callback has returned", callback)
}

// goroutine returns the number of the calling goroutine, from the first line of its stack.
func goroutine() string {
	var line [64]byte
	text := string(line[:runtime.Stack(line[:], false)]) // goroutine 17 [running]:
	number, _, _ := strings.Cut(text, " [")
	return number
}
