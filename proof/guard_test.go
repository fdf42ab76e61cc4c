//go:build unix

package proof_test

import (
	"context"
	"testing"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/proof/faults"
	"github.com/pgleases/pgleases/proof/timeguard"
)

// A transaction that passed Guard stays open although its owner was killed. Only its partition
// waits for the commit.
func TestCrashedOwnersGuardDelaysItsPartitionOnly(t *testing.T) {
	t.Parallel()
	timeguard.Run(t, func(t *timeguard.Try) {
		const ttl, partitions = 2 * time.Second, 12
		url := direct(t)
		pool := newPool(t, url)
		var book logbook
		clients := []*pgleases.Client{
			newClient(t, pool, pgleases.WithClientID("a"), pgleases.WithTTL(ttl), book.option()),
			newClient(t, pool, pgleases.WithClientID("b"), pgleases.WithTTL(ttl), book.option()),
		}
		var leases []*pgleases.Lease
		for _, c := range clients {
			leases = append(leases, joined(t, c, "work", partitions, pgleases.WithHandoffDelay(0)))
		}
		dying := startWorker(t, faults.Config{URL: url, ID: "dying", Lease: "work", Partitions: partitions, TTL: ttl})
		hasJoined(t, dying)
		until(t, "each of the three owns a third", func() bool {
			return value[int](t, pool, `SELECT count(*) FROM pgleases.status WHERE owner = 'dying'`) == partitions/3 &&
				len(leases[0].Values()) == partitions/3 && len(leases[1].Values()) == partitions/3
		}, leases...)
		for _, c := range clients {
			// Until they have watched the clock for a TTL.
			for began := time.Now(); time.Since(began) < ttl; {
				beats(t, c, 1)
			}
		}

		n := value[int](t, pool, `SELECT min(partition) FROM pgleases.status WHERE owner = 'dying'`)
		tx, err := pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(context.Background()) }()
		if _, err := tx.Exec(t.Context(), `SELECT pgleases.guard('work', partition, epoch) FROM pgleases.status WHERE partition = $1`, n); err != nil {
			t.Fatal(err)
		}
		dying.Kill()
		killed := time.Now()
		var oldest, owning, joining time.Duration
		var third *pgleases.Lease
		until(t, "three TTLs have passed", func() bool {
			for _, c := range clients {
				oldest = max(oldest, c.Stats().HeartbeatAge)
			}
			total := 0
			for _, l := range leases {
				total += len(l.Values())
				if l.Owns(n) {
					t.Fatalf("%s owns the guarded partition", l.Name())
				}
			}
			if total == partitions-1 && owning == 0 {
				owning = time.Since(killed)
				began := time.Now()
				clients = append(clients, newClient(t, pool, pgleases.WithClientID("c"), pgleases.WithTTL(ttl), book.option()))
				third = joined(t, clients[2], "work", partitions, pgleases.WithHandoffDelay(0))
				leases = append(leases, third)
				joining = time.Since(began)
			}
			return time.Since(killed) > 3*ttl
		})
		t.Logf("all others were owned again %v after the kill (TTL %v); a join took %v; the oldest heartbeat was %v old",
			owning, ttl, joining, oldest)
		if third == nil {
			missed(t, killed, 3*ttl, "the other partitions were not owned again")
		}
		// Its last heartbeat was sent up to TTL/3 before the kill.
		least, most := ttl*2/3-10*time.Millisecond, ttl+200*time.Millisecond
		if fast(t, pool) { // its lock was free for that long
			least, most = 300*time.Millisecond, 500*time.Millisecond
		}
		if owning < least || owning > most+slack {
			missed(t, killed, most, "the other partitions were owned again %v after the kill, not after %v to %v", owning, least, most)
		}
		if joining > time.Second+slack {
			missed(t, killed, time.Second, "a join took %v", joining)
		}
		if got := len(third.Values()); got < 3 || got > 4 {
			missed(t, killed, bears(ttl, ttl/3), "the third owns %d of %d, not 3 or 4", got, partitions)
		}
		if lines := book.lines("heartbeat failed", "lock timeout"); len(lines) != 0 || oldest >= ttl {
			missed(t, killed, bears(ttl, ttl/3), "a heartbeat had to wait: %q, the oldest %v", lines, oldest)
		}
		for _, c := range clients {
			if s := c.Stats(); s.Losses.TrustLost != 0 || s.Reconnects != 0 {
				missed(t, killed, bears(ttl, ttl/3), "%s should have lost neither trust nor its connection: %+v", c.ID(), s)
			}
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Errorf("what Guard let pass did not commit: %v", err)
		}
		began := time.Now()
		until(t, "the partition follows", func() bool {
			return leases[0].Owns(n) || leases[1].Owns(n) || leases[2].Owns(n)
		}, leases...)
		took := time.Since(began)
		t.Logf("it followed %v after the commit", took)
		if took > 100*time.Millisecond+slack {
			missed(t, began, 100*time.Millisecond+slack, "it followed %v after the commit", took)
		}
	})
}
