//go:build unix

package proof_test

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/timeguard"
	"github.com/pgleases/pgleases/proof/faults"
	"github.com/pgleases/pgleases/proof/pgserver"
)

// behindPooler starts a PgBouncer in front of a database, with a proxy in between, and returns the
// URL through both.
func behindPooler(t testing.TB, database *faults.Database) string {
	t.Helper()
	database.Behind = newProxy(t, database.URL)
	bouncer, err := pgserver.PgBouncer(t.Context(), database.Behind.URL(),
		// Otherwise PgBouncer waits 15 s before it uses a server that came back.
		pgserver.WithBouncerSettings(map[string]string{"server_login_retry": "1"}))
	pgserver.Required(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s, the end of its log:\n%s", bouncer.Describe(), bouncer.Log())
		}
		if err := bouncer.Stop(); err != nil {
			t.Error(err)
		}
	})
	database.Bouncer = bouncer
	return bouncer.URL()
}

// Locks and partitions through PgBouncer, with faults of PgBouncer and of its connections to the
// server. Not in parallel with other tests: if a busy machine answers later than the clients'
// timeouts, each client closes its connection, and PgBouncer closes a server connection with it.
func TestOneLockHolderThroughPoolerUnderFaults(t *testing.T) {
	timeguard.Run(t, func(t *timeguard.Try) {
		const total = 30
		database := &faults.Database{URL: pgserver.Private(t).URL()}
		url := behindPooler(t, database)
		check(t, attack(t, rand.Uint64(), time.Minute, url, database, func(f *faults.Fleet) {
			f.Enough = func(counts map[string]int) bool {
				return sum(counts) >= total && slices.Min(slices.Collect(maps.Values(counts))) > 0
			}
		}), total, 1)
	})
}

// The application's transactions hold every server connection of a PgBouncer for longer than the
// TTL. A client whose own connection goes through PgBouncer loses its trust as promised. A client
// that connects directly loses nothing, and takes over.
func TestSaturatedPoolerCostsOnlyItsClients(t *testing.T) {
	t.Parallel()
	timeguard.Run(t, func(t *timeguard.Try) {
		const slots, partitions = 3, 8
		past := direct(t)
		since := time.Now()
		most := bears(time.Second, time.Second/3)
		through := bouncerTo(t, past, pgserver.WithPoolSize(slots))
		config := testkit.Must(pgx.ParseConfig(past))(t)
		pool := testkit.Pool(t, through, size(slots))
		var book, pastBook logbook
		c := newClient(t, pool, book.option(), pgleases.WithClientID("through"), pgleases.WithTTL(time.Second))
		d := newClient(t, pool, pastBook.option(), pgleases.WithClientID("past"), pgleases.WithTTL(time.Second),
			pgleases.WithConnConfig(config))
		a := joined(t, c, "work", partitions, pgleases.WithHandoffDelay(0))
		b := joined(t, d, "work", partitions, pgleases.WithHandoffDelay(0))
		until(t, "each owns half", func() bool {
			return len(a.Values()) == partitions/2 && len(b.Values()) == partitions/2
		}, a, b)
		beats(t, d, 6) // 3 in a TTL, so it may take over
		logs := watched(t, map[string]*pgleases.Lease{"through": a, "past": b})
		held := func(l *pgleases.Lease) (all []pgleases.Partition) {
			for _, n := range l.Values() {
				all = append(all, ownership(t, l, n))
			}
			return all
		}
		lost, kept := held(a), held(b)
		before := c.Stats().Losses

		var open []pgx.Tx
		for range slots {
			tx := testkit.Must(pool.Begin(t.Context()))(t)
			testkit.Must(tx.Exec(t.Context(), "SELECT 1"))(t)           // now it holds a server connection
			t.Cleanup(func() { _ = tx.Rollback(context.Background()) }) // if the test failed before
			open = append(open, tx)
		}
		for _, p := range lost {
			if cause := ended(t, "its ownerships end", p.Context()); !errors.Is(cause, pgleases.ErrTrustLost) {
				t.Errorf("partition %v ended with %v", p, cause)
			}
		}
		if values, trust := a.Values(), c.Stats().Trust; len(values) > 0 || trust > 0 {
			t.Errorf("through the pooler it still has %v, trust %v", values, trust)
		}
		until(t, "the other has taken over all", func() bool { return len(b.Values()) == partitions }, b)

		for _, tx := range open {
			if err := tx.Rollback(t.Context()); err != nil {
				t.Error(err)
			}
		}
		until(t, "each owns half again", func() bool {
			return len(a.Values()) == partitions/2 && len(b.Values()) == partitions/2
		}, a, b)
		if report := verify(t, logs()); report.Intervals == 0 {
			t.Error("the oracle recorded no interval")
		}
		for _, words := range []string{"trust lost", "session was evicted"} {
			if lines := book.lines(words); len(lines) != 1 {
				missed(t, since, most, "%s was logged %d times: %q", words, len(lines), book.lines())
			}
		}
		before.TrustLost += partitions / 2
		if losses := c.Stats().Losses; losses != before {
			missed(t, since, most, "through the pooler it lost %+v, not %+v", losses, before)
		}
		if lines := pastBook.lines("WARN"); len(lines) > 0 {
			missed(t, since, most, "past the pooler it warned: %q", lines)
		}
		if losses := d.Stats().Losses; losses != (pgleases.Losses{Handoff: partitions / 2}) {
			missed(t, since, most, "past the pooler it lost %+v", losses)
		}
		// It gave back what it had taken over, and kept its own.
		for _, p := range kept {
			if now, ok := b.Partition(p.Number); !ok || now != p || p.Context().Err() != nil {
				missed(t, since, most, "past the pooler %v became %v, %v", p, now, ok)
			}
		}
	})
}
