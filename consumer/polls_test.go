package consumer

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// After a probe that took long, the next one comes within a poll, whatever kept the first one.
func TestSlowProbeDelaysNextByAPollAtMost(t *testing.T) {
	for _, took := range []time.Duration{time.Millisecond, 300 * time.Millisecond, 10 * time.Second, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			p := polls{every: time.Second, quiet: 10 * time.Second}
			p.at = time.Now().Add(p.every)
			time.Sleep(took)
			p.answered(took, p.every)
			p.soon()
			wait := time.Until(p.at)
			if wait > p.every {
				t.Errorf("after %v the next probe waits for %v", took, wait)
			}
			if wait < min(probeShare*took, p.every) {
				t.Errorf("after %v the next probe waits only for %v", took, wait)
			}
		})
	}
}

// A probe that failed says nothing about how long the next one takes.
func TestFailedProbeIsRepeatedAfterAPoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := simulated()
		q := &probe{took: answerTime}
		g.polls.at = time.Now().Add(-answerTime + g.options.poll)
		g.take(q, errEmpty)
		g.polls.soon()
		if wait := time.Until(g.polls.at); wait > g.options.poll {
			t.Errorf("the next probe waits for %v", wait)
		}
	})
}

// The end of Run breaks a probe off, which is no error of the probe.
func TestEndOfRunIsNoProbeError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := simulated()
		g.take(&probe{}, errEmpty)
		if n := g.Stats().PollErrors; n != 1 {
			t.Errorf("%d errors of probes after one that failed", n)
		}
		life, end := context.WithCancel(t.Context())
		g.life = life
		end()
		g.take(&probe{}, context.Canceled)
		if n := g.Stats().PollErrors; n != 1 {
			t.Errorf("%d errors of probes after the end of Run, want 1", n)
		}
	})
}
