package lock_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/tests"
	"github.com/pgleases/pgleases/lock"
)

func TestMain(m *testing.M) { tests.Main(m) }

const (
	// calmTTL is that of clients which no test expects to die.
	calmTTL = time.Minute
	// calmHeartbeat is short all the same, so that what is seen at a heartbeat is seen soon.
	calmHeartbeat = 200 * time.Millisecond
)

// A worker is a process that takes locks: a client, and a pool of its application's.
type worker struct {
	*lock.Locks
	t      testing.TB
	client *pgleases.Client
	pool   *pgxpool.Pool
	own    *wire // of the client's own connection
	app    *wire // of the pool's
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
	w := &worker{t: t, own: newWire(), app: newWire()}
	w.pool = tests.Pool(t, url, func(c *pgxpool.Config) {
		c.ConnConfig.DialFunc, c.MaxConns = w.app.dial, 4
		c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec // the wire knows a message by the statement's text
	})
	own, err := pgx.ParseConfig(url)
	tests.OK(t, err)
	own.DialFunc = w.own.dial
	id := "worker " + rand.Text()
	own.RuntimeParams["application_name"] = id
	w.client, err = pgleases.NewClient(t.Context(), w.pool, append([]pgleases.Option{
		pgleases.WithClientID(id),
		pgleases.WithLogger(slog.New(slog.NewTextHandler(t.Output(), nil))), pgleases.WithConnConfig(own),
		pgleases.WithTTL(calmTTL), pgleases.WithHeartbeat(calmHeartbeat),
	}, opts...)...)
	tests.OK(t, err)
	w.Locks = lock.New(w.client, w.pool)
	t.Cleanup(func() {
		if w.client.Err() == nil {
			ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
			defer cancel()
			_ = w.client.Close(ctx) // what a test left held is told here
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

// wraps fails the test unless err wraps all that it should.
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
	ctx, cancel := context.WithTimeout(w.t.Context(), tests.Patience)
	defer cancel()
	h, err := acquire(ctx, name)
	tests.OK(w.t, err)
	return h
}

// waits has a worker wait for a lock; the rest is delivered when it gets it.
func (w *worker) waits(db *pgxpool.Pool, acquire func(context.Context, string) (*lock.Held, error), name string) <-chan *lock.Held {
	w.t.Helper()
	before := tests.Value[int](w.t, db, "SELECT count(*) FROM pgleases.locks WHERE token IS NULL")
	got := make(chan *lock.Held, 1)
	go func() {
		h, err := acquire(w.t.Context(), name)
		if err != nil {
			w.t.Errorf("%s waits for %q: %v", w.client.ID(), name, err)
		}
		got <- h
	}()
	tests.Until(w.t, "it waits", func() bool {
		return tests.Value[int](w.t, db, "SELECT count(*) FROM pgleases.locks WHERE token IS NULL") > before
	})
	return got
}

// looked waits until a client that waits for a lock has looked whether it was granted: from then on something has to tell it.
func (w *worker) looked(db *pgxpool.Pool) {
	w.t.Helper()
	tests.Until(w.t, "it has looked at what waits", func() bool {
		return tests.Value[int](w.t, db, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = $1 AND state = 'idle' AND query LIKE '%lock_look%'",
			w.client.ID()) == 1
	})
}

func release(t testing.TB, h *lock.Held) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), tests.Patience)
	defer cancel()
	tests.OK(t, h.Release(ctx))
}

// A wire is what connections go over. It can be cut, and lose single messages.
type wire struct {
	mu    sync.Mutex // guards what follows
	cut   bool
	open  map[*wired]struct{}
	loses string        // messages with this text; empty: none
	after bool          // the message arrives, and the answer is lost
	times int           // how many
	late  chan struct{} // instead, the answer comes when this is closed; nil: it is lost

	stranded chan func() error // instead, gets what has the message arrive, on a connection that its sender has lost; nil: it is lost
}

func newWire() *wire { return &wire{open: make(map[*wired]struct{})} }

var errCut = errors.New("the wire is cut")

func (w *wire) dial(ctx context.Context, network, address string) (net.Conn, error) {
	w.mu.Lock()
	cut := w.cut
	w.mu.Unlock()
	if cut {
		return nil, errCut
	}
	c, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	conn := &wired{Conn: c, wire: w}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open[conn] = struct{}{}
	return conn, nil
}

// setCut cuts all connections, and lets no new one be made, or mends the wire.
func (w *wire) setCut(cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cut = cut; cut {
		for c := range w.open {
			_ = c.Conn.Close()
		}
		clear(w.open)
	}
}

// lose has the next messages with that text be lost, each with its connection; after: not they, but the answers.
func (w *wire) lose(times int, text string, after bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.times, w.loses, w.after = times, text, after
}

// delay has the answer to the next message with that text come when the returned function is called.
func (w *wire) delay(text string) (deliver func()) {
	w.lose(1, text, true)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.late = make(chan struct{})
	return sync.OnceFunc(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		close(w.late)
		w.late = nil
	})
}

// strand has the next message with that text arrive when the returned function is called, which waits until the server has granted it. To its
// sender the connection is lost at once.
func (w *wire) strand(text string) (deliver func() error) {
	w.lose(1, text, false)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stranded = make(chan func() error, 1)
	return sync.OnceValue(func() error {
		select {
		case arrive := <-w.stranded:
			return arrive()
		default:
			return errors.New("there was no such message")
		}
	})
}

// toLose is how many messages are still to be lost.
func (w *wire) toLose() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.times
}

type wired struct {
	net.Conn
	wire *wire
	mu   sync.Mutex // guards deaf
	deaf bool       // the next answer is lost
	late <-chan struct{}

	stranded bool // the sender has lost it, and a message is on its way
}

// Close leaves open what a message is on its way on.
func (c *wired) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stranded {
		return nil
	}
	return c.Conn.Close()
}

func (c *wired) Write(b []byte) (int, error) {
	c.mu.Lock()
	lost := c.stranded
	c.mu.Unlock()
	if lost { // the farewell
		return 0, net.ErrClosed
	}
	c.wire.mu.Lock()
	hit := c.wire.times > 0 && bytes.Contains(b, []byte(c.wire.loses))
	if hit {
		c.wire.times--
	}
	after, late, stranded := c.wire.after, c.wire.late, c.wire.stranded
	c.wire.mu.Unlock()
	if hit && !after && stranded != nil {
		c.mu.Lock()
		c.stranded = true
		c.mu.Unlock()
		message := bytes.Clone(b)
		stranded <- func() error {
			defer func() { _ = c.Conn.Close() }()
			_ = c.Conn.SetDeadline(time.Now().Add(tests.Patience))
			answer, n, err := make([]byte, 1<<10), 0, error(nil)
			for err == nil && !bytes.Contains(answer[:n], []byte("granted")) { // until the sender's attempt to cancel it has passed
				if _, err = c.Conn.Write(message); err == nil {
					n, err = c.Conn.Read(answer)
				}
			}
			if err != nil {
				return fmt.Errorf("the server has not granted it: %w", err)
			}
			return nil
		}
		return len(b), nil
	}
	if hit && !after {
		_ = c.Conn.Close()
		return len(b), nil
	}
	if hit {
		c.mu.Lock()
		c.deaf, c.late = late == nil, late
		c.mu.Unlock()
	}
	return c.Conn.Write(b)
}

func (c *wired) Read(b []byte) (int, error) {
	c.mu.Lock()
	stranded := c.stranded
	c.mu.Unlock()
	if stranded {
		return 0, io.ErrUnexpectedEOF
	}
	n, err := c.Conn.Read(b)
	c.mu.Lock()
	late := c.late
	c.late = nil
	c.mu.Unlock()
	if late != nil {
		<-late
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.deaf { // the server has done it
		_ = c.Conn.Close()
		return 0, io.ErrUnexpectedEOF
	}
	return n, err
}
