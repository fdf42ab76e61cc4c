package timeguard

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgleases/pgleases/proof/oracle"
)

// tries is how often a scenario is tried on a machine that is late.
const tries = 5

// Run tries a scenario. It passes when one try has met every deadline, and none has failed for another reason.
func Run(t testing.TB, scenario func(*Try)) {
	t.Helper()
	run(t, Late, scenario)
}

// run is Run with what tells how late the machine was.
func run(t testing.TB, late func(from, to oracle.Instant) (time.Duration, string), scenario func(*Try)) {
	t.Helper()
	var excuses []string
	for range tries {
		try := &Try{TB: t, late: late}
		try.run(scenario)
		switch {
		case try.excuse == "" && try.whole, t.Failed():
			if !try.whole {
				t.FailNow() // as the scenario wanted
			}
			return
		case try.excuse == "": // it was skipped
			t.SkipNow()
		}
		t.Logf("the machine was late, which proves nothing: %s", try.excuse)
		excuses = append(excuses, try.excuse)
	}
	t.Fatalf("the machine was late in each of %d tries, so nothing is proved:\n%s", tries, strings.Join(excuses, "\n"))
}

// A Try is a testing.TB for one try: what it cleans up, its folders and its context end with the try. Error and Fatal fail the
// test, whatever the machine does: they are for safety. Missed is for time.
type Try struct {
	testing.TB
	late   func(from, to oracle.Instant) (time.Duration, string)
	excuse string // why it proves nothing; read it after the end
	whole  bool   // the scenario has returned

	ctx    context.Context
	cancel context.CancelFunc

	mu       sync.Mutex // guards cleanups
	cleanups []func()
}

// run runs the scenario in a goroutine that Missed, or a Fatal of the test's, may end.
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
	defer t.cleanUp() // also where last ends this goroutine
	last()
}

// Cleanup has f called at the end of the try, last added first.
func (t *Try) Cleanup(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cleanups = append(t.cleanups, f)
}

// Context ends with the try, before what it cleans up.
func (t *Try) Context() context.Context { return t.ctx }

// TempDir returns a new folder, removed at the end of the try.
func (t *Try) TempDir() string {
	t.Helper()
	dir, err := os.MkdirTemp("", "pgleases-proof-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// Missed says that what was allowed to take so long, from that moment on, was not so by now: a deadline that has passed, a figure
// above its limit, trust that was lost with no such silence. It does not return. Where the machine was late by
// more than a twentieth of what was allowed since, this ends the try, else the test.
func (t *Try) Missed(since time.Time, within time.Duration, format string, args ...any) {
	t.Helper()
	now := oracle.Now()
	t.MissedAt(now-oracle.Instant(time.Since(since)), now, within, format, args...)
}

// MissedAt is Missed for a window that is over.
func (t *Try) MissedAt(from, to oracle.Instant, within time.Duration, format string, args ...any) {
	t.Helper()
	text := fmt.Sprintf(format, args...)
	excused, told := t.excused(from, to, within)
	if !excused {
		t.Fatalf("%s (the machine kept time: %s)", text, told)
	}
	t.excuse = fmt.Sprintf("%s: %s", text, told)
	runtime.Goexit()
}

// Over reports whether Missed has ended the try. What is cleaned up then may be in any state.
func (t *Try) Over() bool { return t.excuse != "" }

// Excused reports whether MissedAt would end the try, and not the test.
func (t *Try) Excused(from, to oracle.Instant, within time.Duration) bool {
	excused, _ := t.excused(from, to, within)
	return excused
}

func (t *Try) excused(from, to oracle.Instant, within time.Duration) (bool, string) {
	by, told := t.late(from, to)
	return by > within/20, told
}
