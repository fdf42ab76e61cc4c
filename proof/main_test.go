package proof_test

import (
	"context"
	"crypto/rand"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/proof/faults"
	"github.com/pgleases/pgleases/proof/pgserver"
	"github.com/pgleases/pgleases/proof/timeguard"
)

func TestMain(m *testing.M) {
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
		_ = flag.Set(f.Name, "4") // they wait most of the time; each may have a dozen processes and servers
	}
	code := pgserver.Main(probed{m})
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, "after all tests:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// probed runs the tests, with a probe of the machine's time beside them.
type probed struct{ *testing.M }

func (m probed) Run() int {
	url, err := pgserver.Shared()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wait sync.WaitGroup
	wait.Go(func() { timeguard.Probe(ctx, url, timeguard.NewRecord("the test process").Add) })
	defer wait.Wait()
	defer cancel()
	return m.M.Run()
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
	url, _ := pgserver.DirectURL(pgserver.Database(t))
	return url
}

// newPool returns a pool on a database, which is closed at the end of the test.
func newPool(t testing.TB, url string, configure ...func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range configure {
		f(config)
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// ownersPool returns a pool on the same database for statements that are not a client's: see
// pgserver.OwnerURL.
func ownersPool(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	return newPool(t, pgserver.OwnerURL(url))
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
func joined(t testing.TB, c *pgleases.Client, name string, partitions int, opts ...pgleases.LeaseOption) *pgleases.Lease {
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

// until waits until a condition on leases holds. It checks the condition whenever one of them
// changes.
func until(t testing.TB, what string, holds func() bool, leases ...*pgleases.Lease) {
	t.Helper()
	began, late := time.Now(), time.After(patience)
	for {
		changes := make(chan struct{}, len(leases))
		stop := make(chan struct{})
		for _, l := range leases {
			changed := l.Changed()
			go func() {
				select {
				case <-changed:
					changes <- struct{}{}
				case <-stop:
				}
			}()
		}
		if holds() {
			close(stop)
			return
		}
		select {
		case <-changes:
		case <-time.After(20 * time.Millisecond): // conditions on the database change without a lease
		case <-late:
			close(stop)
			for _, l := range leases {
				t.Logf("%s owns %v", l.Name(), l.Values())
			}
			missed(t, began, patience, "not true within %v: %s", patience, what)
		}
		close(stop)
	}
}

// receive waits for a value that should arrive soon.
func receive[T any](t testing.TB, what string, from <-chan T) T {
	t.Helper()
	began := time.Now()
	select {
	case v := <-from:
		return v
	case <-time.After(patience):
		missed(t, began, patience, "not true within %v: %s", patience, what)
		panic("unreachable")
	}
}

// ended waits for the end of a context, and returns the cause.
func ended(t testing.TB, what string, ctx context.Context) error {
	t.Helper()
	receive(t, what, ctx.Done())
	return context.Cause(ctx)
}

// value returns the only value of a query.
func value[T any](t testing.TB, pool *pgxpool.Pool, query string, args ...any) T {
	t.Helper()
	var v T
	if err := pool.QueryRow(context.Background(), query, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return v
}

// execute runs statements.
func execute(t testing.TB, pool *pgxpool.Pool, statements string, args ...any) {
	t.Helper()
	if _, err := pool.Exec(context.Background(), statements, args...); err != nil {
		t.Fatalf("%s: %v", statements, err)
	}
}

// beats waits for n more successful heartbeats of a client.
func beats(t testing.TB, c *pgleases.Client, n int) {
	t.Helper()
	sent := func() (from, to time.Time) { // the last one was sent between these: this goroutine may be stopped in between
		before := time.Now()
		age := c.Stats().HeartbeatAge
		return before.Add(-age), time.Now().Add(-age)
	}
	_, last := sent()
	until(t, fmt.Sprintf("%d heartbeats of %s succeed", n, c.ID()), func() bool {
		if from, to := sent(); from.After(last) {
			last = to
			n--
		}
		return n <= 0
	})
}

// A logbook is a logger that keeps its lines.
type logbook struct {
	mu      sync.Mutex // guards records
	records []slog.Record
}

func (b *logbook) Enabled(context.Context, slog.Level) bool { return true }
func (b *logbook) WithAttrs([]slog.Attr) slog.Handler       { return b }
func (b *logbook) WithGroup(string) slog.Handler            { return b }

func (b *logbook) Handle(_ context.Context, r slog.Record) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.records = append(b.records, r.Clone())
	return nil
}

// option makes a client log into the book.
func (b *logbook) option() pgleases.Option { return pgleases.WithLogger(slog.New(b)) }

// lines returns the logged lines, with their attributes, that contain all the words.
func (b *logbook) lines(words ...string) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var lines []string
	for _, r := range b.records {
		line := r.Level.String() + " " + r.Message
		r.Attrs(func(a slog.Attr) bool {
			line += " " + a.String()
			return true
		})
		if !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(line, word) }) {
			lines = append(lines, line)
		}
	}
	return lines
}

// canceled returns a context that has ended.
func canceled(cause error) context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(cause)
	return ctx
}

// A crew is the set of all goroutines that start within its calls of do, directly or indirectly.
type crew struct {
	t    testing.TB
	name string
}

func newCrew(t testing.TB) crew { return crew{t, rand.Text()} }

func (c crew) do(fn func()) {
	pprof.Do(context.Background(), pprof.Labels("crew", c.name), func(context.Context) { fn() })
}

// gone fails the test unless all goroutines of the crew end soon.
func (c crew) gone() {
	c.t.Helper()
	for began := time.Now(); ; {
		var all strings.Builder
		if err := pprof.Lookup("goroutine").WriteTo(&all, 1); err != nil {
			c.t.Fatal(err)
		}
		var left []string
		for stack := range strings.SplitSeq(all.String(), "\n\n") {
			if strings.Contains(stack, c.name) {
				left = append(left, stack)
			}
		}
		if left == nil {
			return
		}
		if time.Since(began) > time.Second {
			missed(c.t, began, time.Second, "goroutines are left:\n%s", strings.Join(left, "\n\n"))
		}
		runtime.Gosched()
	}
}

// connections counts the clients' own connections to a database.
func connections(t testing.TB, pool *pgxpool.Pool) int {
	t.Helper()
	return value[int](t, pool, `SELECT count(*) FROM pg_stat_activity
		WHERE datname = current_database() AND application_name = 'pgleases'`)
}
