package fence_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/fence"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// newFence returns the database of an application, with a fence.
func newFence(t testing.TB) *pgxpool.Pool {
	t.Helper()
	url, _ := pgtest.DirectURL(pgtest.EmptyDatabase(t))
	pool := testkit.Pool(t, url, func(c *pgxpool.Config) { c.MaxConns = 12 })
	testkit.Execute(t, pool, fences.SQL())
	return pool
}

// write passes the fence in a transaction of its own.
func write(ctx context.Context, pool *pgxpool.Pool, name string, epoch int64) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return fences.Check(ctx, tx, name, epoch) })
}

func TestFenceRefusesLowerEpoch(t *testing.T) {
	t.Parallel()
	pool := newFence(t)
	name := fence.Name("orders", 7)
	for _, epoch := range []int64{1, 1, 1<<62 + 1, 1<<62 + 2} {
		testkit.OK(t, write(t.Context(), pool, name, epoch))
	}
	rolledBack := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		return errors.Join(fences.Check(t.Context(), tx, name, 1<<62+3), context.Canceled)
	})
	if !errors.Is(rolledBack, context.Canceled) || errors.Is(rolledBack, fence.ErrFenced) {
		t.Fatal(rolledBack)
	}
	testkit.OK(t, write(t.Context(), pool, name, 1<<62+2)) // what was rolled back is not remembered
	db := stdlib.OpenDBFromPool(pool)
	defer db.Close()
	for what, err := range map[string]error{
		"pgx": write(t.Context(), pool, name, 1<<62+1),
		"database/sql": func() error {
			tx := testkit.Must(db.BeginTx(t.Context(), nil))(t)
			defer func() { _ = tx.Rollback() }()
			return fences.CheckSQL(t.Context(), tx, name, 1<<62+1)
		}(),
	} {
		if !errors.Is(err, fence.ErrFenced) || store.Code(err) != "PL004" {
			t.Errorf("%s: the lower epoch: %v", what, err)
			continue
		}
		for _, text := range []string{`"orders/7"`, "4611686018427387905", "4611686018427387906"} {
			if !strings.Contains(err.Error(), text) {
				t.Errorf("%s: the error does not show %s: %v", what, text, err)
			}
		}
	}
	testkit.OK(t, write(t.Context(), pool, fence.Name("orders", 8), 1)) // of another partition
	for what, statement := range map[string]string{
		"no epoch":      "SELECT pgleases.fence('a', NULL)",
		"no name":       "SELECT pgleases.fence(NULL, 1)",
		"an empty name": "SELECT pgleases.fence('', 1)",
		// No ownership has such an epoch.
		"epoch 0":          "SELECT pgleases.fence('a', 0)",
		"a negative epoch": "SELECT pgleases.fence('a', -1)",
	} {
		if _, err := pool.Exec(t.Context(), statement); !strings.HasPrefix(store.Code(err), "23") {
			t.Errorf("%s passed: %v", what, err)
		}
	}
}

// naive is a function that reads without a lock. It refuses lower epochs too.
const naive = `CREATE OR REPLACE FUNCTION pgleases.fence(name text, epoch bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    highest CONSTANT bigint := (SELECT f.epoch FROM pgleases.fences AS f WHERE f.name = $1);
BEGIN
    IF highest > $2 THEN
        RAISE EXCEPTION 'refused' USING ERRCODE = 'PL004';
    ELSIF highest IS DISTINCT FROM $2 THEN
        INSERT INTO pgleases.fences VALUES ($1, $2) ON CONFLICT ON CONSTRAINT fences_pkey DO UPDATE SET epoch = EXCLUDED.epoch;
    END IF;
END $$`

// An older owner has passed, and its transaction is open. The newer owner waits for its end. A
// transaction that had a snapshot before that end is not committed.
func TestFenceWaitsForOlderOwner(t *testing.T) {
	t.Parallel()
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		for _, first := range []bool{true, false} { // the name is new
			t.Run(fmt.Sprintf("%s, new name %v", level, first), func(t *testing.T) {
				t.Parallel()
				pool := newFence(t)
				if !first {
					testkit.OK(t, write(t.Context(), pool, "a", 7))
				}
				waited, err := overtake(t, pool, level)
				switch {
				case !waited:
					t.Error("the newer owner did not wait")
				case level == pgx.ReadCommitted && err != nil, level != pgx.ReadCommitted && store.Code(err) != "40001":
					t.Errorf("the newer owner after the end of the older one: %v", err)
				}
			})
		}
	}
	t.Run("a naive check", func(t *testing.T) { // would fail the test
		t.Parallel()
		pool := newFence(t)
		testkit.Execute(t, pool, naive)
		testkit.OK(t, write(t.Context(), pool, "a", 7))
		if waited, err := overtake(t, pool, pgx.ReadCommitted); waited || err != nil {
			t.Errorf("it waited: %v, %v", waited, err)
		}
	})
}

// overtake opens a transaction under epoch 7, and passes the fence under epoch 8 in another. It
// reports whether that waited for the end of the first.
func overtake(t *testing.T, pool *pgxpool.Pool, level pgx.TxIsoLevel) (waited bool, err error) {
	t.Helper()
	older := testkit.Must(pool.Begin(t.Context()))(t)
	defer func() { _ = older.Rollback(context.Background()) }()
	testkit.OK(t, fences.Check(t.Context(), older, "a", 7))
	newer := testkit.Must(pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level}))(t)
	defer func() { _ = newer.Rollback(context.Background()) }()
	pid := newer.Conn().PgConn().PID()
	passed := make(chan error, 1)
	go func() { passed <- fences.Check(t.Context(), newer, "a", 8) }()
	const waits = "SELECT wait_event_type IS NOT DISTINCT FROM 'Lock' FROM pg_stat_activity WHERE pid = $1"
	testkit.Until(t, "the newer owner waits, or has passed", func() bool {
		waited = testkit.Value[bool](t, pool, waits, pid)
		return waited || len(passed) > 0
	})
	testkit.OK(t, older.Commit(t.Context()))
	if err = testkit.Receive(t, "the newer owner's check ends", passed); err == nil {
		err = newer.Commit(t.Context())
	}
	return waited, err
}

// An old owner whose transactions overlap does not keep a newer one out.
func TestFenceOverlapsDelayNoNewerOwner(t *testing.T) {
	t.Parallel()
	pool := newFence(t)
	var old sync.WaitGroup
	var written atomic.Int64
	for range 8 {
		old.Go(func() {
			for {
				if err := write(t.Context(), pool, "a", 7); err != nil {
					if !errors.Is(err, fence.ErrFenced) {
						t.Errorf("the old owner: %v", err)
					}
					return
				}
				written.Add(1)
			}
		})
	}
	testkit.Until(t, "the old owner writes", func() bool { return written.Load() > 50 })
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	testkit.OK(t, write(ctx, pool, "a", 8))
	old.Wait() // all were refused
}

// A transaction that idles after the fence ends after 6 s, or after a lower limit of its own.
func TestFenceLimitsIdleTransactions(t *testing.T) {
	t.Parallel()
	pool := newFence(t)
	for before, after := range map[string]string{"0": "6s", "1min": "6s", "100ms": "100ms"} {
		testkit.OK(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			var got string
			_, err := tx.Exec(t.Context(), "SET LOCAL idle_in_transaction_session_timeout = '"+before+"'")
			err = errors.Join(err, fences.Check(t.Context(), tx, "a", 7))
			row := tx.QueryRow(t.Context(), "SHOW idle_in_transaction_session_timeout")
			err = errors.Join(err, row.Scan(&got))
			if got != after {
				t.Errorf("the limit was %s, and is %s, not %s", before, got, after)
			}
			return err
		}))
	}
	frozen := testkit.Must(pool.Begin(t.Context()))(t)
	defer func() { _ = frozen.Rollback(context.Background()) }()
	testkit.OK(t, fences.Check(t.Context(), frozen, "a", 7))
	testkit.Must(frozen.Exec(t.Context(), "SET LOCAL idle_in_transaction_session_timeout = '100ms'"))(t)
	testkit.OK(t, write(t.Context(), pool, "a", 8))
	if frozen.Commit(t.Context()) == nil {
		t.Error("the frozen owner has committed")
	}
}

// The session of a prepared transaction has ended, and the row stays locked. No limit of time ends it.
func TestFenceWaitsForPreparedTransaction(t *testing.T) {
	t.Parallel()
	pool := newFence(t)
	if testkit.Value[string](t, pool, "SHOW max_prepared_transactions") == "0" {
		t.Skip("this server allows no prepared transactions")
	}
	name := "fence_" + rand.Text() // for the whole server
	older := testkit.Must(pgx.Connect(t.Context(), pool.Config().ConnString()))(t)
	tx := testkit.Must(older.Begin(t.Context()))(t)
	testkit.OK(t, fences.Check(t.Context(), tx, "a", 7))
	// In one message, because a busy machine idles for longer between two.
	prepare := "SET LOCAL idle_in_transaction_session_timeout = '50ms'; PREPARE TRANSACTION '" + name + "'"
	testkit.Must(tx.Exec(t.Context(), prepare, pgx.QueryExecModeSimpleProtocol))(t)
	testkit.OK(t, older.Close(t.Context()))
	ended := false
	t.Cleanup(func() { // otherwise the database cannot be dropped
		if !ended {
			testkit.Execute(t, pool, "ROLLBACK PREPARED '"+name+"'")
		}
	})
	for _, epoch := range []int64{7, 8} {
		err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), "SET LOCAL lock_timeout = '200ms'")
			return errors.Join(err, fences.Check(t.Context(), tx, "a", epoch))
		})
		if store.Code(err) != "55P03" {
			t.Errorf("epoch %d does not wait: %v", epoch, err)
		}
	}
	testkit.OK(t, write(t.Context(), pool, "b", 1)) // another partition
	passed := make(chan error, 1)
	go func() { passed <- write(t.Context(), pool, "a", 8) }()
	testkit.Execute(t, pool, "COMMIT PREPARED '"+name+"'")
	ended = true
	testkit.OK(t, testkit.Receive(t, "the newer owner passes", passed))
	if err := write(t.Context(), pool, "a", 7); !errors.Is(err, fence.ErrFenced) {
		t.Errorf("the older owner afterwards: %v", err)
	}
}

// The statements may run again, at once in several sessions, and in any schema. Epochs stay.
func TestFenceInstallsAgain(t *testing.T) {
	t.Parallel()
	url, _ := pgtest.DirectURL(pgtest.EmptyDatabase(t))
	pool := testkit.Pool(t, url, func(c *pgxpool.Config) { c.MaxConns = 8 })
	for _, schema := range []fence.Schema{fences, `Our "own" $pgleases_body$ schema's`} {
		err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { return schema.Check(t.Context(), tx, "a", 7) })
		if err == nil || !strings.Contains(err.Error(), "Schema.SQL") {
			t.Errorf("without a fence: %v", err)
		}
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				if _, err := pool.Exec(t.Context(), schema.SQL()); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		check := func(epoch int64) error {
			return pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
				return schema.Check(t.Context(), tx, "a", epoch)
			})
		}
		testkit.OK(t, check(7))
		testkit.Execute(t, pool, schema.SQL())
		if err := check(6); !errors.Is(err, fence.ErrFenced) {
			t.Errorf("after it ran again: %v", err)
		}
	}
}

// A role that may create tables in the schema has created the fence's before, with a trigger. The function must
// not run that with the rights of another role.
func TestFenceRefusesForeignTable(t *testing.T) {
	t.Parallel()
	url, _ := pgtest.DirectURL(pgtest.EmptyDatabase(t))
	pool := testkit.Pool(t, url)
	role := strings.ToLower("creator_" + rand.Text())
	testkit.Execute(t, pool, "CREATE ROLE "+role)
	testkit.Execute(t, pool, "CREATE SCHEMA pgleases; GRANT ALL ON SCHEMA pgleases TO "+role)
	t.Cleanup(func() { testkit.Execute(t, pool, fmt.Sprintf("DROP OWNED BY %[1]s; DROP ROLE %[1]s", role)) })
	as := testkit.Pool(t, url, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["role"] = role })
	testkit.Execute(t, as, "CREATE TABLE pgleases.fences (name text PRIMARY KEY, epoch bigint)")
	_, err := pool.Exec(t.Context(), fences.SQL())
	if store.Code(err) != "42501" || !strings.Contains(err.Error(), role) {
		t.Errorf("it uses the table of another role: %v", err)
	}
	testkit.Execute(t, as, "DROP TABLE pgleases.fences; "+fences.SQL()) // its own fence
	testkit.Execute(t, pool, fences.SQL())                              // again, by another role
	testkit.OK(t, write(t.Context(), as, "a", 1))
}

// The tables of the leases are new, so epochs begin at 1 again, and the fence refuses each owner. The
// remedy of docs/fence.md makes them higher than those that the fence has seen.
func TestFencePassesNewServerGeneration(t *testing.T) {
	t.Parallel()
	elsewhere := newFence(t)
	testkit.OK(t, write(t.Context(), elsewhere, "orders/0", (time.Now().Unix()-1577836800-3600)<<32))
	leases := testkit.Pool(t, pgtest.OwnerURL(pgtest.FreshDatabase(t)))
	check := func() error {
		client := testkit.Must(pgleases.NewClient(t.Context(), leases, pgleases.WithTTL(time.Second)))(t)
		defer func() { _ = client.Close(context.Background()) }() // an error: a busy machine has ended its trust
		lease := testkit.Must(client.Lease(t.Context(), "orders", 1))(t)
		var p pgleases.Partition
		testkit.Until(t, "it owns the partition", func() (owns bool) { p, owns = lease.Partition(0); return owns })
		return write(t.Context(), elsewhere, fence.Name(lease.Name(), p.Number), p.Epoch)
	}
	if err := check(); !errors.Is(err, fence.ErrFenced) {
		t.Fatalf("under new tables: %v", err)
	}
	testkit.Execute(t, leases, "SELECT pgleases.new_server_generation()")
	testkit.OK(t, check())
}

// The roles and the remedy of docs/fence.md.
func TestFencePageHasRightsAndRemedy(t *testing.T) {
	t.Parallel()
	pool := newFence(t)
	page := string(testkit.Must(os.ReadFile("../docs/fence.md"))(t))
	blocks := regexp.MustCompile("(?s)```sql\n(.*?)\n```").FindAllStringSubmatch(page, -1)
	if len(blocks) != 4 {
		t.Fatalf("%d blocks of SQL on the page", len(blocks))
	}
	role := strings.ToLower("fence_" + rand.Text())
	testkit.Execute(t, pool, "CREATE ROLE "+role)
	t.Cleanup(func() { testkit.Execute(t, pool, fmt.Sprintf("DROP OWNED BY %[1]s; DROP ROLE %[1]s", role)) })
	as := testkit.Pool(t, pool.Config().ConnString(), func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["role"] = role
	})
	if err := write(t.Context(), as, "orders/7", 4294967298); store.Code(err) != "42501" {
		t.Errorf("without rights: %v", err)
	}
	sql := func(block int) string { return strings.ReplaceAll(blocks[block][1], "orders_app", role) }
	testkit.Execute(t, pool, sql(1)) // the rights
	testkit.Execute(t, as, sql(0))   // the call
	testkit.OK(t, write(t.Context(), as, "orders/7", 4294967299))
	for _, statement := range []string{
		"UPDATE pgleases.fences SET epoch = 1",
		"DELETE FROM pgleases.fences",
		"SELECT * FROM pgleases.fences",
		"CREATE TABLE pgleases.x ()",
	} {
		if _, err := as.Exec(t.Context(), statement); store.Code(err) != "42501" {
			t.Errorf("the role may %s: %v", statement, err)
		}
	}
	if _, err := as.Exec(t.Context(), sql(2)); store.Code(err) != "42501" {
		t.Errorf("the role may forget epochs: %v", err)
	}
	testkit.Execute(t, pool, sql(2)) // the owner forgets epochs
	testkit.OK(t, write(t.Context(), as, "orders/7", 1))
	testkit.Execute(t, as, sql(3)) // raise all names
	for number := range 128 {
		if err := write(t.Context(), as, fence.Name("orders", number), 4294967298); !errors.Is(err, fence.ErrFenced) {
			t.Errorf("partition %d is not raised: %v", number, err)
		}
	}
}

// The epochs of a lease that was dropped and created again are above its epoch_floor, also with another number of
// partitions.
func TestFencePassesLeaseCreatedAgain(t *testing.T) {
	t.Parallel()
	elsewhere, leases := newFence(t), testkit.Pool(t, pgtest.OwnerURL(pgtest.FreshDatabase(t)))
	client := testkit.Must(pgleases.NewClient(t.Context(), leases))(t)
	defer func() { testkit.OK(t, client.Close(context.Background())) }()
	owned := func(partitions int) (*pgleases.Lease, pgleases.Partition) {
		lease := testkit.Must(client.Lease(t.Context(), "orders", partitions))(t)
		testkit.OK(t, lease.Wait(t.Context()))
		p, _ := lease.Partition(0)
		return lease, p
	}
	lease, old := owned(4)
	testkit.OK(t, lease.Leave(t.Context()))
	testkit.Execute(t, leases, "SELECT pgleases.drop_lease('orders', 'test', partitions => 2)")
	floor := testkit.Value[int64](t, leases, "SELECT epoch_floor FROM pgleases.leases WHERE name = 'orders'")
	const raise = "SELECT pgleases.fence('orders/' || n, $1 + 1) FROM generate_series(0, 3) AS n"
	testkit.Execute(t, elsewhere, raise, floor)
	_, p := owned(2)
	testkit.OK(t, write(t.Context(), elsewhere, fence.Name("orders", p.Number), p.Epoch))
	err := write(t.Context(), elsewhere, fence.Name("orders", old.Number), old.Epoch)
	if !errors.Is(err, fence.ErrFenced) {
		t.Errorf("epoch %d of before passes, the floor is %d: %v", old.Epoch, floor, err)
	}
}
