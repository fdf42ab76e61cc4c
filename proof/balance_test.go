//go:build unix

package proof_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/timeguard"
	working "github.com/pgleases/pgleases/internal/worker"
	"github.com/pgleases/pgleases/proof/faults"
	"github.com/pgleases/pgleases/proof/tally"
)

// A leader closes its client, and the next leader leads soon. Not in parallel, because the test
// measures time.
func TestNextLeadsWithin50MillisecondsOfClose(t *testing.T) {
	timeguard.Run(t, func(t *timeguard.Try) {
		url := pgtest.Database(t)
		var clients []*pgleases.Client
		var leases []*pgleases.Lease
		for i := range 11 {
			c := opened(t, url, fmt.Sprintf("client-%d", i), pgleases.WithTTL(time.Second), quietly(t))
			clients, leases = append(clients, c), append(leases, joined(t, c, "leader", 1))
		}
		var gaps, closes []time.Duration
		since := time.Now()
		for range 10 {
			leader := -1
			waitFor(t, patience, "there is a leader", func() bool {
				leader = slices.IndexFunc(leases, func(l *pgleases.Lease) bool { return l.Owns(0) })
				return leader >= 0
			})
			led := leadsNext(t, slices.Delete(slices.Clone(leases), leader, leader+1))
			began := time.Now()
			shut(t, clients[leader])
			closes = append(closes, time.Since(began))
			gaps = append(gaps, (<-led).Sub(began))
			clients, leases = slices.Delete(clients, leader, leader+1), slices.Delete(leases, leader, leader+1)
		}
		t.Logf("the next leads: %s; Close returned: %s", figures(gaps), figures(closes))
		medianWithin(t, since, 50*time.Millisecond+lateWithoutNotify(url, time.Second/3), gaps, "until the next led")
	})
}

// leadsNext returns a channel that receives the time when one of the leases owns a partition.
func leadsNext(t testing.TB, leases []*pgleases.Lease) <-chan time.Time {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	led := make(chan time.Time, len(leases))
	for _, l := range leases {
		go func() {
			if l.Wait(ctx) == nil {
				led <- time.Now()
				cancel()
			}
		}()
	}
	return led
}

// A leader is killed: 10 leaders, each of its own lease, and one client that follows them all.
func TestNextLeadsWithinTTLOfKill(t *testing.T) {
	timeguard.Run(t, func(t *timeguard.Try) {
		const ttl = time.Second
		leaders := 10
		url := pgtest.Database(t)
		pool := testkit.Pool(t, url, size(4))
		next := opened(t, url, "next", pgleases.WithTTL(ttl), quietly(t))
		processes := make([]*faults.Process, leaders)
		for i := range processes {
			name := fmt.Sprintf("leader-%d", i)
			processes[i] = startWorker(t, faults.Config{URL: url, ID: name, Lease: name, Partitions: 1, TTL: ttl})
			hasJoined(t, processes[i])
		}
		leases := make([]*pgleases.Lease, leaders)
		for i := range leases {
			name := fmt.Sprintf("leader-%d", i)
			waitFor(t, patience, name+" leads", func() bool {
				var owner string
				const of = "SELECT coalesce(owner, '') FROM pgleases.status WHERE lease = $1"
				err := pool.QueryRow(t.Context(), of, name).Scan(&owner)
				return err == nil && owner == name
			})
			leases[i] = joined(t, next, name, 1)
		}
		// The bound counts from when a survivor has watched the clock for a TTL.
		<-time.After(ttl + ttl/3)
		var wait sync.WaitGroup
		var mu sync.Mutex
		var late, gone []time.Duration
		since := time.Now()
		for i, p := range processes {
			wait.Go(func() {
				<-time.After(rand.N(ttl)) // at any moment between two heartbeats
				p.Kill()
				killed := time.Now()
				tally.Fault(t, "kill")
				var expires, owned time.Time
				const expiry = "SELECT expires_at FROM pgleases.clients WHERE id = $1"
				err := pool.QueryRow(t.Context(), expiry, p.Config.ID).Scan(&expires)
				if err != nil {
					t.Error(err)
					return
				}
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				if err := leases[i].Wait(ctx); err != nil {
					t.Error(err)
					return
				}
				since := time.Since(killed)
				// By the database's clock, which decided that the session expired.
				if err := pool.QueryRow(t.Context(), "SELECT clock_timestamp()").Scan(&owned); err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				late, gone = append(late, owned.Sub(expires)), append(gone, since)
			})
		}
		wait.Wait()
		if len(late) < leaders {
			t.Fatal("not all were seen")
		}
		t.Logf("the next leads after the victim's expires_at: %s; after the kill: %s", figures(late), figures(gone))
		medianWithin(t, since, 200*time.Millisecond, late, "until the next led, from the last heartbeat and the TTL,")
		if slices.Min(late) < 0 && !fast(t, pool) {
			t.Errorf("a session was evicted %v before it expired", -slices.Min(late))
		}
	})
}

// A killed client leaves no rows behind, whether or not it had joined a lease.
func TestThousandKilledClientsAreGoneAfterTwoTTLs(t *testing.T) {
	timeguard.Run(t, func(t *timeguard.Try) {
		const ttl = time.Second
		url := pgtest.Database(t)
		pool := testkit.Pool(t, url, size(2))
		var living []*pgleases.Lease
		for i := range 2 {
			c := opened(t, url, fmt.Sprintf("living-%d", i), pgleases.WithTTL(ttl), quietly(t))
			living = append(living, joined(t, c, "l", 8, pgleases.WithHandoffDelay(0)))
		}
		waitFor(t, patience, "the live clients share", func() bool { return shared(living...) })

		// Clients that register, join or not, and send no heartbeat again: the database cannot
		// distinguish these from killed clients.
		config := testkit.Must(pgx.ParseConfig(url))(t)
		conn := testkit.Must(store.NewConnector(config, nil, "pgleases", ttl/3).Connect(t.Context(), time.Second))(t)
		defer conn.Close()
		killed := 960
		// Live clients plan and evict meanwhile, so a statement may run into the lock timeout and
		// is repeated.
		repeat := func(statement func() error) {
			t.Helper()
			err := statement()
			for range 10 {
				if err == nil || working.Whose(err).Final() {
					break
				}
				err = statement()
			}
			testkit.OK(t, err)
		}
		for i := range killed {
			session := rand.Int64N(1<<62) + 1
			repeat(func() error {
				_, _, err := conn.Register(t.Context(), store.Registration{
					Session: session, ID: fmt.Sprintf("killed-%d", i), Process: session,
					TTL: ttl, Host: "host", PID: i, StartedAt: time.Now(),
				})
				return err
			})
			if i%2 == 0 {
				lease := []string{"l", "of the killed"}[i/2%2]
				repeat(func() error {
					_, err := conn.Join(t.Context(), session, lease, 8, store.Terms{Weight: 1}, 1)
					return err
				})
			}
		}
		// And two processes with many clients, which are really killed.
		var processes []*faults.Process
		for _, lease := range []string{"", "l"} {
			config := faults.Config{URL: url, ID: "process" + lease, Lease: lease, Partitions: 8, TTL: ttl, Clients: 20}
			p := startWorker(t, config)
			processes = append(processes, p)
			killed += p.Config.Clients
		}
		for _, p := range processes {
			hasJoined(t, p)
			p.Kill()
			tally.Fault(t, "kill")
		}
		began := time.Now()
		var left int
		gone := comesTrue(2*ttl, func() bool {
			err := pool.QueryRow(t.Context(), "SELECT count(*) FROM pgleases.clients").Scan(&left)
			return err == nil && left == 2
		})
		t.Logf("of %d killed clients, %d are left after %v", killed, left-2, time.Since(began).Round(time.Millisecond))
		if !gone {
			missed(t, began, 2*ttl, "%d clients are left 2 TTL after the last was killed, not the 2 that live", left)
		}
		waitFor(t, patience, "the live clients share again", func() bool { return shared(living...) })
		if members := count(t, pool, "pgleases.members"); members != 2 {
			t.Errorf("%d memberships are left", members)
		}
	})
}
