package pgleases

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"
)

// idleEngine returns an engine without a goroutine and without a database, trusted for an hour, that owns n partitions of a lease.
func idleEngine(n int, log slog.Handler) (*engine, *membership) {
	o := options{clientID: "a", ttl: time.Hour, heartbeat: time.Minute}
	e := newEngine(&Client{options: o, log: slog.New(log), wake: make(chan struct{}, 1)}, nil, nil)
	e.session.settled = true
	e.trust(time.Now())
	m := e.newMembership("orders", n, leaseOptions{})
	m.joined = true
	gained := make([]*tenure, n)
	for i := range gained {
		gained[i] = e.own(m, i, 1)
	}
	e.publish(m)
	return e, m
}

// BenchmarkLossOfTrust measures how long after a loss of trust the last context has ended for somebody who waits for them all: those
// of the holds, each of all partitions, alone, and those of all ownerships too.
func BenchmarkLossOfTrust(b *testing.B) {
	for _, size := range []struct{ partitions, holds int }{{128, 1}, {8192, 1}, {8192, 100}, {65536, 1}, {65536, 100}} {
		for _, all := range []bool{false, true} {
			b.Run(fmt.Sprintf("partitions=%d/holds=%d/all=%v", size.partitions, size.holds, all), func(b *testing.B) {
				var last time.Duration
				for b.Loop() {
					b.StopTimer()
					e, m := idleEngine(size.partitions, slog.DiscardHandler)
					var ends []context.Context
					for range size.holds {
						ends = append(ends, m.lease.Hold(context.Background()).Context())
					}
					if all {
						for _, p := range shown(m.lease) {
							ends = append(ends, p.Context())
						}
					}
					ended := make(chan time.Time)
					go func() {
						for _, ctx := range ends {
							<-ctx.Done()
						}
						ended <- time.Now()
					}()
					b.StartTimer()
					began := time.Now()
					e.loseTrust(began, ErrTrustLost)
					last += (<-ended).Sub(began)
				}
				b.ReportMetric(float64(last.Microseconds())/1e3/float64(b.N), "ms-to-the-last")
			})
		}
	}
}
