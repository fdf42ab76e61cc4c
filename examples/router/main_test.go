package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/testkit/clients"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// A process is the program, with another client.
type process struct {
	client   *pgleases.Client
	lease    *pgleases.Lease
	server   *httptest.Server
	refusals *atomic.Int32 // how many requests it refuses as not its own
}

func start(t *testing.T, pool *pgxpool.Pool, id string, weight int) process {
	t.Helper()
	listener := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	address := pgleases.WithMetadata(map[string]string{"address": listener.Addr().String()})
	p := process{client: clients.New(t, pool, pgleases.WithClientID(id), address), refusals: new(atomic.Int32)}
	p.lease = testkit.Must(p.client.Lease(t.Context(), "router", 8, pgleases.WithWeight(weight)))(t)
	router := newRouter(p.client, p.lease)
	p.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if p.refusals.Add(-1) >= 0 {
			http.Error(w, "not mine", http.StatusMisdirectedRequest)
			return
		}
		router.ServeHTTP(w, req)
	}))
	p.server.Listener = listener
	p.server.Start()
	t.Cleanup(p.server.Close)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	return p
}

func (p process) owns(t *testing.T, n int) {
	t.Helper()
	testkit.Until(t, fmt.Sprint(p.client.ID(), " owns ", n), func() bool { return p.client.Stats().Owned == n })
}

func (p process) get(t *testing.T, key string) string {
	t.Helper()
	answer := testkit.Must(http.Get(p.server.URL + "/count/" + key))(t)
	defer answer.Body.Close()
	return answer.Status + " " + string(testkit.Must(io.ReadAll(answer.Body))(t))
}

// Each key has one count, wherever a request arrives.
func TestRequestsReachTheOwner(t *testing.T) {
	pool := testkit.Pool(t, pgtest.MigratedDatabase(t))
	a, b := start(t, pool, "a", 1), start(t, pool, "b", 1)
	a.owns(t, 4)
	b.owns(t, 4)
	for n := range 20 {
		key := fmt.Sprint("key-", n)
		owner := "b"
		if _, is := a.lease.Partition(a.lease.PartitionFor(key)); is {
			owner = "a"
		}
		for i, p := range []process{a, b, a} {
			want := fmt.Sprintf("200 OK %s counts %d for %s under epoch ", owner, i+1, key)
			if got := p.get(t, key); !strings.HasPrefix(got, want) {
				t.Errorf("%s answers %q, not %q", p.client.ID(), got, want)
			}
		}
	}
}

// A process with an old list of owners may ask a former owner first. That is imitated by an owner
// which says that the key is not its own, once or twice.
func TestNotMineIsTriedOnceMore(t *testing.T) {
	pool := testkit.Pool(t, pgtest.MigratedDatabase(t))
	a, b := start(t, pool, "a", 1), start(t, pool, "b", 0)
	a.owns(t, 8)
	for refusals, want := range []string{"200 OK a counts 1 for key ", "200 OK a counts 2 for key ", "503 "} {
		a.refusals.Store(int32(refusals))
		if got := b.get(t, "key"); !strings.HasPrefix(got, want) {
			t.Errorf("after %d refusals b answers %q, not %q", refusals, got, want)
		}
	}
	clients.Close(t, a.client)
	if got, want := b.get(t, "key"), "503 "; !strings.HasPrefix(got, want) {
		t.Errorf("without an owner b answers %q, not %q", got, want)
	}
}

// While a partition moves away, its requests are told to try again, and not passed on to the process
// that they came to.
func TestRequestDuringAHandoffIsNotPassedToItself(t *testing.T) {
	pool := testkit.Pool(t, pgtest.MigratedDatabase(t))
	a, b := start(t, pool, "a", 1), start(t, pool, "b", 0)
	a.owns(t, 8)
	hold := a.lease.Hold(context.Background())
	defer hold.Release() // until then no partition moves
	testkit.OK(t, b.lease.SetWeight(t.Context(), 1))
	testkit.OK(t, a.lease.SetWeight(t.Context(), 0))
	a.owns(t, 0)
	a.refusals.Store(0)
	if got, want := a.get(t, "key"), "503 "; !strings.HasPrefix(got, want) {
		t.Errorf("a answers %q, not %q", got, want)
	}
	if requests := -a.refusals.Load(); requests != 1 {
		t.Errorf("a got %d requests", requests)
	}
}
