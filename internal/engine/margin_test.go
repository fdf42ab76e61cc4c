package engine_test

import (
	"testing"
	"time"

	"github.com/pgleases/pgleases"
)

// Each heartbeat counts once, with the trust that it found. A loss of the trust counts with 0,
// however much later the numbers are read.
func TestHeartbeatMargin(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.start("a", polling(6*time.Second, 2*time.Second)...)
		before, bounds := a.c.Stats().HeartbeatMargin, pgleases.HeartbeatMarginBounds()
		if bounds[0] != 0.05 || bounds[6] != 0.6 || bounds[8] != 0.8 {
			t.Fatalf("the bounds are %v", bounds)
		}
		time.Sleep(time.Minute)
		s := a.c.Stats()
		// Usually (5.7 s - 2 s) / 5.7 s is left, and more at a heartbeat that looks for expired sessions.
		rest, usual := s.HeartbeatMargin.Within[6], s.HeartbeatMargin.Within[8]-before.Within[8]
		if rest != 0 || usual < 20 || usual > 34 || s.StatementErrors != 0 {
			t.Errorf("all is well, and the stats are %+v; in a minute %d usual heartbeats", s, usual)
		}
		mean := (s.HeartbeatMargin.Sum - before.Sum) / float64(s.HeartbeatMargin.Count-before.Count)
		if mean < 0.64 || mean > 0.9 {
			t.Errorf("the mean margin is %v", mean)
		}
		a.cutOff(true)
		time.Sleep(7 * time.Second)
		a.cutOff(false)
		time.Sleep(time.Minute)
		s = a.c.Stats()
		margin := s.HeartbeatMargin
		if margin.Within[0] != 1 || margin.Within[3] != 1 || s.StatementErrors == 0 || s.Trust == 0 {
			t.Errorf("the trust was lost once, and the stats are %+v", s)
		}
	})
}
