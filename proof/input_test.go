//go:build unix

package proof_test

import (
	"context"
	"testing"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/timeguard"
)

// Not in parallel, because it loads the database for ten seconds.
func TestTheMostPartitionsWork(t *testing.T) {
	timeguard.Run(t, func(t *timeguard.Try) {
		if brief() {
			t.Skip("takes a quarter of a minute")
		}
		pool := testkit.Pool(t, pgtest.Database(t))
		var log logbook
		rarely := pgleases.WithHeartbeat(time.Second)
		client := newClient(t, pool, log.option(), pgleases.WithTTL(30*time.Second), rarely)
		lease := joined(t, client, "l", 65536)
		waitFor(t, 3*time.Minute, "it owns all", func() bool { return len(lease.Values()) == 65536 })
		if got := count(t, pool, "pgleases.status WHERE owner IS NOT NULL"); got != 65536 {
			t.Errorf("the view shows %d partitions", got)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		defer cancel()
		if err := client.Close(ctx); err != nil {
			t.Error(err)
		}
		if lines := log.lines("handed over", "count=65536 partitions=[0-65535]"); len(lines) != 1 {
			t.Errorf("the log has %q", log.lines("handed over"))
		}
		const order = `SELECT string_agg(DISTINCT (lower(e.partitions) > before)::text, ' ')
			FROM (SELECT partitions, lag(lower(partitions), 1, -1) OVER (ORDER BY tx, id) AS before
			      FROM pgleases.events WHERE from_id IS NOT NULL) AS e`
		if rises := testkit.Value[string](t, pool, order); rises != "true" {
			t.Errorf("it was not handed over in order: %q", rises)
		}
	})
}

func TestMostPartitionsAtShortestTTL(t *testing.T) {
	timeguard.Run(t, func(t *timeguard.Try) {
		const n = 16_384
		pool := testkit.Pool(t, pgtest.Database(t))
		lease := joined(t, newClient(t, pool, pgleases.WithTTL(time.Second)), "l", n)
		waitFor(t, time.Minute, "it owns all", func() bool { return len(lease.Values()) == n })
		testkit.Execute(t, pool, "UPDATE pgleases.server SET accepted_timeline = 77") // as after a failover
		waitFor(t, time.Minute, "it owns all in a new server generation", func() bool {
			return len(lease.Values()) == n && testkit.Value[bool](t, pool, `SELECT generation > 0
				AND (SELECT min(epoch) FROM pgleases.partitions) >= generation << 32 FROM pgleases.server`)
		})
	})
}
