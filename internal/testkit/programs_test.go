package testkit

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A standIn takes the place of a test of that name in a wait, and keeps what it failed with.
type standIn struct {
	testing.TB
	name   string
	failed string
}

func (s *standIn) Name() string { return s.name }

func (s *standIn) Fatalf(format string, args ...any) {
	s.failed = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// fails returns what a wait in a test of that name fails with, and how long it took.
func fails(t *testing.T, name string, wait func(testing.TB)) (failed string, took time.Duration) {
	s := &standIn{TB: t, name: name}
	began, done := time.Now(), make(chan struct{})
	go func() {
		defer close(done)
		wait(s)
	}()
	<-done
	return s.failed, time.Since(began)
}

// waits are those that never come to their end by themselves.
var waits = map[string]func(testing.TB){
	"Until":   func(t testing.TB) { Until(t, "it is done", func() bool { return false }) },
	"Receive": func(t testing.TB) { Receive(t, "it is done", make(chan int)) },
}

func TestWaitsFailWhenTheirProgramEnds(t *testing.T) {
	const lives = time.Second // the program ends after it
	for what, wait := range waits {
		for test, needs := range map[string]bool{"TestA": true, "TestA/sub": true, "TestAB": false, "TestB": false} {
			t.Run(what+" in "+test, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					began := time.Now()
					Need(&standIn{TB: t, name: "TestA"}, func() error {
						if time.Since(began) < lives {
							return nil
						}
						return errors.New("exit code 3")
					})
					failed, took := fails(t, test, wait)
					if soon := took < lives+time.Second; soon != needs {
						t.Errorf("it failed after %v with %q", took, failed)
					}
					if named := strings.Contains(failed, "exit code 3"); named != needs || failed == "" {
						t.Errorf("it failed with %q", failed)
					}
				})
			})
		}
	}
}

// What a program did right before its end may be what the test waits for.
func TestWaitsSeeWhatAProgramDidLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		done, last := false, make(chan int, 1)
		Need(&standIn{TB: t, name: "TestA"}, func() error {
			if !done {
				last <- 1
			}
			done = true
			return errors.New("exit code 0")
		})
		until := func(t testing.TB) { Until(t, "it is done", func() bool { return done }) }
		if failed, _ := fails(t, "TestA", until); failed != "" {
			t.Errorf("Until: %s", failed)
		}
		if failed, _ := fails(t, "TestA", func(t testing.TB) { Receive(t, "it is done", last) }); failed != "" {
			t.Errorf("Receive: %s", failed)
		}
	})
}

// A program that a test has needed does not concern the next one of the same name, with -count=2.
func TestProgramsAreNeededUntilTheTestEnds(t *testing.T) {
	t.Run("needs it", func(t *testing.T) {
		Need(&standIn{TB: t, name: "TestA"}, func() error { return errors.New("exit code 3") })
	})
	synctest.Test(t, func(t *testing.T) {
		if failed, took := fails(t, "TestA", waits["Until"]); took < Patience || strings.Contains(failed, "exit code") {
			t.Errorf("it failed after %v with %q", took, failed)
		}
	})
}
