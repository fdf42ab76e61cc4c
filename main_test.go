package pgleases_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/ranges"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/testkit/clients"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// The tests here do not depend on the speed of the machine: a test waits for what has to happen,
// and recognizes what must not happen by order and cause. Module proof asserts how long things
// take, because it knows when the machine was slow.

const calmTTL, calmHeartbeat = clients.TTL, clients.Heartbeat

var newClient, shut, beats = clients.New, clients.Close, clients.Beats

// direct returns the URL of a new database with the tables past any pooler: for tests of the
// client's own connection, which a pooler hides, and of what only notifications make fast. No other
// test uses the database, because a pooler's sessions keep the names of clients.
func direct(t testing.TB) string {
	t.Helper()
	url, _ := pgtest.DirectURL(pgtest.FreshDatabase(t))
	return url
}

// ownersPool returns a pool on the same database for the parts of a test that are not a client's:
// see pgtest.OwnerURL.
func ownersPool(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	return testkit.Pool(t, pgtest.OwnerURL(url))
}

// joined joins a lease.
func joined(
	t testing.TB, c *pgleases.Client, name string, partitions int, opts ...pgleases.LeaseOption,
) *pgleases.Lease {
	t.Helper()
	l, err := c.Lease(t.Context(), name, partitions, opts...)
	if err != nil {
		t.Fatalf("%s joins lease %q of %d partitions: %v", c.ID(), name, partitions, err)
	}
	return l
}

// until waits until a condition on leases holds, and reports what they own if it does not.
func until(t testing.TB, what string, holds func() bool, leases ...*pgleases.Lease) {
	t.Helper()
	defer func() {
		for i, l := range leases {
			if t.Failed() {
				t.Logf("lease %d, %q, owns %s", i+1, l.Name(), ranges.Format(numbers(l)))
			}
		}
	}()
	testkit.Until(t, what, holds)
}

// owned returns what leases own, counted.
func owned(leases ...*pgleases.Lease) []int {
	counts := make([]int, len(leases))
	for i, l := range leases {
		counts[i] = len(l.Values())
	}
	return counts
}

// untilShared waits until the leases own these numbers of partitions.
func untilShared(t testing.TB, what string, want []int, leases ...*pgleases.Lease) {
	t.Helper()
	until(t, what, func() bool { return slices.Equal(owned(leases...), want) }, leases...)
}

// closes returns what Close returned, which must not wait for ever.
func closes(t testing.TB, c *pgleases.Client, ctx context.Context) error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- c.Close(ctx) }()
	return testkit.Receive(t, "Close returns", done)
}

// ended waits until a context has ended, and returns the cause.
func ended(t testing.TB, what string, ctx context.Context) error {
	t.Helper()
	testkit.Receive(t, what, ctx.Done())
	return context.Cause(ctx)
}

// refused fails the test unless err contains all of these texts.
func refused(t *testing.T, what string, err error, texts ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: no error", what)
		return
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%s: the error does not say %s: %v", what, text, err)
		}
	}
	namedOnce(t, err)
	if testing.Verbose() {
		t.Logf("%s: %v", what, err)
	}
}

// namedOnce fails the test if a line of an error names the package twice.
func namedOnce(t *testing.T, err error) {
	t.Helper()
	if err == nil {
		return
	}
	for line := range strings.Lines(err.Error()) {
		if strings.Count(line, "pgleases: ") > 1 {
			t.Errorf("the error names the package twice: %v", err)
		}
	}
}

// wraps fails the test unless err wraps all that it should.
func wraps(t *testing.T, what string, err error, wanted ...error) {
	t.Helper()
	for _, want := range wanted {
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, not %q", what, err, want)
		}
	}
	namedOnce(t, err)
}

// expire makes the database see a stopped client as one with a short TTL that has passed.
func expire(t testing.TB, pool *pgxpool.Pool, client string) {
	t.Helper()
	testkit.Execute(t, ownersPool(t, pool.Config().ConnString()), fmt.Sprintf(`
		UPDATE pgleases.clients SET ttl = interval '1 second', expires_at = clock_timestamp() - interval '1 second' WHERE id = '%s';
		UPDATE pgleases.server SET next_check_at = clock_timestamp()`, client), pgx.QueryExecModeSimpleProtocol)
}

// journal makes the database record every change of owner from now on in the table public.journal.
func journal(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	testkit.OK(t, pgleases.Migrate(t.Context(), pool))
	testkit.Execute(t, ownersPool(t, pool.Config().ConnString()), `
		CREATE TABLE public.journal (n serial, lease text, partition int, old_owner bigint, owner bigint, old_id text,
		                             id text, old_epoch bigint, epoch bigint, asked_at timestamptz, at timestamptz);
		CREATE FUNCTION public.note() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
			INSERT INTO public.journal (lease, partition, old_owner, owner, old_id, id, old_epoch, epoch, asked_at, at)
			VALUES (NEW.lease, NEW.partition, OLD.owner, NEW.owner, OLD.owner_id, NEW.owner_id, OLD.epoch, NEW.epoch,
			        OLD.asked_at, clock_timestamp());
			RETURN NULL;
		END $$;
		CREATE TRIGGER note AFTER UPDATE ON pgleases.partitions FOR EACH ROW
		WHEN (OLD.owner IS DISTINCT FROM NEW.owner) EXECUTE FUNCTION public.note();
		GRANT SELECT, DELETE ON public.journal TO PUBLIC`)
}

// A logbook is a logger that stores its lines.
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

// lines returns what was logged, each line with its attributes, that contains all the words.
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

// A job is a Run in the background.
type job struct {
	stop context.CancelCauseFunc
	done chan error // what Run returned
}

// run runs a lease in the background, until the test ends at the latest.
func run(t testing.TB, l *pgleases.Lease, fn func(context.Context, pgleases.Partition) error) job {
	ctx, cancel := context.WithCancelCause(context.Background())
	j := job{cancel, make(chan error, 1)}
	go func() { j.done <- l.Run(ctx, fn) }()
	t.Cleanup(func() { cancel(nil) })
	return j
}

// untilAsked is a callback that works until it is asked to end.
func untilAsked(ctx context.Context, _ pgleases.Partition) error {
	<-ctx.Done()
	return nil
}

// neverCalled is a callback that fails the test.
func neverCalled(t testing.TB) func(context.Context, pgleases.Partition) error {
	return func(context.Context, pgleases.Partition) error {
		t.Error("a callback was called")
		return nil
	}
}

// canceled is a context that has ended.
func canceled(cause error) context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(cause)
	return ctx
}

// A crew is all goroutines that begin within its calls of do, including those that they start.
type crew struct {
	t    testing.TB
	name string
}

func newCrew(t testing.TB) crew { return crew{t, rand.Text()} }

func (c crew) do(fn func()) {
	pprof.Do(context.Background(), pprof.Labels("crew", c.name), func(context.Context) { fn() })
}

// gone fails the test unless all goroutines of the crew end.
func (c crew) gone() {
	c.t.Helper()
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for late := time.Now().Add(testkit.Patience); ; <-look.C {
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
		if time.Now().After(late) {
			c.t.Fatalf("goroutines are left after %v:\n%s", testkit.Patience, strings.Join(left, "\n\n"))
		}
	}
}

// connections counts the own connections of clients on a database.
func connections(t testing.TB, pool *pgxpool.Pool) int {
	t.Helper()
	return testkit.Value[int](t, pool, `SELECT count(*) FROM pg_stat_activity
		WHERE datname = current_database() AND application_name = 'pgleases'`)
}
