package lock_test

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/testkit/clients"
	"github.com/pgleases/pgleases/lock"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// A worker is a process that takes locks: a client, and a pool of its application's.
type worker struct {
	*lock.Locks
	t      testing.TB
	client *pgleases.Client
	pool   *pgxpool.Pool
	own    *testkit.Wire // of the client's own connection
	app    *testkit.Wire // of the pool's
}

// newDatabase is one with the tables, through a pooler where there is one.
func newDatabase(t testing.TB) string {
	t.Helper()
	return pgtest.MigratedDatabase(t)
}

// direct is one past any pooler: for a test of what a pooler hides.
func direct(t testing.TB) string {
	t.Helper()
	url, _ := pgtest.DirectURL(newDatabase(t))
	return url
}

func newWorker(t testing.TB, url string, opts ...pgleases.Option) *worker {
	t.Helper()
	w := &worker{t: t, own: new(testkit.Wire), app: new(testkit.Wire)}
	w.pool = testkit.Pool(t, url, w.app.Carry, func(c *pgxpool.Config) { c.MaxConns = 4 })
	own := testkit.Must(pgx.ParseConfig(url))(t)
	own.DialFunc = w.own.Dial
	id := "worker " + rand.Text()
	own.RuntimeParams["application_name"] = id
	w.client = testkit.Must(pgleases.NewClient(t.Context(), w.pool, append([]pgleases.Option{
		pgleases.WithClientID(id),
		pgleases.WithLogger(slog.New(slog.NewTextHandler(t.Output(), nil))), pgleases.WithConnConfig(own),
		pgleases.WithTTL(clients.TTL), pgleases.WithHeartbeat(clients.Heartbeat),
	}, opts...)...))(t)
	w.Locks = lock.New(w.client, w.pool)
	t.Cleanup(func() {
		if w.client.Err() == nil {
			ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
			defer cancel()
			_ = w.client.Close(ctx) // the error names what a test left held
		}
	})
	return w
}

func expect[T comparable](t testing.TB, got, want T, what string) {
	t.Helper()
	if got != want {
		t.Fatalf("%s: got %v, want %v", what, got, want)
	}
}

// wraps fails the test unless err wraps all of these errors.
func wraps(t testing.TB, what string, err error, wanted ...error) {
	t.Helper()
	for _, want := range wanted {
		if !errors.Is(err, want) {
			t.Fatalf("%s: %v, not %q", what, err, want)
		}
	}
	if testing.Verbose() {
		t.Logf("%s: %v", what, err)
	}
}

// held is a lock that must be free, or is waited for.
func (w *worker) held(acquire func(context.Context, string) (*lock.Held, error), name string) *lock.Held {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), testkit.Patience)
	defer cancel()
	return testkit.Must(acquire(ctx, name))(w.t)
}

// waits makes a worker wait for a lock; the result is delivered when it gets the lock.
func (w *worker) waits(
	db *pgxpool.Pool, acquire func(context.Context, string) (*lock.Held, error), name string,
) <-chan *lock.Held {
	w.t.Helper()
	before := testkit.Value[int](w.t, db, "SELECT count(*) FROM pgleases.locks WHERE token IS NULL")
	got := make(chan *lock.Held, 1)
	go func() {
		h, err := acquire(w.t.Context(), name)
		if err != nil {
			w.t.Errorf("%s waits for %q: %v", w.client.ID(), name, err)
		}
		got <- h
	}()
	testkit.Until(w.t, "it waits", func() bool {
		return testkit.Value[int](w.t, db, "SELECT count(*) FROM pgleases.locks WHERE token IS NULL") > before
	})
	return got
}

// looked waits until a client has checked whether its lock was granted, since its wire counts
// lock_look: from then on it needs a notification or a heartbeat.
func (w *worker) looked(db *pgxpool.Pool) {
	w.t.Helper()
	const idle = `SELECT count(*) FROM pg_stat_activity
		WHERE datname = current_database() AND application_name = $1 AND state = 'idle'`
	testkit.Until(w.t, "it has looked at what waits", func() bool {
		return w.own.Counted() > 0 && testkit.Value[int](w.t, db, idle, w.client.ID()) == 1
	})
}

func release(t testing.TB, h *lock.Held) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	testkit.OK(t, h.Release(ctx))
}
