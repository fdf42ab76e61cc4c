package worker_test

import (
	"testing"
	"time"

	"github.com/pgleases/pgleases/internal/worker"
)

// A row that somebody has edited by hand may have fewer attempts than none.
func TestPauseAfterNegativeAttempts(t *testing.T) {
	t.Parallel()
	p := worker.WithoutJitter(worker.Backoff(time.Second, time.Minute))
	for failed, want := range map[int]time.Duration{
		-1 << 31: time.Second, -1: time.Second, 0: time.Second, 1: time.Second, 2: 2 * time.Second, 7: time.Minute,
		1 << 31: time.Minute,
	} {
		if got := worker.PauseAfter(failed, p); got != want {
			t.Errorf("after %d failed attempts: %v, want %v", failed, got, want)
		}
	}
}
