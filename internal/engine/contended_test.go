package engine_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pgleases/pgleases"
)

// Live processes with one client ID end each other. After a few times the next one waits, and says
// for what.
func TestProcessesWithOneIDDoNotRestartEachOther(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var last *proc
		for range 4 {
			last = w.start("worker")
			last.owning("x", 2)
			time.Sleep(2 * time.Second)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		began := time.Now()
		_, err := pgleases.Open(ctx, "", w.options("worker")...)
		const advice = "give every live process an ID of its own"
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), advice) {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		if last.c.Err() != nil || len(shown(last.leases["x"])) != 2 {
			t.Errorf("the process that works has ended: %v", last.c.Err())
		}
		last.kill() // another process takes the ID soon after the last heartbeat
		next := w.start("worker")
		w.within(2*next.engine().TTL(), "it owns both", func() bool { return len(shown(next.mustJoin("x", 2))) == 2 })
	})
}

// A process that is started again and again after it has closed its client, or has crashed, waits
// for no other one.
func TestProcessThatIsRestartedOftenDoesNotWait(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		for range 10 {
			p := w.start("worker")
			p.owning("x", 2)
			w.ok(p.close(time.Second, 3*time.Second))
		}
		for range 10 {
			began := time.Now()
			p := w.start("worker")
			if took := time.Since(began); took > p.engine().TTL() {
				t.Errorf("the start after a crash took %v", took)
			}
			p.mustJoin("x", 2)
			time.Sleep(10 * time.Second)
			p.kill()
		}
	})
}
