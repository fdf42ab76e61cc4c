package engine_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgleases/pgleases"
)

// forget forgets all lines until now.
func (w *world) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = nil
}

// linesOf returns the lines that a client has logged.
func (w *world) linesOf(p *proc) (lines []string) {
	for _, line := range w.linesWith(p.name + ": ") {
		if strings.Contains(line, " pgleases: ") {
			lines = append(lines, line)
		}
	}
	return lines
}

// Partitions that come and go again and again are logged in at most one line for each reason and 10 s.
func TestGainsAndHandoffsAreJoinedInTheLog(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, b := w.start("a"), w.start("b")
		la := a.owning("x", 4, pgleases.WithHandoffDelay(0))
		b.mustJoin("x", 4, pgleases.WithHandoffDelay(0))
		w.within(heard, "they share it", func() bool { return len(shown(la)) == 2 })
		time.Sleep(time.Minute)
		w.forget()
		began := time.Now()
		for time.Since(began) < 50*time.Second {
			for _, weight := range []int{0, 1} {
				w.ok(la.SetWeight(context.Background(), weight))
				time.Sleep(2 * time.Second)
			}
		}
		time.Sleep(15 * time.Second)
		for _, line := range []string{"partitions gained", "partitions handed over"} {
			of := w.linesWith(a.name + ": INFO pgleases: " + line)
			if n := len(of); n < 5 || n > 7 {
				t.Errorf("it is logged in %d lines that it %s: %q", n, line, of)
				continue
			}
			for i, l := range of {
				joined := strings.Contains(l, "count=2 lines=") && strings.Contains(l, "owned=[")
				if joined != (i > 0) {
					t.Errorf("line %d is %s", i, l)
				}
			}
		}
		w.forget()
		w.ok(la.SetWeight(context.Background(), 0))
		time.Sleep(time.Second)
		w.ok(la.SetWeight(context.Background(), 1))
		time.Sleep(time.Second)
		w.ok(la.SetWeight(context.Background(), 0))
		time.Sleep(time.Second)
		w.ok(a.close(time.Minute, time.Minute))
		time.Sleep(time.Second)
		end := w.linesOf(a)
		if n := len(end); n < 4 || !strings.Contains(end[n-1], "client ended") ||
			!strings.Contains(end[n-2], "handed over") || !strings.Contains(end[n-2], "lines=1 owned=[-]") {
			t.Errorf("what waits is not written before the client's end: %q", end)
		}
	})
}

// What was gained is written before the line of its loss, which never waits.
func TestLossIsLoggedAtOnceAfterWhatWasGained(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, b := w.start("a"), w.start("b")
		la := a.owning("x", 4, pgleases.WithHandoffDelay(0))
		b.mustJoin("x", 4, pgleases.WithHandoffDelay(0))
		w.within(heard, "they share it", func() bool { return len(shown(la)) == 2 })
		b.kill()
		w.within(10*time.Second, "it has all of it", func() bool { return len(shown(la)) == 4 })
		w.evict("a")
		w.within(heard, "it loses all of it", func() bool { return len(shown(la)) == 0 })
		time.Sleep(time.Second) // of simulated time: the log has its own goroutine
		of := w.linesOf(a)
		last := slices.IndexFunc(of, func(line string) bool {
			return strings.Contains(line, "pgleases: session was evicted,")
		})
		for i, want := range []string{"session was evicted", "partitions lost", "trust lost", "partitions gained"} {
			if i > last || !strings.Contains(of[last-i], want) {
				t.Fatalf("%d lines before the eviction there is no line that says %q: %q", i, want, of)
			}
		}
	})
}
