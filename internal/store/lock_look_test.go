package store_test

import (
	"testing"

	. "github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/testkit"
)

// A client checks at each heartbeat and after each grant, on the connection of its heartbeats.
func TestLockLookReadsEachWaiterAFewTimes(t *testing.T) {
	t.Parallel()
	const many = 2000
	f := freshFixture(t)
	a, b := f.locker("a"), f.locker("b")
	a.says("holds", LockGranted, "x", exclusive, try)
	f.exec(`
		INSERT INTO locks SELECT 'x', n, $1, n, false, NULL, now() FROM generate_series(2, $2) AS n`, b.session, many+1)
	var nonces []int64
	for n := range int64(many) {
		nonces = append(nonces, n+2)
	}
	f.exec("VACUUM ANALYZE locks")
	testkit.Must(b.app.Exec(f.ctx, "BEGIN"))(f)
	testkit.Must(b.app.Exec(f.ctx, StatementsFor(f.schema).LockLook, b.session, nonces, false, 5000, "yes"))(f)
	n := valueOn[int64](f, b.app, `
		SELECT sum(seq_tup_read + idx_tup_fetch)::bigint FROM pg_stat_xact_user_tables
		WHERE relid IN ('pgleases.locks'::regclass, 'pgleases.clients'::regclass)`)
	if n > 20*many {
		t.Errorf("%d who wait: a look reads %d rows", many, n)
	}
	testkit.Must(b.app.Exec(f.ctx, "ROLLBACK"))(f)
}

// No lock is granted while the server is not accepted, and no notification about it follows later.
func TestReaderGetsItsLockOnceTheServerIsAccepted(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a, b, c := f.locker("a"), f.locker("b"), f.locker("c")
	a.says("a reader", LockGranted, "x", shared, try)
	b.says("a writer", LockWaits, "x", exclusive, wait)
	c.says("a reader behind it", LockWaits, "x", shared, wait)
	f.exec("UPDATE server SET accepted_timeline = -1")
	expect(t, b.give("x"), LockReleased, "the writer gives up")
	f.exec("UPDATE server SET accepted_timeline = timeline()")
	if c.token("x") <= 0 {
		t.Error("the reader waits for a reader: " + f.queue("x"))
	}
}

// A server has room for a few thousand of them, for all of its clients together; a sweep takes as
// many.
func TestLockLookTakesAThousandMutexesAtMost(t *testing.T) {
	t.Parallel()
	f := freshFixture(t)
	a := f.locker("a")
	f.exec(`
		INSERT INTO locks SELECT 'x' || n, 2, $1, n, false, NULL, now() FROM generate_series(1, 3000) AS n`, a.session)
	f.exec("VACUUM ANALYZE locks")
	nonces := make([]int64, 3000)
	for n := range nonces {
		nonces[n] = int64(n + 1)
	}
	testkit.Must(a.app.Exec(f.ctx, "BEGIN"))(f)
	testkit.Must(a.app.Exec(f.ctx, StatementsFor(f.schema).LockLook, a.session, nonces, false, 5000, "yes"))(f)
	n := valueOn[int64](f, a.app, `
		SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()`)
	testkit.Must(a.app.Exec(f.ctx, "ROLLBACK"))(f)
	expect(t, n, 1000, "mutexes")
}
