//go:build unix

package proof_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/timeguard"
	"github.com/pgleases/pgleases/proof/pgserver"
	"github.com/pgleases/pgleases/proof/tally"
)

func TestCloseWithoutADatabaseEndsInTime(t *testing.T) {
	t.Parallel()
	for _, silent := range []bool{false, true} {
		t.Run(fmt.Sprintf("silent=%v", silent), func(t *testing.T) {
			t.Parallel()
			timeguard.Run(t, func(t *timeguard.Try) {
				server := pgserver.Private(t)
				pool := testkit.Pool(t, server.URL())
				type closes struct {
					id    string
					ttl   time.Duration
					limit time.Duration // of Close's context; 0: it has ended; -1: none
					most  time.Duration // the longest time that Close may take
					c     *pgleases.Client
					l     *pgleases.Lease
				}
				const ms = time.Millisecond
				all := []*closes{
					{id: "trust passes", ttl: 1000 * ms, limit: -1, most: 1000 * ms},
					{id: "context ends", ttl: 10_000 * ms, limit: 300 * ms, most: 2300 * ms},
					{id: "context ended", ttl: 10_000 * ms, limit: 0, most: 2000 * ms},
				}
				// At an immediate shutdown, not every session gets the server's message.
				loses := !silent && fast(t, pool)
				for _, a := range all {
					a.c = newClient(t, pool, pgleases.WithClientID(a.id), pgleases.WithTTL(a.ttl))
					a.l = joined(t, a.c, "lease of "+a.id, 4)
					until(t, a.id+" owns all", func() bool { return len(a.l.Values()) == 4 }, a.l)
				}
				if silent {
					testkit.OK(t, server.Pause())
					defer server.Resume()
					tally.Fault(t, "frozen server")
				} else {
					tally.Fault(t, "immediate shutdown")
					testkit.OK(t, server.Down(t.Context(), pgserver.Immediate))
				}
				var waits sync.WaitGroup
				late := make(chan string, 2*len(all))
				closing := time.Now()
				for _, a := range all {
					waits.Go(func() {
						ctx, cancel := context.WithTimeout(context.Background(), max(0, a.limit))
						if a.limit < 0 {
							ctx, cancel = context.WithCancel(context.Background())
						}
						defer cancel()
						changed := a.l.Changed()
						began := time.Now()
						var empty atomic.Int64
						go func() {
							<-changed
							empty.Store(int64(time.Since(began)))
							if got := a.l.Values(); len(got) != 0 {
								t.Errorf("%s: Values is %v", a.id, got)
							}
						}()
						err := a.c.Close(ctx)
						took := time.Since(began)
						t.Logf("%s: Values was empty after %v, Close returned after %v: %v",
							a.id, time.Duration(empty.Load()), took, err)
						// A client without trust waits for no database.
						waited := a.limit >= 0 && !loses
						timedOut := errors.Is(err, context.DeadlineExceeded)
						if err == nil || waited && !timedOut || !strings.Contains(err.Error(), a.l.Name()) {
							t.Errorf("%s: Close returned %v", a.id, err)
						}
						if took > a.most+slack {
							late <- fmt.Sprintf("%s: Close returned after %v", a.id, took)
						}
						if empty := time.Duration(empty.Load()); empty > 100*time.Millisecond+slack {
							late <- fmt.Sprintf("%s: Values was empty after %v", a.id, empty)
						}
					})
				}
				waits.Wait()
				close(late)
				for text := range late {
					missed(t, closing, 100*time.Millisecond+slack, "%s", text)
				}
				for _, a := range all {
					testkit.Receive(t, a.id+": Done is closed", a.c.Done())
					if got, err := a.l.Values(), a.c.Err(); len(got) != 0 || !errors.Is(err, pgleases.ErrClosed) {
						t.Errorf("%s: closed, it shows %v and its error is %v", a.id, got, err)
					}
				}
			})
		})
	}
}
