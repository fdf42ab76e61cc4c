//go:build linux

package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/pgleases/pgleases/internal/admin"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
)

// Without a database there are no old numbers, and with it again there are new ones.
func TestMetricsWithoutDatabase(t *testing.T) {
	t.Parallel()
	var wire testkit.Wire
	url, _ := pgtest.DirectURL(pgtest.MigratedDatabase(t))
	e := &exposition{admin: testkit.Must(admin.New(testkit.Pool(t, url, wire.Carry)))(t)}
	ask := func() (int, string) {
		w := httptest.NewRecorder()
		e.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
		return w.Code, w.Body.String()
	}
	const clients = "\npgleases_database_clients 0\n"
	if code, body := ask(); code != http.StatusOK || !strings.Contains(body, clients) {
		t.Errorf("%d %s", code, body)
	}
	wire.Count("")
	testkit.Until(t, "it reads again", func() bool { ask(); return wire.Counted() > 0 })
	once := wire.Counted()
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			if code, body := ask(); code != http.StatusOK || !strings.Contains(body, clients) {
				t.Errorf("%d %s", code, body)
			}
		})
	}
	all.Wait()
	if n := wire.Counted(); n > 2*once { // a second may have passed
		t.Errorf("50 requests at once read with %d messages, one with %d", n-once, once)
	}
	wire.Cut()
	testkit.Until(t, "numbers are too old", func() bool {
		code, body := ask()
		return code == http.StatusServiceUnavailable && !strings.Contains(body, "pgleases_database")
	})
	wire.Mend()
	if code, body := ask(); code != http.StatusOK || !strings.Contains(body, clients) {
		t.Errorf("after the outage: %d %s", code, body)
	}
}
