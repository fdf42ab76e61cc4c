package handlers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"runtime/debug"
	"strings"
	"sync"
	"time"
)

// Call calls the application's code in a goroutine of its own, which that may end. Its panics are
// caught, because the other calls of the process are not affected.
func Call(f func() error) error { return <-start(f) }

func start(f func() error) <-chan error {
	ended := make(chan error, 1)
	go func() {
		err := error(CutShort{errors.New("the code of the application ended its goroutine with runtime.Goexit, as the FailNow of a test does")})
		defer func() { ended <- err }()
		defer Caught(&err)
		err = f()
	}()
	return ended
}

// ErrHangs is returned by Within.
var ErrHangs = errors.New("code of the application, such as a tracer or a hook of the pool, did not return when its context had ended; " +
	"make it end with its context")

// Within is Call for what ends with ctx, unless code of the application hangs in it. If it still
// runs when grace has passed after the end of ctx, Within leaves it behind, and returns ErrHangs.
// So what f writes must not be read after an error.
func Within(ctx context.Context, grace time.Duration, f func() error) error {
	late := make(chan struct{})
	defer Watch(ctx, grace, func() { close(late) })()
	select {
	case err := <-start(f):
		return err
	case <-late:
		return ErrHangs
	}
}

// Watch calls late if work continues for longer than grace after its context has ended. The caller
// calls ended when the work has ended.
func Watch(ctx context.Context, grace time.Duration, late func()) (ended func()) {
	over := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-over:
		case <-time.After(grace):
			late()
		}
	})
	return func() { stop(); close(over) }
}

// Around calls a handler by way of the application's code around it. That gets a function that
// calls the handler, and must call it once.
func Around(around func(next func(context.Context) error) error, handler func(context.Context) error) error {
	var mu sync.Mutex // guards the following variables
	called, result := false, errNotCalled
	err := around(func(ctx context.Context) error {
		mu.Lock()
		again := called
		called = true
		mu.Unlock()
		if again {
			return errCalledAgain
		}
		err := handler(ctx)
		mu.Lock()
		defer mu.Unlock()
		result = err
		return err
	})
	mu.Lock()
	defer mu.Unlock()
	return cmp.Or(err, result)
}

var (
	errNotCalled   = errors.New("the function of WithAround returned before it had called the handler: call next once, and wait for it")
	errCalledAgain = errors.New("the function of WithAround has called the handler before: call next once")
)

// CutShort is the error of a handler that did not return: it panicked, or ended its goroutine.
type CutShort struct{ error }

// panicking matches the frames of a stack above those of the code that panicked.
var panicking = regexp.MustCompile(`(?s)^.*?\npanic\(.*?\n.*?\n`)

// Caught turns a panic of the application's code into an error.
func Caught(err *error) {
	if p := recover(); p != nil {
		stack := panicking.ReplaceAll(debug.Stack(), nil)
		*err = CutShort{errors.New(Storable(fmt.Sprintf("panic: %T\n%s", p, stack)))}
		defer func() { _ = recover() }() // the value may panic again when it is printed
		*err = CutShort{errors.New(Storable(fmt.Sprintf("panic: %v\n%s", p, stack)))}
	}
}

// maxText is how many bytes of an error's text are stored.
const maxText = 64 << 10

// Storable returns a text that the database can store: UTF-8 without NUL, of limited length.
func Storable(text string) string {
	text = strings.ToValidUTF8(text[:min(len(text), maxText)], "\uFFFD")
	return strings.ReplaceAll(text, "\x00", "\uFFFD")
}
