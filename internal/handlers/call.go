package handlers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/pgleases/pgleases/internal/logqueue"
)

// Call calls the application's code in a goroutine of its own, which that may end. Its panics are
// caught, because the other calls of the process are not affected.
func Call(f func() error) error { return <-Called(f) }

// Called is Call for a caller that waits for more than the error.
func Called(f func() error) <-chan error {
	ended := make(chan error, 1)
	Start(f, func(err error) { ended <- err })
	return ended
}

// Start is Call for a caller that does not wait. In the end the goroutine of f calls ended.
func Start(f func() error, ended func(error)) {
	Go(func() {
		var err error = CutShort{errGoexit}
		defer func() { ended(err) }()
		defer Caught(&err)
		err = f()
	})
}

// Go calls f in a goroutine that can send statements at once. A stack that grows as it is needed is
// copied each time that it doubles, which cost short transactions a tenth of their processor time.
func Go(f func()) {
	go func() {
		grow(0)
		f()
	}()
}

// grow makes the stack of its goroutine as large as the statements of pgx need it.
//
//go:noinline
func grow(at int) byte {
	var space [14 << 10]byte
	return space[at]
}

var errGoexit = errors.New("the code of the application ended its goroutine with runtime.Goexit, " +
	"as the FailNow of a test does")

// ErrHangs is returned by Within.
var ErrHangs = errors.New("code of the application, such as a tracer or a hook of the pool, " +
	"did not return when its context had ended; make it end with its context")

// Within is Call for what ends with ctx, unless code of the application hangs in it. If it still
// runs when grace has passed after the end of ctx, Within leaves it behind, and returns ErrHangs.
// So what f writes must not be read after an error.
func Within(ctx context.Context, grace time.Duration, f func() error) error {
	return Await(ctx, grace, Called(f))
}

// Await is Within for what has begun.
func Await(ctx context.Context, grace time.Duration, ended <-chan error) error {
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-ended:
		return err
	case <-time.After(grace):
		return ErrHangs
	}
}

// InTime is Within for an f that has so much time.
func InTime(ctx context.Context, limit, grace time.Duration, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return Within(ctx, grace, func() error { return f(ctx) })
}

// Watch calls late if work continues for longer than grace after its context has ended. The caller
// calls ended when the work has ended. If late was called, that waits for its return, and then calls
// after with how long the work went on after its context. So the lines of a log that these two write
// are a pair.
func Watch(ctx context.Context, grace time.Duration, late func(), after func(lasted time.Duration)) (ended func()) {
	over, done := make(chan struct{}), make(chan struct{})
	wasLate, began := false, time.Time{}
	stop := context.AfterFunc(ctx, func() {
		defer close(done)
		began = time.Now()
		select {
		case <-over:
		case <-time.After(grace):
			wasLate = true
			late()
		}
	})
	return func() {
		close(over)
		if stop() {
			return
		}
		<-done
		if wasLate {
			after(logqueue.Lasted(began, time.Now()))
		}
	}
}

// WatchFor calls late if work takes longer than limit. The caller calls ended when the work has
// ended. If late was called, that waits for its return, and then calls after with how long the work
// took.
func WatchFor(limit time.Duration, late func(), after func(lasted time.Duration)) (ended func()) {
	began, done := time.Now(), make(chan struct{})
	timer := time.AfterFunc(limit, func() {
		defer close(done)
		late()
	})
	return sync.OnceFunc(func() {
		if timer.Stop() {
			return
		}
		<-done
		after(logqueue.Lasted(began, time.Now()))
	})
}

// Around calls a handler by way of the application's code around it. That gets a function that
// calls the handler, and must call it once. Around returns when the handler has returned, even if
// that code does not wait for it, so nothing of the handler runs afterwards.
func Around(around func(next func(context.Context) error) error, handler func(context.Context) error) error {
	s := &surrounded{handler: handler, result: errNotCalled, ended: make(chan struct{})}
	defer func() { _ = s.end() }() // also if around panics, or ends its goroutine
	err := around(s.next)
	return cmp.Or(err, s.end())
}

// A surrounded handler has code of the application around its call.
type surrounded struct {
	handler func(context.Context) error
	ended   chan struct{} // closed when the handler has returned

	mu     sync.Mutex // guards the following fields
	called bool
	over   bool  // the code around it has ended
	result error // as far as it is known
}

// next calls the handler.
func (s *surrounded) next(ctx context.Context) error {
	err := s.begin()
	if err != nil {
		return err
	}
	defer close(s.ended)
	err = s.handler(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.result = err
	return err
}

func (s *surrounded) begin() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.called:
		return errCalledAgain
	case s.over:
		return errCalledLate
	}
	s.called, s.result = true, errNotReturned
	return nil
}

// end returns the result that is known now, when the handler does not run any more.
func (s *surrounded) end() error {
	s.mu.Lock()
	s.over = true
	called, result := s.called, s.result
	s.mu.Unlock()
	if called {
		<-s.ended
	}
	return result
}

var (
	errNotCalled = errors.New("the function of WithAround returned before it had called the handler: " +
		"call next once, and wait for it")
	errNotReturned = errors.New("the function of WithAround returned nil, but next had not returned: " +
		"wait for it, and pass on its panics")
	errCalledAgain = errors.New("the function of WithAround has called the handler before: call next once")
	errCalledLate  = errors.New("the function of WithAround has returned before, so the handler is not called: " +
		"call next once, and wait for it")
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

// Copied is a copy of an error of the application without its methods, which may panic or hang.
type Copied struct {
	Text string
	Of   []error // what it wraps
}

func (c Copied) Error() string   { return c.Text }
func (c Copied) Unwrap() []error { return c.Of }

// maxText is how many bytes of an error's text are stored.
const maxText = 64 << 10

// Storable returns a text that the database can store: UTF-8 without NUL, of limited length.
func Storable(text string) string {
	text = strings.ToValidUTF8(text[:min(len(text), maxText)], "\uFFFD")
	return strings.ReplaceAll(text, "\x00", "\uFFFD")
}

// InASCII returns a text of ASCII alone, which is quoted if it had other characters. Every encoding
// of a database can store it.
func InASCII(text string) string {
	if !strings.ContainsFunc(text, func(r rune) bool { return r >= utf8.RuneSelf }) {
		return text
	}
	return strconv.QuoteToASCII(text)
}
