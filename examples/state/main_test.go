package main

import (
	"context"
	"errors"
	"maps"
	"os"
	"slices"
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

// tables returns the pool of a database with the tables of the page.
func tables(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool := testkit.Pool(t, pgtest.MigratedDatabase(t))
	_, block, _ := strings.Cut(string(testkit.Must(os.ReadFile("../../docs/state.md"))(t)), "```sql\n")
	block, _, found := strings.Cut(block, "```")
	if !found {
		t.Fatal("docs/state.md has no tables")
	}
	testkit.Execute(t, pool, block, pgx.QueryExecModeSimpleProtocol)
	return pool
}

// Partitions move between two processes while payments come. At the end each payment is in the
// totals once.
func TestStateMovesWithItsPartition(t *testing.T) {
	t.Parallel()
	pool := tables(t)
	start := func() (end func()) {
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		client := clients.New(t, pool)
		go func() { ended <- work(ctx, client, pool) }()
		return func() {
			stop()
			if err := testkit.Receive(t, "it ends", ended); !errors.Is(err, context.Canceled) {
				t.Errorf("it ended with %v", err)
			}
			testkit.OK(t, client.Close(t.Context()))
		}
	}
	pay := func() {
		testkit.Execute(t, pool, `INSERT INTO payments (customer, amount)
			SELECT 'customer-' || n % 100, 1 FROM generate_series(1, 1000) AS n`)
	}
	owners := func(n int) {
		testkit.Becomes(t, pool, "the partitions are owned", n,
			"SELECT count(DISTINCT owner) FROM pgleases.status WHERE lease = 'totals'")
	}
	pay()
	endFirst := start()
	owners(1)
	endSecond := start() // some partitions move to it
	owners(2)
	pay()
	endFirst() // and the others
	owners(1)
	pay()
	testkit.Becomes(t, pool, "all payments are in the totals", 0, "SELECT count(*) FROM payments")
	endSecond()
	if total := testkit.Value[int](t, pool, "SELECT sum(total) FROM totals"); total != 3000 {
		t.Errorf("the totals are %d", total)
	}
}

// Loads that hang keep no partition that must move.
func TestUnloadedPartitionsMoveAtOnce(t *testing.T) {
	t.Parallel()
	watch := tables(t)
	locked := testkit.Must(watch.Begin(t.Context()))(t)
	defer func() { _ = locked.Rollback(context.Background()) }()
	testkit.Must(locked.Exec(t.Context(), "LOCK TABLE totals"))(t)
	pool := testkit.Pool(t, watch.Config().ConnString())
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	client := clients.New(t, pool)
	go func() { ended <- work(ctx, client, pool) }()
	testkit.Becomes(t, watch, "loads wait for the table", true,
		"SELECT count(*) > 0 FROM pg_locks WHERE relation = 'totals'::regclass AND NOT granted")
	stop()
	if err := testkit.Receive(t, "it ends while the table is locked", ended); !errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v", err)
	}
}

// A process that has lost its partition throws its memory away.
func TestLostStateIsNotWritten(t *testing.T) {
	t.Parallel()
	pool := tables(t)
	testkit.Execute(t, pool, "INSERT INTO payments (customer, amount) VALUES ('ada', 7)")
	lease, p := owned(t, pool)
	s := testkit.Must(load(t.Context(), pool, p))(t)
	testkit.OK(t, s.apply(t.Context(), pool, p))
	before := p
	before.Epoch--
	if err := s.flush(t.Context(), pool, lease, before); !errors.Is(err, pgleases.ErrNotOwner) {
		t.Errorf("under an older epoch it returned %v", err)
	}
	const both = "SELECT (SELECT count(*) FROM payments) || ' ' || (SELECT coalesce(sum(total), 0) FROM totals)"
	if got := testkit.Value[string](t, pool, both); got != "1 0" {
		t.Errorf("payments and totals are %s", got)
	}
	testkit.OK(t, s.flush(t.Context(), pool, lease, p))
	if got := testkit.Value[string](t, pool, both); got != "0 7" {
		t.Errorf("then payments and totals are %s", got)
	}
}

// owned returns the partition of ada in a client of its own.
func owned(t *testing.T, pool *pgxpool.Pool) (*pgleases.Lease, pgleases.Partition) {
	t.Helper()
	lease := testkit.Must(clients.New(t, pool).Lease(t.Context(), "totals", partitions))(t)
	testkit.OK(t, lease.Wait(t.Context()))
	p, _ := lease.Partition(lease.PartitionFor("ada"))
	return lease, p
}

// A flush that fails is repeated with the same memory, also after the partition was asked to move.
func TestFailedFlushIsRepeated(t *testing.T) {
	t.Parallel()
	pool := tables(t)
	testkit.Execute(t, pool, `CREATE SEQUENCE attempts;
		CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN
			IF nextval('attempts') = 1 THEN RAISE 'the first attempt'; END IF; RETURN new; END$$;
		CREATE TRIGGER fail BEFORE INSERT ON totals FOR EACH ROW EXECUTE FUNCTION fail();
		INSERT INTO payments (customer, amount) VALUES ('ada', 7)`, pgx.QueryExecModeSimpleProtocol)
	lease, p := owned(t, pool)
	s := testkit.Must(load(t.Context(), pool, p))(t)
	testkit.OK(t, s.apply(t.Context(), pool, p))
	ctx, stop := context.WithCancel(t.Context())
	stop()
	testkit.OK(t, s.serve(ctx, pool, lease, p))
	const state = "SELECT last_value || ' ' || (SELECT sum(total) FROM totals) FROM attempts"
	if got := testkit.Value[string](t, pool, state); got != "2 7" {
		t.Errorf("attempts and totals are %s", got)
	}
}

// A flush may commit and still return an error. Then it is repeated, and counts no payment twice.
func TestCommittedFlushMayBeRepeated(t *testing.T) {
	t.Parallel()
	pool := tables(t)
	pay := func() { testkit.Execute(t, pool, "INSERT INTO payments (customer, amount) VALUES ('ada', 7)") }
	lease, p := owned(t, pool)
	s := testkit.Must(load(t.Context(), pool, p))(t)
	pay()
	testkit.OK(t, s.apply(t.Context(), pool, p))
	applied, changed := slices.Clone(s.applied), maps.Clone(s.changed)
	testkit.OK(t, s.flush(t.Context(), pool, lease, p))
	s.applied, s.changed = applied, changed // as after an error
	pay()
	testkit.OK(t, s.apply(t.Context(), pool, p))
	testkit.OK(t, s.flush(t.Context(), pool, lease, p))
	const both = "SELECT (SELECT count(*) FROM payments) || ' ' || (SELECT sum(total) FROM totals)"
	if got := testkit.Value[string](t, pool, both); got != "0 14" {
		t.Errorf("payments and totals are %s", got)
	}
}

// The memory is thrown away if the partition is lost, or if an error stays.
func TestMemoryIsKeptAfterFewErrors(t *testing.T) {
	t.Parallel()
	_, p := owned(t, tables(t))
	away := errors.New("the database is away")
	s := &state{failures: mostFailures - 2}
	if !s.keep(p, away) || s.keep(p, away) {
		t.Errorf("it is not thrown away after %d errors", mostFailures)
	}
	if !s.keep(p, nil) || !s.keep(p, away) {
		t.Error("after a success the errors before count")
	}
	if s.keep(p, pgleases.ErrNotOwner) {
		t.Error("it is kept after ErrNotOwner")
	}
}
