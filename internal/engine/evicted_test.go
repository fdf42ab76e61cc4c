package engine_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// Both sides of an eviction name the process, and the evicted client says what to do.
func TestLinesOfAnEvictionNameTheProcess(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a, b := w.start("a"), w.start("b")
		a.owning("x", 2)
		b.mustJoin("x", 2)
		a.cutOff(true)
		time.Sleep(10 * time.Second)
		a.cutOff(false)
		time.Sleep(10 * time.Second)
		host, err := os.Hostname()
		w.ok(err)
		pid := os.Getpid()
		evicted := w.linesWith(b.name + ": INFO pgleases: evicted expired sessions")
		want := fmt.Sprintf("clients=[a] hosts=[%s] pids=[%d]", host, pid)
		if len(evicted) != 1 || !strings.Contains(evicted[0], want) {
			t.Errorf("the client that evicts logs %q, not %s", evicted, want)
		}
		own := w.linesWith(a.name + ": WARN pgleases: session was evicted")
		want = fmt.Sprintf(" host=%s pid=%d since_heartbeat=", host, pid)
		if len(own) != 1 || !strings.Contains(own[0], want) || !strings.Contains(own[0], "it was frozen, or cut off") {
			t.Errorf("the client that was evicted logs %q, not %s", own, want)
		}
		w.forget()
		w.evict("a") // by hand
		time.Sleep(10 * time.Second)
		own = w.linesWith(a.name + ": WARN pgleases: session was evicted")
		if len(own) != 1 || !strings.Contains(own[0], "its heartbeats were in time") {
			t.Errorf("the client that was evicted by hand logs %q", own)
		}
	})
}
