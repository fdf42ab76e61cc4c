// Package clients opens clients for tests.
package clients

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/testkit"
)

const (
	// TTL is the TTL of clients that no test expects to expire: even on a busy machine they do not
	// lose their trust.
	TTL = time.Minute
	// Heartbeat is short, so that clients see soon what they see at a heartbeat.
	Heartbeat = 200 * time.Millisecond
)

// New opens a client with TTL and Heartbeat. The test gets its log, and closes it.
func New(t testing.TB, pool *pgxpool.Pool, opts ...pgleases.Option) *pgleases.Client {
	t.Helper()
	c := testkit.Must(pgleases.NewClient(t.Context(), pool, append([]pgleases.Option{
		pgleases.WithLogger(slog.New(slog.NewTextHandler(t.Output(), nil))),
		pgleases.WithTTL(TTL), pgleases.WithHeartbeat(Heartbeat),
	}, opts...)...))(t)
	t.Cleanup(func() {
		if c.Err() != nil { // the test has checked what Close returned
			return
		}
		// On a busy machine a client with a short TTL loses its trust, and its connection. Then it
		// releases no partition.
		err := closeIt(c)
		if err == nil || c.Stats().Losses.TrustLost > 0 && strings.Contains(err.Error(), "not released") {
			return
		}
		t.Errorf("Close of %s returned %v, not nil", c.ID(), err)
	})
	return c
}

// Beats waits until that many more heartbeats of a client succeeded.
func Beats(t testing.TB, c *pgleases.Client, n int) {
	t.Helper()
	// The last heartbeat was sent between these times, because this goroutine may be stopped in between.
	sent := func() (from, to time.Time) {
		before := time.Now()
		age := c.Stats().HeartbeatAge
		return before.Add(-age), time.Now().Add(-age)
	}
	_, last := sent()
	testkit.Until(t, fmt.Sprintf("%d heartbeats of %s succeed", n, c.ID()), func() bool {
		from, to := sent()
		if from.After(last) {
			last = to
			n--
		}
		return n <= 0
	})
}

// Close closes a client, and fails the test if it returns an error.
func Close(t testing.TB, c *pgleases.Client) {
	t.Helper()
	if err := closeIt(c); err != nil {
		t.Errorf("Close of %s returned %v, not nil", c.ID(), err)
	}
}

func closeIt(c *pgleases.Client) error {
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	return c.Close(ctx)
}
