//go:build unix

package proof_test

import (
	"net/url"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/timeguard"
	"github.com/pgleases/pgleases/proof/pgserver"
)

func TestReadOnlyServerIsLeftAndReturnedTo(t *testing.T) {
	t.Parallel()
	timeguard.Run(t, func(t *timeguard.Try) {
		server := pgserver.Private(t)
		admin := testkit.Pool(t, server.URL())
		var book logbook
		c := newClient(t, testkit.Pool(t, server.URL()), book.option(), pgleases.WithHeartbeat(50*time.Millisecond))
		l := joined(t, c, "work", 4)
		until(t, "it owns all", func() bool { return len(l.Values()) == 4 }, l)
		p, changed := ownership(t, l, 0), l.Changed()
		testkit.Execute(t, admin, `ALTER SYSTEM SET default_transaction_read_only = on`)
		testkit.Execute(t, admin, `SELECT pg_reload_conf()`)
		until(t, "the connection is given up", func() bool { return connections(t, admin) == 0 })
		until(t, "it was notified", func() bool {
			lines := book.lines("connect failed", "default_transaction_read_only is on")
			return len(lines) == 1 && c.Stats().HeartbeatAge > 300*time.Millisecond
		})
		loses, want := fast(t, admin), 4
		if loses { // the client has ended the connection itself
			want = 0
		}
		if s := c.Stats(); s.Owned != want || (s.Trust == 0) != loses {
			t.Errorf("stats while there is no server to write to: %+v", s)
		}
		testkit.Execute(t, admin, `ALTER SYSTEM SET default_transaction_read_only = off`)
		testkit.Execute(t, admin, `SELECT pg_reload_conf()`)
		until(t, "it has returned", func() bool { return c.Stats().Reconnects == 1 })
		beats(t, c, 3)
		if loses {
			until(t, "it owns all again", func() bool { return len(l.Values()) == 4 }, l)
			if now := ownership(t, l, 0); now.Epoch <= p.Epoch {
				t.Errorf("%v was lost, and became %v", p, now)
			}
			return
		}
		if now, ok := l.Partition(0); !ok || now != p {
			t.Errorf("%v became %v", p, now)
		}
		select {
		case <-changed:
			t.Error("something changed")
		default:
		}
	})
}

func TestMissingNotificationsAreDetected(t *testing.T) {
	t.Parallel()
	timeguard.Run(t, func(t *timeguard.Try) {
		url := direct(t)
		through := bouncerTo(t, url)
		var book logbook
		often := pgleases.WithHeartbeat(100 * time.Millisecond)
		clients := []*pgleases.Client{
			newClient(t, testkit.Pool(t, url), pgleases.WithClientID("direct")),
			newClient(t, testkit.Pool(t, through), pgleases.WithClientID("pooled"), book.option(), often),
			newClient(t, testkit.Pool(t, url), pgleases.WithClientID("polling"), pgleases.WithPolling(), often),
		}
		leases := make([]*pgleases.Lease, len(clients))
		for i, c := range clients {
			leases[i] = joined(t, c, "work", 9, pgleases.WithHandoffDelay(0))
		}
		until(t, "each owns a third", func() bool { return shared(leases...) }, leases...)
		until(t, "the modes of listening are known", func() bool {
			return clients[0].Stats().Listening && len(book.lines("polling")) == 1
		})
		beats(t, clients[1], 5)
		for i, want := range []bool{true, false, false} {
			if s := clients[i].Stats(); s.Listening != want || s.Reconnects != 0 {
				t.Errorf("stats of %s: %+v", clients[i].ID(), s)
			}
		}
		if lines := book.lines("notifications do not arrive"); len(lines) != 1 {
			t.Errorf("it was logged as %q", lines)
		}
		if err := pgx.BeginFunc(t.Context(), testkit.Pool(t, through), func(tx pgx.Tx) error {
			return leases[1].Guard(t.Context(), tx, ownership(t, leases[1], leases[1].Values()[0]))
		}); err != nil {
			t.Errorf("Guard through the pooler: %v", err)
		}
		shut(t, clients[0])
		began := time.Now()
		until(t, "the rest share it", func() bool { return len(leases[1].Values())+len(leases[2].Values()) == 9 })
		t.Logf("polling, they own all after %v", time.Since(began))
		if took := time.Since(began); took > 250*time.Millisecond+slack {
			missed(t, began, 250*time.Millisecond+slack, "they own all after %v, with a heartbeat of 100 ms", took)
		}
		shut(t, clients[2])
		until(t, "the last owns all", func() bool { return len(leases[1].Values()) == 9 }, leases[1])
	})
}

// The first of two hosts refuses writes, and the second accepts them.
func TestWritableHostIsChosen(t *testing.T) {
	t.Parallel()
	timeguard.Run(t, func(t *timeguard.Try) {
		var hosts []string
		for range 2 {
			hosts = append(hosts, pgserver.Private(t).URL())
		}
		testkit.Execute(t, testkit.Pool(t, hosts[0]), `ALTER SYSTEM SET default_transaction_read_only = on`)
		testkit.Execute(t, testkit.Pool(t, hosts[0]), `SELECT pg_reload_conf()`)
		both, second := parsed(t, hosts[0]), parsed(t, hosts[1])
		both.Host += "," + second.Host
		c := testkit.Must(pgleases.Open(t.Context(), both.String(), pgleases.WithClientID("a")))(t)
		defer shut(t, c)
		pool := testkit.Pool(t, hosts[1])
		until(t, "the second server has the client", func() bool {
			return count(t, pool, "pg_stat_activity WHERE application_name = 'pgleases'") == 1
		})
		if n := count(t, pool, "pgleases.clients WHERE id = 'a'"); n != 1 {
			t.Errorf("the second server has %d sessions of the client, not 1", n)
		}
	})
}

func parsed(t testing.TB, text string) *url.URL {
	t.Helper()
	return testkit.Must(url.Parse(text))(t)
}
