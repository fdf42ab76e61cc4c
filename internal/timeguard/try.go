package timeguard

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgleases/pgleases/internal/testkit/notes"
)

// tries is the maximum number of tries on a late machine.
const tries = 5

// Run tries a scenario. The test passes if one try meets every deadline, and no try fails for
// another reason. A probe of this process runs beside it.
func Run(t testing.TB, scenario func(*Try)) {
	t.Helper()
	defer probed()()
	run(t, Late, scenario)
}

// run is Run with a function that returns how late the machine was.
func run(t testing.TB, late func(from, to Instant) (time.Duration, string), scenario func(*Try)) {
	t.Helper()
	var excuses []string
	for range tries {
		try := &Try{TB: t, late: late}
		try.run(scenario)
		try.judge()
		switch {
		case try.excuse == "" && try.whole, t.Failed():
			if !try.whole {
				t.FailNow() // as the scenario requested
			}
			return
		case try.excuse == "": // the scenario skipped the test
			t.SkipNow()
		}
		notes.Add(t, "repeated", try.excuse)
		excuses = append(excuses, try.excuse)
	}
	t.Fatalf("the machine was late in each of %d tries, so none counts:\n%s", tries, strings.Join(excuses, "\n"))
}

// A Try is a testing.TB for one try: its cleanups and its context end with the try. Error and Fatal
// fail the test, however late the machine was, so use them for safety. Use Missed for time.
type Try struct {
	testing.TB
	late   func(from, to Instant) (time.Duration, string)
	excuse string // why the try does not count; read it after the end
	whole  bool   // the scenario has returned

	ctx    context.Context
	cancel context.CancelFunc

	mu       sync.Mutex // guards the rest
	cleanups []func()
	ttl      time.Duration // see Brief
	began    Instant       // when Brief was called
	failure  string        // the failures after Brief
}

// run runs the scenario in a goroutine, which Missed or Fatal may end.
func (t *Try) run(scenario func(*Try)) {
	t.ctx, t.cancel = context.WithCancel(t.TB.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer t.cleanUp()
		scenario(t)
		t.whole = true
	}()
	<-done
}

func (t *Try) cleanUp() {
	t.cancel()
	t.mu.Lock()
	n := len(t.cleanups)
	if n == 0 {
		t.mu.Unlock()
		return
	}
	last := t.cleanups[n-1]
	t.cleanups = t.cleanups[:n-1]
	t.mu.Unlock()
	defer t.cleanUp() // even if last ends this goroutine
	last()
}

// Cleanup registers f to be called at the end of the try, in reverse order.
func (t *Try) Cleanup(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cleanups = append(t.cleanups, f)
}

// Context returns a context that ends with the try, before its cleanups.
func (t *Try) Context() context.Context { return t.ctx }

// Brief says that everything in the try from now on, its safety too, holds only if clients with that
// TTL keep their trust. So a failure counts only if the machine kept time for as long as the try
// lasted. Otherwise it ends the try, as Missed does.
func (t *Try) Brief(ttl time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ttl, t.began = ttl, Now()
}

// withheld keeps a failure for judge after a call of Brief.
func (t *Try) withheld(text string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ttl > 0 {
		t.failure += text + "\n"
	}
	return t.ttl > 0
}

// judge decides what a failure after Brief is.
func (t *Try) judge() {
	t.TB.Helper()
	if t.failure == "" || t.excuse != "" {
		return
	}
	excused, lateness := t.Excused(t.began, Now(), t.ttl)
	if excused {
		t.excuse = t.failure + lateness
		return
	}
	t.TB.Errorf("%s(the machine kept time: %s)", t.failure, lateness)
}

func (t *Try) Fail()             { t.Errorf("it failed") }
func (t *Try) Error(args ...any) { t.TB.Helper(); t.Errorf("%s", fmt.Sprintln(args...)) }
func (t *Try) Fatal(args ...any) { t.TB.Helper(); t.Fatalf("%s", fmt.Sprintln(args...)) }
func (t *Try) Fatalf(format string, args ...any) {
	t.TB.Helper()
	t.Errorf(format, args...)
	t.FailNow()
}

func (t *Try) Errorf(format string, args ...any) {
	t.TB.Helper()
	if !t.withheld(fmt.Sprintf(format, args...)) {
		t.TB.Errorf(format, args...)
	}
}

func (t *Try) FailNow() {
	if t.withheld("") {
		runtime.Goexit()
	}
	t.TB.FailNow()
}

func (t *Try) Failed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.failure != "" || t.TB.Failed()
}

// Missed reports that a condition did not become true within the time allowed since a moment: a
// deadline that passed, a figure above its limit, or trust that was lost without a cause. It does
// not return. If the machine was late by more than 5 % of the time allowed, Missed ends the try.
// Otherwise it fails the test.
func (t *Try) Missed(since time.Time, within time.Duration, format string, args ...any) {
	t.Helper()
	now := Now()
	t.MissedAt(now-Instant(time.Since(since)), now, within, format, args...)
}

// MissedAt is Missed for a window in the past.
func (t *Try) MissedAt(from, to Instant, within time.Duration, format string, args ...any) {
	t.Helper()
	text := fmt.Sprintf(format, args...)
	excused, lateness := t.Excused(from, to, within)
	if !excused {
		t.Fatalf("%s (the machine kept time: %s)", text, lateness)
	}
	t.excuse = fmt.Sprintf("%s: %s", text, lateness)
	runtime.Goexit()
}

// Over reports whether Missed has ended the try. Objects that are cleaned up after that may be in
// any state.
func (t *Try) Over() bool { return t.excuse != "" }

// Excused reports whether MissedAt would end only the try, not fail the test, and describes how late
// the machine was.
func (t *Try) Excused(from, to Instant, within time.Duration) (bool, string) {
	by, lateness := t.late(from, to)
	return by > within/20, lateness
}
