package main

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/testkit/clients"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// calls returns a database with the page's table, and rows of one customer.
func calls(t *testing.T, rows int) (url string, pool *pgxpool.Pool) {
	t.Helper()
	url = pgtest.MigratedDatabase(t)
	pool = testkit.Pool(t, url)
	page := string(testkit.Must(os.ReadFile("../../docs/concepts.md"))(t))
	_, block, _ := strings.Cut(page, "```sql\nCREATE TABLE calls")
	block, _, found := strings.Cut(block, "```")
	if !found {
		t.Fatal("docs/concepts.md has no table calls")
	}
	testkit.Execute(t, pool, "CREATE TABLE calls"+block, pgx.QueryExecModeSimpleProtocol)
	testkit.Execute(t, pool, "INSERT INTO calls (customer) SELECT 'ada' FROM generate_series(1, $1)", rows)
	return url, pool
}

// A call that fails is tried again later, and the other rows of its partition do not wait for that.
func TestFailedCallDelaysItsRowOnly(t *testing.T) {
	t.Parallel()
	url, pool := calls(t, 3)
	made, failed := make(chan int64, 100), false
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, url, func(ctx context.Context, id int64, _ pgleases.Partition) error {
			made <- id
			var due bool
			err := pool.QueryRow(ctx, "SELECT next_at <= now() FROM calls WHERE id = $1", id).Scan(&due)
			if err != nil || !due {
				t.Errorf("row %d was called before its time, %v", id, err)
			}
			if id == 1 && !failed {
				failed = true
				return errors.New("503 \xff\x00")
			}
			return nil
		})
	}()
	for _, want := range []int64{1, 2, 3, 1} { // the last by the time of the next attempt
		if got := testkit.Receive(t, "a call", made); got != want {
			t.Errorf("row %d was called, not row %d", got, want)
		}
	}
	testkit.Becomes(t, pool, "all are done", 3, "SELECT count(*) FROM calls WHERE done_at IS NOT NULL")
	stop()
	if err := testkit.Receive(t, "it ends", ended); err != nil {
		t.Errorf("it ended with %v", err)
	}
	const rows = "SELECT string_agg(attempts || ' ' || coalesce(error, '-'), ', ' ORDER BY id) FROM calls"
	if got := testkit.Value[string](t, pool, rows); got != `1 "503 \xff\x00", 0 -, 0 -` {
		t.Errorf("the rows have %s", got)
	}
}

// The end of the ownership is no failure of the row, whatever the call returned.
func TestLossOfThePartitionIsNoFailure(t *testing.T) {
	t.Parallel()
	_, pool := calls(t, 1)
	lease := testkit.Must(clients.New(t, pool).Lease(t.Context(), "calls", 128))(t)
	testkit.OK(t, lease.Wait(t.Context()))
	p, _ := lease.Partition(lease.PartitionFor("ada"))
	lost := errors.New("lost")
	for _, failure := range []error{nil, errors.New("interrupted")} {
		ctx, lose := context.WithCancelCause(t.Context())
		err := callNext(ctx, pool, lease, p, func(context.Context, int64, pgleases.Partition) error {
			lose(lost)
			return failure
		})
		if !errors.Is(err, lost) {
			t.Errorf("it returned %v", err)
		}
	}
	p.Epoch--
	err := callNext(t.Context(), pool, lease, p, func(context.Context, int64, pgleases.Partition) error {
		t.Error("called without the ownership")
		return nil
	})
	if !errors.Is(err, pgleases.ErrNotOwner) {
		t.Errorf("under an older epoch it returned %v", err)
	}
	const unchanged = "SELECT count(*) FROM calls WHERE done_at IS NULL AND attempts = 0 AND error IS NULL"
	if got := testkit.Value[int](t, pool, unchanged); got != 1 {
		t.Error("the row has changed")
	}
}
