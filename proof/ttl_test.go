//go:build unix

package proof_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/timeguard"
	"github.com/pgleases/pgleases/proof/faults"
	"github.com/pgleases/pgleases/proof/oracle/leases"
	"github.com/pgleases/pgleases/proof/tally"
)

// Each process is taken over at its own TTL. The one with the longest TTL is killed first, and no
// client has watched the clock for that long when it expires. That must not delay the takeover of
// the others.
func TestMixedTTLsExpireIndependently(t *testing.T) {
	t.Parallel()
	timeguard.Run(t, func(t *timeguard.Try) {
		const partitions, long, head = 16, 20 * time.Second, 9 * time.Second
		url := pgtest.Database(t)
		late := 200*time.Millisecond + lateWithoutNotify(url, 2*time.Second) + slack
		pool := testkit.Pool(t, url, size(2))
		dirs := map[string]string{"long": t.TempDir(), "mixed": t.TempDir()} // of the oracle's logs, by lease
		start := func(id, lease string, ttl time.Duration) *faults.Process {
			p := startWorker(t, faults.Config{
				URL: url, ID: id, Lease: lease, Partitions: partitions, TTL: ttl,
				Log: filepath.Join(dirs[lease], id+".log"),
			})
			hasJoined(t, p)
			return p
		}
		owns := func(id string) int {
			return count(t, pool, "pgleases.status WHERE owner = $1", id)
		}
		longExpires := func() time.Duration {
			seconds := testkit.Value[float64](t, pool, `SELECT
				coalesce(extract(epoch FROM min(expires_at) - clock_timestamp()), -1)
				FROM pgleases.clients WHERE id = 'long'`)
			return time.Duration(seconds * float64(time.Second))
		}
		first := start("long", "long", long)
		waitFor(t, patience, "the one with the longest TTL owns all", func() bool { return owns("long") == partitions })
		first.Kill()
		tally.Fault(t, "kill")
		waitFor(t, long, "it expires soon", func() bool { return longExpires() < head })

		began := time.Now() // no client has watched for longer
		// A watch tolerates slower round trips the longer the client's TTL is, and this watch must
		// last for long.
		survivor := opened(t, url, "survivor", quietly(t), pgleases.WithTTL(long), pgleases.WithHeartbeat(time.Second))
		mixed := joined(t, survivor, "mixed", partitions, pgleases.WithHandoffDelay(0))
		left := joined(t, survivor, "long", partitions, pgleases.WithHandoffDelay(0))
		logs := watched(t, map[string]*pgleases.Lease{"survivor": mixed})
		victims := []struct {
			id  string
			ttl time.Duration
			p   *faults.Process
		}{{"a", time.Second, nil}, {"b", 2 * time.Second, nil}, {"c", 4 * time.Second, nil}}
		for i, v := range victims {
			victims[i].p = start(v.id, "mixed", v.ttl)
		}
		waitFor(t, patience, "each has its share", func() bool {
			return owns("a") == 4 && owns("b") == 4 && owns("c") == 4 && len(mixed.Values()) == 4
		})
		waitFor(t, patience, "the first has expired", func() bool { return longExpires() < 0 })
		var took []time.Duration
		for _, v := range victims {
			killed := time.Now()
			v.p.Kill()
			tally.Fault(t, "kill")
			waitFor(t, v.ttl+late, v.id+" is taken over", func() bool { return owns(v.id) == 0 })
			took = append(took, time.Since(killed))
		}
		switch since := time.Since(began); {
		case owns("long") == partitions:
		case since < long:
			t.Errorf("the first was evicted %v after the oldest client began, which is no watch of %v", since, long)
		default:
			missed(t, began, long/2, "the others were taken over when the first could be too")
		}
		waitFor(t, time.Until(began.Add(long+late)), "the first is taken over", func() bool {
			return len(left.Values()) == partitions
		})
		t.Logf("TTLs of 1, 2 and 4 s: taken over %v after a kill; the first %v after a client began to watch",
			took, time.Since(began))
		others := testkit.Must(leases.Read(dirs["mixed"]))(t)
		t.Log(verify(t, append(others, logs()...)))
		verifyDir(t, dirs["long"])
	})
}
