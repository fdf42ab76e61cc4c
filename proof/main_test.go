package proof_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/testkit/clients"
	"github.com/pgleases/pgleases/internal/timeguard"
	"github.com/pgleases/pgleases/proof/faults"
)

func TestMain(m *testing.M) {
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
		_ = flag.Set(f.Name, "4") // they wait most of the time; each may have a dozen processes and servers
	}
	if os.Getenv("PGLEASES_TEST_POSTGRES") == "" {
		_ = os.Setenv("PGLEASES_TEST_POSTGRES", "programs") // as the servers of package pgserver
	}
	code, err := probed(m)
	if err == nil && code == 0 {
		err = testkit.Leftover()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// probeURL is the URL of a database without faults.
var probeURL string

// probed runs the tests, with a probe of the machine's time beside them.
func probed(m *testing.M) (code int, err error) {
	url, drop, err := pgtest.NewDatabase(context.Background())
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, drop()) }()
	probeURL, _ = pgtest.DirectURL(url)
	ctx, cancel := context.WithCancel(context.Background())
	var wait sync.WaitGroup
	wait.Go(func() { timeguard.Probe(ctx, probeURL, timeguard.NewRecord("the test process").Add) })
	defer wait.Wait()
	defer cancel()
	return m.Run(), nil
}

// patience bounds the wait for a condition that should hold soon.
const patience = 60 * time.Second

// slack is added to a promised figure on a loaded machine.
const slack = 2 * time.Second

// brief reports whether tests should repeat less often. The race detector finds a race in a few
// rounds too, and makes every round slower.
func brief() bool { return testing.Short() || raceDetector }

// direct returns the URL of a new database without a pooler: for tests of the client's own
// connection, which a pooler hides, and of figures that depend on notifications.
func direct(t testing.TB) string {
	t.Helper()
	url, _ := pgtest.DirectURL(pgtest.Database(t))
	return url
}

// ownersPool returns a pool on the same database for statements that are not a client's: see
// pgtest.OwnerURL.
func ownersPool(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	return testkit.Pool(t, pgtest.OwnerURL(url))
}

// newClient opens a client that logs to the test, and is closed at the end of the test.
func newClient(t testing.TB, pool *pgxpool.Pool, opts ...pgleases.Option) *pgleases.Client {
	t.Helper()
	logger := slog.New(slog.NewTextHandler(t.Output(), nil))
	began := time.Now()
	c, err := faults.Opened(func(opts ...pgleases.Option) (*pgleases.Client, error) {
		return pgleases.NewClient(t.Context(), pool, opts...)
	}, append([]pgleases.Option{pgleases.WithLogger(logger)}, opts...)...)
	if err != nil {
		missed(t, began, time.Since(began), "a client was not opened: %v", err)
	}
	t.Cleanup(func() {
		if c.Err() == nil { // else the test has checked the result of Close
			shut(t, c)
		}
	})
	return c
}

func shut(t testing.TB, c *pgleases.Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := c.Close(ctx); err != nil {
		// The machine was late, and the scenario ended at any point.
		if try, ok := t.(*timeguard.Try); ok && try.Over() {
			t.Logf("close %s: %v", c.ID(), err)
			return
		}
		t.Errorf("close %s: %v", c.ID(), err)
	}
}

// joined joins a lease.
func joined(
	t testing.TB, c *pgleases.Client, name string, partitions int, opts ...pgleases.LeaseOption,
) *pgleases.Lease {
	t.Helper()
	began := time.Now()
	l, err := c.Lease(t.Context(), name, partitions, opts...)
	if err != nil {
		missed(t, began, time.Since(began), "%s did not join %s: %v", c.ID(), name, err)
	}
	return l
}

// waitFor polls a condition that has no notification, until it holds.
func waitFor(t testing.TB, within time.Duration, what string, holds func() bool) {
	t.Helper()
	began := time.Now()
	if !comesTrue(within, holds) {
		missed(t, began, within, "not within %v: %s", within, what)
	}
}

// missed reports that a condition did not hold within a time since a moment: see
// timeguard.Try.Missed. Outside timeguard.Run it fails the test.
func missed(t testing.TB, since time.Time, within time.Duration, format string, args ...any) {
	t.Helper()
	if try, ok := t.(*timeguard.Try); ok {
		try.Missed(since, within, format, args...)
	}
	t.Fatalf(format, args...)
}

// tooLittle reports that what was done since a moment proves little, with what it was.
func tooLittle(t testing.TB, since time.Time, format string, args ...any) {
	t.Helper()
	missed(t, since, time.Since(since), "%s: the test covered too little", fmt.Sprintf(format, args...))
}

// count returns how many rows there are.
func count(t testing.TB, pool *pgxpool.Pool, rows string, args ...any) int {
	t.Helper()
	return testkit.Value[int](t, pool, "SELECT count(*) FROM "+rows, args...)
}

func comesTrue(within time.Duration, holds func() bool) bool {
	look := time.NewTicker(2 * time.Millisecond)
	defer look.Stop()
	late := time.After(within)
	for !holds() {
		select {
		case <-look.C:
		case <-late:
			return holds()
		}
	}
	return true
}

// until waits until a condition on leases holds, and logs what they own if it does not.
func until(t testing.TB, what string, holds func() bool, leases ...*pgleases.Lease) {
	t.Helper()
	began := time.Now()
	if comesTrue(patience, holds) {
		return
	}
	for _, l := range leases {
		t.Logf("%s owns %v", l.Name(), l.Values())
	}
	missed(t, began, patience, "not true within %v: %s", patience, what)
}

// ended waits for the end of a context, and returns the cause.
func ended(t testing.TB, what string, ctx context.Context) error {
	t.Helper()
	testkit.Receive(t, what, ctx.Done())
	return context.Cause(ctx)
}

var beats = clients.Beats

// A logbook keeps what clients log.
type logbook struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func (b *logbook) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// option makes a client log into the book.
func (b *logbook) option() pgleases.Option {
	return pgleases.WithLogger(slog.New(slog.NewTextHandler(b, nil)))
}

// lines returns the logged lines that contain all the words.
func (b *logbook) lines(words ...string) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.DeleteFunc(strings.Split(strings.TrimSpace(b.text.String()), "\n"), func(line string) bool {
		return line == "" || slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(line, word) })
	})
}

// canceled returns a context that has ended.
func canceled(cause error) context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(cause)
	return ctx
}

// connections counts the clients' own connections to a database.
func connections(t testing.TB, pool *pgxpool.Pool) int {
	t.Helper()
	return testkit.Value[int](t, pool, `SELECT count(*) FROM pg_stat_activity
		WHERE datname = current_database() AND application_name = 'pgleases'`)
}
