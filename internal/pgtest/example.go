package pgtest

import (
	"context"
	"fmt"
	"log"
	"slices"
	"strings"
	"sync"
)

// An Example is the TB of an example, which has no test. The zero value is ready.
type Example struct {
	mu       sync.Mutex // guards cleanups
	cleanups []func()
}

// ExampleURL returns the URL of a database with the library's tables, after statements were run in
// it, for an example that is a whole program. It is the owner's, and leads past a pooler, because
// such a program sends cancel requests: see ParseConfig. The database is removed after the tests:
// see Keep.
func ExampleURL(statements ...string) string {
	x := new(Example)
	url, drop, err := makeOwned(context.Background(), strings.Join(statements, ";\n"))
	x.Check(err)
	x.Cleanup(func() { x.Check(drop()) })
	url, _ = DirectURL(url)
	kept.Lock()
	defer kept.Unlock()
	kept.examples = append(kept.examples, x)
	return url
}

// End calls the functions that were given to Cleanup, the last first.
func (x *Example) End() {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, cleanup := range slices.Backward(x.cleanups) {
		cleanup()
	}
}

// Cleanup is safe for concurrent use.
func (x *Example) Cleanup(f func()) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.cleanups = append(x.cleanups, f)
}

func (x *Example) Name() string                      { return "Example" }
func (x *Example) Helper()                           {}
func (x *Example) Failed() bool                      { return false }
func (x *Example) Logf(format string, args ...any)   { log.Printf(format, args...) }
func (x *Example) Errorf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
func (x *Example) Fatal(args ...any)                 { log.Fatal(args...) } // there is no server

// Check panics if there is an error.
func (x *Example) Check(err error) {
	if err != nil {
		panic(err)
	}
}
