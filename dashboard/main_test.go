package dashboard_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/tests"
)

func TestMain(m *testing.M) { tests.Main(m) }

// patience bounds what a test waits for. It is reached only where that never comes.
const patience = 2 * time.Minute

// A cable leads to the database. It can be cut, and counts what is sent.
type cable struct {
	sent  atomic.Int64 // messages, or parts of large ones
	hang  atomic.Value // a text: over a connection on which it is sent no answer comes any more
	hangs atomic.Bool  // there is such a connection
	mu    sync.Mutex   // guards what follows
	cut   bool
	conns []net.Conn
}

func (c *cable) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cut {
		return nil, errors.New("the cable is cut")
	}
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	c.conns = append(c.conns, conn)
	return &counted{Conn: conn, cable: c}, nil
}

func (c *cable) set(cut bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut = cut
	if cut {
		for _, conn := range c.conns {
			_ = conn.Close()
		}
		c.conns = nil
	}
}

type counted struct {
	net.Conn
	*cable
	mute atomic.Bool
}

func (c *counted) Write(b []byte) (int, error) {
	c.sent.Add(1)
	if text, _ := c.hang.Load().(string); text != "" && bytes.Contains(b, []byte(text)) {
		c.mute.Store(true)
		c.hangs.Store(true)
	}
	return c.Conn.Write(b)
}

func (c *counted) Read(b []byte) (int, error) {
	for {
		if n, err := c.Conn.Read(b); err != nil || !c.mute.Load() {
			return n, err
		}
	}
}

func newPool(t *testing.T, url string, c *cable) *pgxpool.Pool {
	t.Helper()
	config, err := pgtest.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec // through any pooler
	if c != nil {
		config.ConnConfig.DialFunc = c.dial
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func newClient(t *testing.T, pool *pgxpool.Pool, id string) *pgleases.Client {
	t.Helper()
	c, err := pgleases.NewClient(t.Context(), pool, pgleases.WithClientID(id), pgleases.WithTTL(time.Minute), pgleases.WithHeartbeat(200*time.Millisecond),
		pgleases.WithLogger(slog.New(slog.NewTextHandler(t.Output(), nil))))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := c.Close(ctx); err != nil {
			t.Errorf("Close of %s: %v", id, err)
		}
	})
	return c
}

func join(t *testing.T, c *pgleases.Client, name string, partitions int) {
	t.Helper()
	if _, err := c.Lease(t.Context(), name, partitions, pgleases.WithHandoffDelay(0)); err != nil {
		t.Fatal(err)
	}
}

func exec(t *testing.T, url string, statements ...string) {
	t.Helper()
	pool := newPool(t, pgtest.OwnerURL(url), nil)
	defer pool.Close()
	for _, statement := range statements {
		if _, err := pool.Exec(t.Context(), statement, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
}
