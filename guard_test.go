package pgleases_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/lock"
	"github.com/pgleases/pgleases/schedule"
)

// Behind a pooler that keeps no prepared statements for its clients, the error names the remedy.
func TestALostPreparedStatementNamesTheRemedy(t *testing.T) {
	t.Parallel()
	const advice = "default_query_exec_mode=exec"
	pool := testkit.Pool(t, pgtest.OwnerURL(direct(t)), func(c *pgxpool.Config) { c.MaxConns = 2 })
	testkit.OK(t, schedule.Migrate(t.Context(), pool))
	client := newClient(t, pool)
	l := joined(t, client, "orders", 1)
	testkit.OK(t, l.Wait(t.Context()))
	p, _ := l.Partition(0)
	jobs, err := schedule.NewEnqueuer(pool, "g")
	testkit.OK(t, err)
	manager := testkit.Must(schedule.Manage(t.Context(), pool, "g"))(t)
	s := testkit.Must(schedule.New(t.Context(), client, pool, "g"))(t)
	kind := schedule.InTx(s, "x", func(context.Context, pgx.Tx, schedule.Run[int]) error { return nil })
	inTx := func(use func(pgx.Tx) error) func() error {
		return func() error { return pgx.BeginFunc(t.Context(), pool, use) }
	}
	found := func(err error) error {
		if errors.Is(err, schedule.ErrNotFound) {
			return nil
		}
		return err
	}
	for what, use := range map[string]func() error{
		"guard": func() error { return guard(t, pool, l, p) },
		"lock": func() error {
			return lock.New(client, pool).Do(t.Context(), "x", func(context.Context) error { return nil })
		},
		"job": func() error {
			_, err := schedule.JobsOf[int](jobs, "x").Enqueue(t.Context(), 1)
			return err
		},
		"job in a transaction": inTx(func(tx pgx.Tx) error {
			_, err := schedule.JobsOf[int](jobs, "x").EnqueueTx(t.Context(), tx, 1)
			return err
		}),
		"schedule in a transaction": inTx(func(tx pgx.Tx) error {
			return kind.PutTx(t.Context(), tx, "x", 1, schedule.Every(time.Hour))
		}),
		"get":       func() error { _, err := manager.Get(t.Context(), "x"); return found(err) },
		"get a job": func() error { _, err := manager.Job(t.Context(), 0); return found(err) },
	} {
		testkit.OK(t, use())
		for _, conn := range pool.AcquireAllIdle(t.Context()) {
			_, err := conn.Exec(t.Context(), "DISCARD ALL", pgx.QueryExecModeSimpleProtocol)
			testkit.OK(t, err)
			conn.Release()
		}
		if err := use(); err == nil || !strings.Contains(err.Error(), advice) {
			t.Errorf("%s: %v", what, err)
		}
	}
	// Another client of the pooler's has prepared it.
	testkit.OK(t, pool.AcquireFunc(t.Context(), func(conn *pgxpool.Conn) error {
		for range 2 {
			_, err = conn.Conn().PgConn().Prepare(t.Context(), "twice", "SELECT 1", nil)
		}
		return nil
	}))
	if err := store.Advised(err); store.Code(err) != "42P05" || !strings.Contains(err.Error(), advice) {
		t.Errorf("a statement that is prepared twice: %v", err)
	}
}

// guard runs Guard in a transaction, which it commits.
func guard(t testing.TB, pool *pgxpool.Pool, l *pgleases.Lease, p pgleases.Partition) error {
	t.Helper()
	return pgx.BeginFunc(context.Background(), pool, func(tx pgx.Tx) error {
		return l.Guard(context.Background(), tx, p)
	})
}

// guardSQL does the same over database/sql.
func guardSQL(t testing.TB, db *sql.DB, l *pgleases.Lease, p pgleases.Partition) error {
	t.Helper()
	tx := testkit.Must(db.BeginTx(context.Background(), nil))(t)
	defer func() { _ = tx.Rollback() }()
	if err := l.GuardSQL(context.Background(), tx, p); err != nil {
		return err
	}
	return tx.Commit()
}

// guarded fails the test unless Guard passes.
func guarded(t testing.TB, pool *pgxpool.Pool, l *pgleases.Lease, p pgleases.Partition) {
	t.Helper()
	if err := guard(t, pool, l, p); err != nil {
		t.Errorf("Guard of %v, which is owned: %v", p, err)
	}
}

func ownership(t testing.TB, l *pgleases.Lease, n int) pgleases.Partition {
	t.Helper()
	p, ok := l.Partition(n)
	if !ok {
		t.Fatalf("partition %d is not owned", n)
	}
	return p
}

func TestGuardPassesForTheOwnersEpochOnly(t *testing.T) {
	t.Parallel()
	pool, _, cb, a := twoClients(t, 1, pgleases.WithHandoffDelay(0))
	db := stdlib.OpenDBFromPool(pool)
	defer db.Close()
	b := joined(t, cb, "work", 1, pgleases.WithWeight(0), pgleases.WithHandoffDelay(0))
	passes := func(l *pgleases.Lease, p pgleases.Partition) {
		t.Helper()
		if err := errors.Join(guard(t, pool, l, p), guardSQL(t, db, l, p)); err != nil {
			t.Errorf("Guard and GuardSQL should pass for %v: %v", p, err)
		}
	}
	refused := func(l *pgleases.Lease, p pgleases.Partition) {
		t.Helper()
		for way, err := range map[string]error{"Guard": guard(t, pool, l, p), "GuardSQL": guardSQL(t, db, l, p)} {
			if !errors.Is(err, pgleases.ErrNotOwner) || !strings.Contains(err.Error(), fmt.Sprint(p.Epoch)) {
				t.Errorf("%s of %v returned %v, not %v with the epoch", way, p, err, pgleases.ErrNotOwner)
			}
		}
	}
	first := ownership(t, a, 0)
	stored := pgleases.Partition{Number: first.Number, Epoch: first.Epoch}
	passes(a, first)
	passes(a, stored)
	passes(b, stored) // it is the epoch that counts
	move := func(from, to *pgleases.Lease) {
		t.Helper()
		testkit.OK(t, errors.Join(to.SetWeight(t.Context(), 1), from.SetWeight(t.Context(), 0)))
		untilOwns(t, to, 1)
	}
	move(a, b)
	second := ownership(t, b, 0)
	if second.Epoch <= first.Epoch {
		t.Errorf("epoch %d follows %d", second.Epoch, first.Epoch)
	}
	refused(a, first)
	refused(a, stored)
	refused(b, stored)
	passes(b, second)
	move(b, a)
	refused(a, first) // although the same client owns it again
	refused(a, stored)
	refused(b, second)
	passes(a, ownership(t, a, 0))
}

func TestAllOfAClientsLifeGoesOnInEveryModeOfPgx(t *testing.T) {
	t.Parallel()
	url := pgtest.MigratedDatabase(t)
	for _, mode := range testkit.Modes(url) {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			pool := testkit.Pool(t, pgtest.MigratedDatabase(t), func(c *pgxpool.Config) {
				c.ConnConfig.DefaultQueryExecMode = mode
			})
			db := stdlib.OpenDBFromPool(pool)
			defer db.Close()
			ca, cb := newClient(t, pool, pgleases.WithClientID("a")), newClient(t, pool, pgleases.WithClientID("b"))
			a := joined(t, ca, `w"o'rk\`, 4, pgleases.WithHandoffDelay(0))
			b := joined(t, cb, `w"o'rk\`, 4, pgleases.WithHandoffDelay(0))
			untilShared(t, "each owns half", []int{2, 2}, a, b)
			for _, l := range []*pgleases.Lease{a, b} {
				for _, n := range l.Values() {
					p := ownership(t, l, n)
					guarded(t, pool, l, p)
					if err := guardSQL(t, db, l, p); err != nil {
						t.Error(err)
					}
					p = pgleases.Partition{Number: n, Epoch: p.Epoch + 1}
					wraps(t, "Guard under a wrong epoch", guard(t, pool, l, p), pgleases.ErrNotOwner)
					wraps(t, "GuardSQL under a wrong epoch", guardSQL(t, db, l, p), pgleases.ErrNotOwner)
				}
			}
			testkit.OK(t, a.SetWeight(t.Context(), 3))
			untilShared(t, "shares follow the weight", []int{3, 1}, a, b)
			shut(t, ca)
			untilOwns(t, b, 4)
		})
	}
}

// The statement determines its effect on other limits, and after the transaction.
func TestGuardLowersTheIdleLimitToTheTrustThatIsLeft(t *testing.T) {
	t.Parallel()
	pool, ca, _, a := twoClients(t, 1)
	p := ownership(t, a, 0)
	testkit.OK(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		// A role may have less.
		testkit.Must(tx.Exec(t.Context(), "SET LOCAL idle_in_transaction_session_timeout = 0"))(t)
		began, trust := time.Now(), ca.Stats().Trust
		for range 2 { // the second finds what the first has set, and does not raise it
			testkit.OK(t, a.Guard(t.Context(), tx, p))
			least := int((trust - time.Since(began)) / time.Millisecond) // a heartbeat in between makes it more
			largest := int(calmTTL / time.Millisecond * 19 / 20)         // the margin is 5 %
			var now int
			testkit.OK(t, tx.QueryRow(t.Context(), `
				SELECT (extract(epoch FROM current_setting('idle_in_transaction_session_timeout')::interval) * 1000)::int
			`).Scan(&now))
			if now < least || now > largest {
				t.Errorf("%d ms are set: the trust of %d to %d was due", now, least, largest)
			}
		}
		return nil
	}))
}

func TestGuardedTransactionDelaysItsPartitionOnly(t *testing.T) {
	t.Parallel()
	pool, ca, cb, a := twoClients(t, 4)
	p := ownership(t, a, 2)
	b := joined(t, cb, "work", 4, pgleases.WithWeight(0))
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		if err := a.Guard(t.Context(), tx, p); err != nil {
			return err
		}
		if err := errors.Join(b.SetWeight(t.Context(), 1), a.SetWeight(t.Context(), 0)); err != nil {
			return err
		}
		untilOwns(t, b, 3)
		beats(t, ca, 4)
		beats(t, cb, 4)
		if got := ownedBy(t, pool, "b"); !slices.Equal(got, []int{0, 1, 3}) || !slices.Equal(numbers(b), got) {
			t.Errorf("b owns %v and says %v, 2 is under a guarded transaction", got, numbers(b))
		}
		if err := p.Context().Err(); err != nil {
			t.Errorf("the ownership has ended: %v", context.Cause(p.Context()))
		}
		return nil
	})
	testkit.OK(t, err)
	began := time.Now()
	untilOwns(t, b, 4)
	t.Logf("the partition followed %v after the commit", time.Since(began))
	wraps(t, "Guard after the handoff", guard(t, pool, a, p), pgleases.ErrNotOwner)
}

func TestOverlappingGuardsDoNotPreventHandoff(t *testing.T) {
	t.Parallel()
	pool, _, cb, a := twoClients(t, 1, pgleases.WithHandoffDelay(0))
	p := ownership(t, a, 0)
	ctx, cancel := context.WithCancel(t.Context())
	var writers sync.WaitGroup
	defer writers.Wait()
	defer cancel()
	refusals := make(chan error, 4)
	for range cap(refusals) { // at each moment at least one has passed Guard, and has not committed
		writers.Go(func() {
			for {
				err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
					if err := a.Guard(ctx, tx, p); err != nil {
						return err
					}
					_, err := tx.Exec(ctx, "SELECT pg_sleep(0.02)")
					return err
				})
				if err != nil {
					refusals <- err
					return
				}
			}
		})
	}
	b := joined(t, cb, "work", 1, pgleases.WithHandoffDelay(0))
	testkit.OK(t, a.SetWeight(ctx, 0))
	untilOwns(t, b, 1)
	for range cap(refusals) {
		wraps(t, "a guard of the owner before", testkit.Receive(t, "refusal", refusals), pgleases.ErrNotOwner)
	}
}
