package engine_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/pgleases/pgleases"
)

// One of the clients writes the samples of each minute, also after that one has died, and the others
// ask only now and then whether somebody does.
func TestSamplesAreWrittenEachMinute(t *testing.T) {
	for clients := 1; clients <= 3; clients++ {
		t.Run(fmt.Sprint(clients), func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				var all []*proc
				for i := range clients {
					all = append(all, w.start(fmt.Sprint("client", i)))
				}
				time.Sleep(3 * time.Minute)
				for round := range 10 {
					before := w.db.Sampled()
					time.Sleep(time.Minute)
					if now := w.db.Sampled(); now != before+1 {
						t.Errorf("in round %d, %d minutes have samples", round, now-before)
					}
				}
				if clients < 2 {
					return
				}
				all[0].kill()
				time.Sleep(3 * time.Minute)
				before := w.db.Sampled()
				time.Sleep(time.Minute)
				if now := w.db.Sampled(); now != before+1 {
					t.Errorf("after the end of a client, %d minutes have samples", now-before)
				}
			})
		})
	}
}

func TestNoSamplesAreWrittenWithoutThem(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.start("a", pgleases.WithoutSamples())
		w.start("b", pgleases.WithoutSamples())
		time.Sleep(10 * time.Minute)
		if n := w.count("sample"); n > 0 {
			t.Errorf("samples were written %d times", n)
		}
	})
}

// A failure is logged once, and the client goes on as if there were no samples.
func TestSamplesThatFailDelayNothing(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := w.start("a", pgleases.WithPolling())
		l := a.owning("x", 2, pgleases.WithHandoffDelay(0))
		w.inject(func(_, op string) (fault, bool) {
			return fault{before: 100 * time.Millisecond, err: errLocked}, op == "sample"
		})
		time.Sleep(10 * time.Minute)
		if n := len(w.linesWith("sample failed, will be tried again")); n != 1 {
			t.Errorf("it is logged %d times that samples fail", n)
		}
		if got := shows(l); got != "0-1" {
			t.Errorf("it owns %s", got)
		}
		if s := a.c.Stats(); s.StatementErrors < 9 || s.StatementErrors > 11 {
			t.Errorf("%d statements have failed, and not one a minute", s.StatementErrors)
		}
	})
}
