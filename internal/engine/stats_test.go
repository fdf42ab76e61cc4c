package engine_test

import (
	"context"
	"testing"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/fakestore"
)

// The numbers of a client are the sums over its leases, including a lease that has ended and whose
// work continues.
func TestStatsOfALeaseAndOfItsClient(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		p := w.start("a", pgleases.WithPolling())
		x, y := p.mustJoin("x", 2), p.mustJoin("y", 3)
		expect := func(when string, ofX, ofY pgleases.LeaseStats) {
			t.Helper()
			of := func(s pgleases.LeaseStats) pgleases.LeaseStats { s.DrainingSince = time.Time{}; return s }
			sum := pgleases.LeaseStats{
				Owned:    ofX.Owned + ofY.Owned,
				Draining: ofX.Draining + ofY.Draining,
				Gains:    ofX.Gains + ofY.Gains,
				Losses: pgleases.Losses{
					TrustLost: ofX.Losses.TrustLost + ofY.Losses.TrustLost,
					Closed:    ofX.Losses.Closed + ofY.Losses.Closed,
				},
			}
			w.within(5*time.Second, when, func() bool {
				return of(x.Stats()) == ofX && of(y.Stats()) == ofY && of(p.c.Stats().LeaseStats) == sum
			})
			since := p.c.Stats().DrainingSince
			if since != x.Stats().DrainingSince || since.IsZero() != (ofX.Draining == 0) {
				t.Errorf("%s: drains since %v, the lease since %v", when, since, x.Stats().DrainingSince)
			}
		}
		rest, closed := pgleases.LeaseStats{Owned: 3, Gains: 3}, pgleases.Losses{Closed: 2}
		expect("it owns all", pgleases.LeaseStats{Owned: 2, Gains: 2}, rest)
		hold := x.Hold(context.Background())
		_ = x.Leave(canceled)
		expect("x drains", pgleases.LeaseStats{Draining: 2, Gains: 2}, rest)
		w.db.Edit(func(t *fakestore.Tables, _ int64) {
			delete(t.Members, fakestore.Member{Lease: "x", Session: sessionOf(t, "a")})
		})
		expect("x has ended, and work goes on", pgleases.LeaseStats{Draining: 2, Gains: 2, Losses: closed}, rest)
		hold.Release()
		expect("its work has ended", pgleases.LeaseStats{Gains: 2, Losses: closed}, rest)
	})
}
