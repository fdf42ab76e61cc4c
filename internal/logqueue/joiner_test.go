package logqueue_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgleases/pgleases/internal/logqueue"
)

// A joinLog notes each line with its second.
type joinLog struct {
	logqueue.Joiner
	began time.Time
	lines []string
}

func newJoinLog() *joinLog { return &joinLog{began: time.Now()} }

func (l *joinLog) note(line string) {
	l.lines = append(l.lines, fmt.Sprintf("%v %s", time.Since(l.began).Seconds(), line))
}

func (l *joinLog) add(message, of string, numbers ...int) {
	l.Add(logqueue.Reason{Message: message, Of: of}, numbers, func(all []int, joined int) {
		l.note(fmt.Sprint(message, " ", of, " ", all, " ", joined))
	})
}

func (l *joinLog) expect(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	if !slices.Equal(l.lines, want) {
		t.Errorf("the lines are %q, not %q", l.lines, want)
	}
	l.lines = nil
}

// The first line of a reason is written at once, and what follows within the interval at its end, so
// there is at most one line in each interval.
func TestLinesOfOneReasonAreJoined(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newJoinLog()
		l.add("gained", "x", 4, 3)
		l.expect(t, "0 gained x [4 3] 0")
		time.Sleep(time.Second)
		l.add("gained", "x", 7)
		l.add("gained", "y", 1)
		l.add("lost", "x", 7)
		l.expect(t, "1 gained y [1] 0", "1 lost x [7] 0")
		time.Sleep(time.Second)
		l.add("gained", "x", 5, 7)
		time.Sleep(8 * time.Second)
		l.expect(t, "10 gained x [5 7] 2")
		time.Sleep(time.Second)
		l.add("gained", "x", 1)
		time.Sleep(20 * time.Second)
		l.expect(t, "20 gained x [1] 1")
		l.add("gained", "x", 2)
		l.expect(t, "31 gained x [2] 0")
	})
}

// What waits is written before a line that is not to wait, in the order of what came last.
func TestFlushWritesWhatWaitsInOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newJoinLog()
		for range 2 {
			l.add("gained", "x", 1)
			l.add("moved", "x", 1)
			l.add("gained", "y", 1)
		}
		l.add("gained", "x", 2)
		l.lines = nil
		l.FlushOf("x")
		l.expect(t, "0 moved x [1] 1", "0 gained x [1 2] 2")
		time.Sleep(time.Second)
		l.add("moved", "x", 3)
		l.add("moved", "x", 4)
		l.Flush()
		l.expect(t, "1 moved x [3] 0", "1 gained y [1] 1", "1 moved x [4] 1")
		time.Sleep(time.Minute)
		l.expect(t)
	})
}

// A line that ends what another one began follows that one, and is not written for what goes on.
func TestEndFollowsTheLineOfItsBeginning(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newJoinLog()
		end := func() { l.Follow(logqueue.Reason{Message: "paused", Of: "x"}, func() { l.note("ended") }) }
		l.add("paused", "x", 1)
		time.Sleep(time.Second)
		end()
		l.expect(t, "0 paused x [1] 0", "1 ended")
		for range 3 {
			l.add("paused", "x", 1)
			end()
		}
		time.Sleep(9 * time.Second)
		l.expect(t, "10 paused x [1] 3", "10 ended")
		l.add("paused", "x", 2)
		end()
		l.add("paused", "x", 3)
		time.Sleep(10 * time.Second)
		l.expect(t, "20 paused x [2 3] 2")
		end()
		l.expect(t, "20 ended")
	})
}

// Many lines of the same numbers keep no more of them than there are.
func TestJoinedNumbersAreKeptOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newJoinLog()
		for n := range 100_000 {
			l.add("gained", "x", n%3)
		}
		l.Flush()
		l.expect(t, "0 gained x [0] 0", "0 gained x [0 1 2] 99999")
	})
}
