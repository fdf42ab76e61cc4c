package pgleases_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases"
)

// A wire is a client's way to the server. Cut, the server sees what it sees when the process dies, and the client cannot connect again.
type wire struct {
	mu    sync.Mutex // guards what follows
	conns []net.Conn
	cut   bool
}

func (w *wire) config(t *testing.T, url string) *pgx.ConnConfig {
	t.Helper()
	config, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	dial := config.DialFunc
	config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.cut {
			return nil, errors.New("the wire is cut")
		}
		conn, err := dial(ctx, network, address)
		w.conns = append(w.conns, conn)
		return conn, err
	}
	return config
}

func (w *wire) sever() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = true
	for _, conn := range w.conns {
		_ = conn.Close()
	}
}

func (w *wire) mend() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = false
}

// The TTL is longer than this test may take.
func TestAClientWithFastFailoverIsTakenOverWhenItsConnectionEndsAndOneWithoutIsNot(t *testing.T) {
	t.Parallel()
	for _, fast := range []bool{true, false} {
		url := direct(t)
		pool := newPool(t, url)
		var way wire
		var book logbook
		opts := []pgleases.Option{pgleases.WithClientID("leaves"), pgleases.WithTTL(4 * patience), pgleases.WithConnConfig(way.config(t, url)), pgleases.WithPolling()}
		if fast {
			opts = append(opts, pgleases.WithFastFailover())
		}
		if value[int](t, pool, "SELECT current_setting('server_version_num')::int / 10000") < 15 && fast {
			_, err := pgleases.NewClient(t.Context(), pool, opts...)
			refused(t, "NewClient", err, "WithFastFailover", "15 or later")
			return
		}
		c := newClient(t, pool, opts...)
		leaves := joined(t, c, "work", 4)
		untilOwns(t, leaves, 4)
		p, _ := leaves.Partition(0)
		stays := newClient(t, pool, pgleases.WithClientID("stays"), pgleases.WithTTL(4*patience), pgleases.WithFastFailover(), book.option())
		l := joined(t, stays, "work", 4, pgleases.WithWeight(0))
		untilValue(t, pool, "it attends", true, "SELECT count(*) > 0 FROM pgleases.presences JOIN pgleases.clients USING (session) WHERE id = 'stays'")
		held := value[int](t, pool, "SELECT count(*) FROM pgleases.presences JOIN pg_locks ON (classid::bigint << 32) | objid::bigint = presence WHERE locktype = 'advisory'")
		if want := map[bool]int{true: 2, false: 1}[fast]; held != want {
			t.Errorf("fast %v: %d locks of sessions are held, not %d", fast, held, want)
		}
		beats(t, stays, 3) // it has looked
		way.sever()
		if fast {
			wraps(t, "the ownership's context", ended(t, "the ownership ends", p.Context()), pgleases.ErrTrustLost)
			if err := l.SetWeight(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
			untilOwns(t, l, 4)
			if len(book.lines("INFO pgleases: evicted sessions whose connection has ended", "leaves")) != 1 {
				t.Errorf("nobody says that it was evicted: %v", book.lines())
			}
		} else {
			beats(t, stays, 10)
			if n := len(leaves.Values()); n != 4 || p.Context().Err() != nil || len(book.lines("evicted")) > 0 {
				t.Errorf("without fast fail-over it owns %d of 4: %v", n, book.lines("evicted"))
			}
		}
		way.mend()
		beats(t, c, 2) // so that it closes in good order
	}
}
