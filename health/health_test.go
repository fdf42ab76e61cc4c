package health_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/health"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/testkit/clients"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// probe returns the status and the text that a handler responds with.
func probe(h http.Handler) (int, string) {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	return w.Code, w.Body.String()
}

func expect(t *testing.T, what string, h http.Handler, status int, text string) {
	t.Helper()
	if code, body := probe(h); code != status || !strings.Contains(body, text) {
		t.Errorf("%s: %d %q, not %d with %q", what, code, body, status, text)
	}
}

// becomes waits until a handler responds with a status and a text, and checks meanwhile that the
// client counts as alive.
func becomes(t *testing.T, c *pgleases.Client, status int, text string) {
	t.Helper()
	testkit.Until(t, "readiness is "+text, func() bool {
		if code, body := probe(health.Liveness(c)); code != http.StatusOK {
			t.Errorf("liveness: %d %q", code, body)
		}
		code, body := probe(health.Readiness(c))
		return code == status && strings.Contains(body, text)
	})
}

// A liveness probe that fails in an outage of the database restarts all processes.
func TestOutageFailsReadinessOnly(t *testing.T) {
	t.Parallel()
	var wire testkit.Wire
	url, _ := pgtest.DirectURL(pgtest.MigratedDatabase(t))
	c := clients.New(t, testkit.Pool(t, url, wire.Carry), pgleases.WithTTL(time.Second))
	testkit.Must(c.Lease(t.Context(), "work", 4))(t)
	becomes(t, c, http.StatusOK, "ok")
	wire.Cut()
	becomes(t, c, http.StatusServiceUnavailable, "trust is lost: the last successful heartbeat was sent ")
	testkit.Until(t, "the outage lasts for two TTLs", func() bool { return c.Stats().HeartbeatAge > 2*time.Second })
	becomes(t, c, http.StatusServiceUnavailable, "trust is lost")
	wire.Mend()
	becomes(t, c, http.StatusOK, "ok")
}

func TestReadinessWaitsForEachJoin(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t, pgtest.MigratedDatabase(t))
	first := clients.New(t, pool)
	testkit.Must(first.Lease(t.Context(), "work", 4))(t)
	c := clients.New(t, pool)
	becomes(t, c, http.StatusServiceUnavailable, "no lease is joined yet")
	testkit.Must(c.Lease(t.Context(), "other", 4))(t)
	becomes(t, c, http.StatusOK, "ok")

	tx := testkit.Must(pool.Begin(t.Context()))(t)
	defer func() { _ = tx.Rollback(context.Background()) }() // also if the test fails: clients close after it
	testkit.Must(tx.Exec(t.Context(), "SELECT FROM pgleases.leases WHERE name = 'work' FOR UPDATE"))(t)
	joined := make(chan error, 1)
	go func() {
		_, err := c.Lease(context.WithoutCancel(t.Context()), "work", 4)
		joined <- err
	}()
	becomes(t, c, http.StatusServiceUnavailable, `lease "work" is not joined yet`)
	testkit.OK(t, tx.Rollback(t.Context()))
	testkit.OK(t, testkit.Receive(t, "it joins", joined))
	becomes(t, c, http.StatusOK, "ok")
}

func TestClientThatEndedIsNotAlive(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t, pgtest.MigratedDatabase(t))
	older := clients.New(t, pool, pgleases.WithClientID("a"))
	testkit.Must(older.Lease(t.Context(), "work", 4))(t)
	newer := clients.New(t, pool, pgleases.WithClientID("a"))
	testkit.Receive(t, "the older ends", older.Done())
	expect(t, "liveness of the superseded", health.Liveness(older), http.StatusServiceUnavailable, "superseded")
	expect(t, "readiness of the superseded", health.Readiness(older), http.StatusServiceUnavailable,
		"the client ends: pgleases: superseded")

	lease := testkit.Must(newer.Lease(t.Context(), "work", 4))(t)
	testkit.OK(t, lease.Wait(t.Context()))
	hold := lease.Hold(t.Context())
	closed := make(chan error, 1)
	go func() { closed <- newer.Close(context.WithoutCancel(t.Context())) }()
	becomes(t, newer, http.StatusServiceUnavailable, "the client ends: pgleases: closed")
	hold.Release()
	testkit.OK(t, testkit.Receive(t, "Close returns", closed))
	becomes(t, newer, http.StatusServiceUnavailable, "the client ends: pgleases: closed")
}

// What a probe reads must not count as read: otherwise each handoff waits for the handoff delay.
func TestProbesDelayNoHandoff(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t, pgtest.MigratedDatabase(t))
	a := clients.New(t, pool)
	testkit.Must(a.Lease(t.Context(), "work", 4, pgleases.WithHandoffDelay(time.Hour)))(t)
	testkit.Until(t, "it owns all", func() bool { return a.Stats().Owned == 4 })
	becomes(t, a, http.StatusOK, "ok")
	other := testkit.Must(clients.New(t, pool).Lease(t.Context(), "work", 4))(t)
	for beats := 0; other.Stats().Owned < 2; beats++ {
		if beats == 20 {
			t.Fatalf("not handed over: %+v", a.Stats())
		}
		becomes(t, a, http.StatusOK, "ok")
		clients.Beats(t, a, 1)
	}
}

func TestHandlersWithoutAClientRefuse(t *testing.T) {
	expect(t, "liveness", health.Liveness(nil), http.StatusServiceUnavailable, "the client is nil")
	expect(t, "readiness", health.Readiness(nil), http.StatusServiceUnavailable, "the client is nil")
}
