package pgleases_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/store"
)

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
	tx, err := db.BeginTx(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
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
		t.Error(err)
	}
}

func state(err error) string {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		return pgErr.Code
	}
	return ""
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
	bySQL := func(epoch int64) error {
		_, err := pool.Exec(t.Context(), `SELECT pgleases.guard('work', 0, $1)`, epoch)
		return err
	}
	passes := func(l *pgleases.Lease, p pgleases.Partition) {
		t.Helper()
		if err := errors.Join(guard(t, pool, l, p), guardSQL(t, db, l, p), bySQL(p.Epoch)); err != nil {
			t.Errorf("%v: %v", p, err)
		}
	}
	refused := func(l *pgleases.Lease, p pgleases.Partition) {
		t.Helper()
		for way, err := range map[string]error{"Guard": guard(t, pool, l, p), "GuardSQL": guardSQL(t, db, l, p)} {
			if !errors.Is(err, pgleases.ErrNotOwner) || !strings.Contains(err.Error(), fmt.Sprint(p.Epoch)) {
				t.Errorf("%s of %v: %v", way, p, err)
			}
		}
		if err := bySQL(p.Epoch); state(err) != "PL001" {
			t.Errorf("the SQL function for %v: %v", p, err)
		}
	}
	first := ownership(t, a, 0)
	stored := pgleases.Partition{Number: first.Number, Epoch: first.Epoch}
	passes(a, first)
	passes(a, stored)
	passes(b, stored) // it is the epoch that counts
	refused(a, pgleases.Partition{Number: 0, Epoch: first.Epoch + 1})
	refused(a, pgleases.Partition{Number: 0, Epoch: first.Epoch - 1})
	refused(a, pgleases.Partition{Number: 0})
	if err := guard(t, pool, a, pgleases.Partition{Number: 7, Epoch: first.Epoch}); !errors.Is(err, pgleases.ErrNotOwner) {
		t.Errorf("a partition that does not exist: %v", err)
	}

	move := func(from, to *pgleases.Lease) {
		t.Helper()
		if err := errors.Join(to.SetWeight(t.Context(), 1), from.SetWeight(t.Context(), 0)); err != nil {
			t.Fatal(err)
		}
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

func TestGuardRefusesWhatTheClientKnowsToBeOver(t *testing.T) {
	t.Parallel()
	pool, ca, _, a := twoClients(t, 1)
	p := ownership(t, a, 0)
	other := joined(t, ca, "other", 1)
	untilOwns(t, other, 1)
	if err := guard(t, pool, other, p); !errors.Is(err, pgleases.ErrNotOwner) {
		t.Errorf("guarded with another lease: %v", err)
	}
	if err := other.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := guard(t, pool, other, pgleases.Partition{Epoch: p.Epoch}); !errors.Is(err, pgleases.ErrClosed) {
		t.Errorf("a lease that was left: %v", err)
	}
	shut(t, ca)
	if err := guard(t, pool, a, p); !errors.Is(err, pgleases.ErrClosed) {
		t.Errorf("a client that was closed: %v", err)
	}
	if cause := context.Cause(p.Context()); !errors.Is(cause, pgleases.ErrClosed) {
		t.Errorf("its ownership ended with %v", cause)
	}
	if cause := context.Cause(pgleases.Partition{}.Context()); !errors.Is(cause, pgleases.ErrNotOwner) {
		t.Errorf("the context of an ownership that never was: %v", cause)
	}
}

func TestGuardIsForReadWriteTransactions(t *testing.T) {
	t.Parallel()
	pool, _, _, a := twoClients(t, 1)
	err := pgx.BeginTxFunc(t.Context(), pool, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		return a.Guard(t.Context(), tx, ownership(t, a, 0))
	})
	if state(err) != "25006" || errors.Is(err, pgleases.ErrNotOwner) {
		t.Errorf("in a read-only transaction: %v", err)
	}
}

func TestAllOfAClientsLifeGoesOnInEveryModeOfPgx(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	modes := []pgx.QueryExecMode{pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol}
	if _, pooled := pgtest.DirectURL(url); !pooled { // the others prepare statements
		modes = append(modes, pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec)
	}
	for _, mode := range modes {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			pool := newPool(t, pgtest.Database(t), func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode })
			db := stdlib.OpenDBFromPool(pool)
			defer db.Close()
			ca, cb := newClient(t, pool, pgleases.WithClientID("a")), newClient(t, pool, pgleases.WithClientID("b"))
			a, b := joined(t, ca, `w"o'rk\`, 4, pgleases.WithHandoffDelay(0)), joined(t, cb, `w"o'rk\`, 4, pgleases.WithHandoffDelay(0))
			until(t, "each owns half", func() bool { return slices.Equal(owned(a, b), []int{2, 2}) }, a, b)
			for _, l := range []*pgleases.Lease{a, b} {
				for _, n := range l.Values() {
					p := ownership(t, l, n)
					guarded(t, pool, l, p)
					if err := guardSQL(t, db, l, p); err != nil {
						t.Error(err)
					}
					p = pgleases.Partition{Number: n, Epoch: p.Epoch + 1}
					if err := guard(t, pool, l, p); !errors.Is(err, pgleases.ErrNotOwner) {
						t.Errorf("Guard under a wrong epoch: %v", err)
					}
					if err := guardSQL(t, db, l, p); !errors.Is(err, pgleases.ErrNotOwner) {
						t.Errorf("GuardSQL under a wrong epoch: %v", err)
					}
				}
			}
			if err := a.SetWeight(t.Context(), 3); err != nil {
				t.Fatal(err)
			}
			until(t, "shares follow the weight", func() bool { return slices.Equal(owned(a, b), []int{3, 1}) }, a, b)
			shut(t, ca)
			until(t, "the other owns all", func() bool { return len(b.Values()) == 4 }, b)
		})
	}
}

func TestGuardLowersAndNeverRaisesTheIdleLimitForThatTransactionOnly(t *testing.T) {
	t.Parallel()
	pool, ca, _, a := twoClientsOn(t, direct(t), 1) // a pooler may take another session for the next statement
	p := ownership(t, a, 0)
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	limit := func() (ms int) {
		t.Helper()
		if err := conn.QueryRow(t.Context(), `SELECT (extract(epoch FROM
			current_setting('idle_in_transaction_session_timeout')::interval) * 1000)::int`).Scan(&ms); err != nil {
			t.Fatal(err)
		}
		return ms
	}
	for before, most := range map[string]int{"0": 0, "1h": 0, "1d": 0, "1234ms": 1234, "2s": 2000} {
		if _, err := conn.Exec(t.Context(), "SET idle_in_transaction_session_timeout = '"+before+"'"); err != nil {
			t.Fatal(err)
		}
		was := limit()
		err := pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
			for range 2 {
				if err := a.Guard(t.Context(), tx, p); err != nil {
					return err
				}
				least := int(ca.Stats().Trust/time.Millisecond) - 1000 // as it was a heartbeat or so ago
				switch now := limit(); {
				case most > 0 && now != most, most == 0 && (now < least || now > 6000):
					t.Errorf("where %s was set, %d ms are; trust is %v", before, now, ca.Stats().Trust)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if now := limit(); now != was {
			t.Errorf("after the transaction %d ms are set, before it %d", now, was)
		}
	}
}

func TestATransactionThatIdlesPastTheTrustIsEndedByTheServer(t *testing.T) {
	t.Parallel()
	pool := newPool(t, pgtest.Database(t))
	c := newClient(t, pool, pgleases.WithTTL(time.Second))
	l := joined(t, c, "work", 1)
	untilOwns(t, l, 1)
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	var pid int
	if err := tx.QueryRow(t.Context(), `SELECT pg_backend_pid()`).Scan(&pid); err != nil {
		t.Fatal(err)
	}
	if err := l.Guard(t.Context(), tx, ownership(t, l, 0)); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	until(t, "the session is gone", func() bool {
		return value[int](t, pool, `SELECT count(*) FROM pg_stat_activity WHERE pid = $1`, pid) == 0
	})
	if took := time.Since(began); took > time.Second {
		t.Errorf("it idled for %v", took)
	}
	if err := tx.Commit(t.Context()); err == nil {
		t.Error("it was committed")
	}
}

func TestAnOpenGuardedTransactionDelaysTheHandOverOfItsPartitionOnly(t *testing.T) {
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
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	untilOwns(t, b, 4)
	t.Logf("the partition followed %v after the commit", time.Since(began))
	if err := guard(t, pool, a, p); !errors.Is(err, pgleases.ErrNotOwner) {
		t.Errorf("Guard after the hand-over: %v", err)
	}
}

// The dead owner is a session that just stops its heartbeats.
func TestAGuardedTransactionOfADeadOwnerLeftOpenHoldsUpItsPartitionOnly(t *testing.T) {
	t.Parallel()
	const ttl, partitions = 2 * time.Second, 12
	url := pgtest.Database(t)
	pool := newPool(t, url)
	var book logbook
	clients := []*pgleases.Client{
		newClient(t, pool, pgleases.WithClientID("a"), pgleases.WithTTL(ttl), book.option()),
		newClient(t, pool, pgleases.WithClientID("b"), pgleases.WithTTL(ttl), book.option()),
	}
	var leases []*pgleases.Lease
	for _, c := range clients {
		leases = append(leases, joined(t, c, "work", partitions, pgleases.WithHandoffDelay(0)))
	}
	config, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	dying, err := store.NewConnector(config, nil, "pgleases", ttl).Connect(t.Context(), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer dying.Close()
	const session = 4711
	_, _, err = dying.Register(t.Context(), store.Registration{
		Session: session, ID: "dying", Process: 1, TTL: ttl, Host: "here", PID: 1, StartedAt: time.Now()})
	if err == nil {
		_, err = dying.Join(t.Context(), session, "work", partitions, 1)
	}
	if err != nil {
		t.Fatal(err)
	}
	var last time.Time
	until(t, "the dying one owns a third", func() bool {
		last = time.Now()
		if beat, err := dying.Heartbeat(t.Context(), session); err != nil || !beat.Alive {
			t.Fatal(beat.Alive, err)
		}
		return len(ownedBy(t, pool, "dying")) == partitions/3
	})
	for _, c := range clients {
		for began := time.Now(); time.Since(began) < ttl; { // they have watched the clock for a TTL
			last = time.Now()
			if _, err := dying.Heartbeat(t.Context(), session); err != nil {
				t.Fatal(err)
			}
			beats(t, c, 1)
		}
	}
	last = time.Now()
	if _, err := dying.Heartbeat(t.Context(), session); err != nil {
		t.Fatal(err)
	}

	n := ownedBy(t, pool, "dying")[0]
	epoch := value[int64](t, pool, `SELECT epoch FROM pgleases.status WHERE partition = $1`, n)
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), `SELECT pgleases.guard('work', $1, $2)`, n, epoch); err != nil {
		t.Fatal(err)
	}
	var oldest, owning, joining time.Duration
	var third *pgleases.Lease
	until(t, "three TTLs have passed", func() bool {
		for _, c := range clients {
			oldest = max(oldest, c.Stats().HeartbeatAge)
		}
		total := 0
		for _, l := range leases {
			total += len(l.Values())
			if l.Owns(n) {
				t.Fatalf("%s owns the guarded partition", l.Name())
			}
		}
		if total == partitions-1 && owning == 0 {
			owning = time.Since(last)
			began := time.Now()
			clients = append(clients, newClient(t, pool, pgleases.WithClientID("c"), pgleases.WithTTL(ttl), book.option()))
			third = joined(t, clients[2], "work", partitions, pgleases.WithHandoffDelay(0))
			leases = append(leases, third)
			joining = time.Since(began)
		}
		return time.Since(last) > 3*ttl
	})
	t.Logf("all others were owned again %v after the last heartbeat (TTL %v); a join took %v; the oldest heartbeat was %v old",
		owning, ttl, joining, oldest)
	if third == nil {
		t.Fatal("the other partitions were not owned again")
	}
	if owning < ttl-10*time.Millisecond || owning > ttl+200*time.Millisecond+slack {
		t.Errorf("the other partitions were owned again after %v", owning)
	}
	if joining > time.Second+slack {
		t.Errorf("a join took %v", joining)
	}
	if got := len(third.Values()); got < 3 || got > 4 {
		t.Errorf("who joined owns %d of %d", got, partitions)
	}
	if lines := book.lines("heartbeat failed", "lock timeout"); len(lines) != 0 || oldest >= ttl {
		t.Errorf("a heartbeat had to wait: %q, the oldest %v", lines, oldest)
	}
	for _, c := range clients {
		if s := c.Stats(); s.Losses.TrustLost != 0 || s.Reconnects != 0 {
			t.Errorf("stats of %s: %+v", c.ID(), s)
		}
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Errorf("what Guard let pass did not commit: %v", err)
	}
	began := time.Now()
	until(t, "the partition follows", func() bool {
		return leases[0].Owns(n) || leases[1].Owns(n) || leases[2].Owns(n)
	}, leases...)
	t.Logf("it followed %v after the commit", time.Since(began))
	if took := time.Since(began); took > 100*time.Millisecond+slack {
		t.Errorf("it followed %v after the commit", took)
	}
}
