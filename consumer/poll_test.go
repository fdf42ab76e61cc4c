package consumer

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// After a poll that took long, the next one comes within the usual time, whatever kept the first one.
func TestSlowPollDelaysNextByItsTimeAtMost(t *testing.T) {
	for _, took := range []time.Duration{time.Millisecond, 300 * time.Millisecond, 10 * time.Second, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			p := pace{every: time.Second, quiet: 10 * time.Second}
			p.at = time.Now().Add(p.every)
			time.Sleep(took)
			p.answered(took, p.every)
			p.soon()
			wait := time.Until(p.at)
			if wait > p.every {
				t.Errorf("after %v the next poll waits for %v", took, wait)
			}
			if wait < min(pollShare*took, p.every) {
				t.Errorf("after %v the next poll waits only for %v", took, wait)
			}
		})
	}
}

// A poll that failed says nothing about how long the next one takes.
func TestFailedPollIsRepeatedSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := simulated(t.Context())
		p.poller.at = time.Now().Add(-answerTime + p.options.poll)
		p.answer(&poll{took: answerTime}, errEmpty)
		p.poller.soon()
		if wait := time.Until(p.poller.at); wait > p.options.poll {
			t.Errorf("the next poll waits for %v", wait)
		}
	})
}

// The end of Run breaks a poll off, which is no error of the poll.
func TestEndOfRunIsNoPollError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := simulated(t.Context())
		p.answer(&poll{}, errEmpty)
		if n := p.Stats().PollErrors; n != 1 {
			t.Errorf("%d errors of polls after one that failed", n)
		}
		life, end := context.WithCancel(t.Context())
		p.life = life
		end()
		p.answer(&poll{}, context.Canceled)
		if n := p.Stats().PollErrors; n != 1 {
			t.Errorf("%d errors of polls after the end of Run, want 1", n)
		}
	})
}
