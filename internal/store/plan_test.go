package store_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/fakestore"
	. "github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/testkit"
)

// state is the state of a lease's partitions, with clients by name.
func (f *fixture) state(lease string, clients ...*client) string {
	f.Helper()
	if f.double != nil {
		return f.doubleState(lease, clients...)
	}
	text := f.text(`
		SELECT coalesce(owner, 0) || '>' || coalesce(target, 0) || ':' || epoch || ' of ' || coalesce(owner_id, '-')
		    || CASE WHEN preferred_owner_id IS NOT NULL THEN ' prefers ' || preferred_owner_id ELSE '' END
		    || CASE WHEN asked_at IS NOT NULL THEN ' asked' ELSE '' END
		FROM partitions WHERE lease = $1 ORDER BY partition`, lease)
	for _, c := range clients {
		text = strings.ReplaceAll(text, fmt.Sprint(c.session), c.id)
	}
	return strings.ReplaceAll(text, "\n", ", ")
}

// doubleState is the same for a database in memory, which does not have asked_at: an owner of a
// partition with another target was asked.
func (f *fixture) doubleState(lease string, clients ...*client) string {
	var lines []string
	for _, row := range f.tables().Partitions[lease] {
		line := fmt.Sprintf("%d>%d:%d of %s", row.Owner, row.Target, row.Epoch, cmp.Or(row.OwnerID, "-"))
		if row.PreferredID != "" {
			line += " prefers " + row.PreferredID
		}
		if row.Owner != row.Target {
			line += " asked"
		}
		lines = append(lines, line)
	}
	text := strings.Join(lines, ", ")
	for _, c := range clients {
		text = strings.ReplaceAll(text, fmt.Sprint(c.session), c.id)
	}
	return text
}

// A client that leaves names all its leases, and an eviction all leases of the evicted client.
func TestPlanReadsEachMembersLeasesOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const leases, members = 50, 4
	var sessions []int64
	for i := range members {
		sessions = append(sessions, f.client(fmt.Sprint("c", i)).session)
	}
	f.exec(`INSERT INTO leases (name, partitions, generation, created_generation, epoch_floor, plan_due_at, planned_at)
		SELECT 'l' || n, 1, 1, 1, 0, 'infinity', now() FROM generate_series(1, $1) AS n`, leases)
	f.exec(`
		INSERT INTO members SELECT 'l' || n, s, 1, now(), 1
		FROM generate_series(1, $2) AS n, unnest($1::bigint[]) AS s`, sessions, leases)
	f.ok(pgx.BeginFunc(f.ctx, f.sql, func(tx pgx.Tx) error {
		const read = `SELECT sum(pg_stat_get_xact_tuples_returned(indexrelid))::int
			FROM pg_index WHERE indrelid = 'members'::regclass`
		before := valueOn[int](f, tx, read)
		got := valueOn[int](f, tx, "SELECT count(*)::int FROM snapshot(ARRAY(SELECT name FROM leases), false)")
		expect(t, got, leases, "leases of the plan")
		// To find the sessions of the leases, the leases of each session, and the members of each lease.
		if rows := valueOn[int](f, tx, read) - before; rows > 3*leases*members {
			t.Errorf("%d rows of members read, of %d", rows, leases*members)
		}
		return nil
	}))
}

// Each row that is written makes heartbeats return leases, and is written to the WAL.
func TestPlanWritesOnlyLeasesThatNeedItOrChange(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a, b := f.client("a"), f.client("b")
		for _, name := range []string{"calm", "due", "moved"} {
			a.join(name, 1)
			b.join(name, 1)
			f.lease(name, func(l *fakestore.Lease, _ int64) { l.NextCheckAt, l.PlannedAt = fakestore.Ever, 1 })
		}
		f.lease("due", func(l *fakestore.Lease, clock int64) { l.NextCheckAt = clock })
		expect(t, a.apply(a.snapshot("due"), Move{"moved", 0, a.session}).Given, 1, "given")
		var written []string
		for name, l := range f.tables().Leases {
			if l.PlannedAt != 1 {
				written = append(written, name)
			}
		}
		slices.Sort(written)
		expect(t, strings.Join(written, " "), "due moved", "written")
	})
}

func TestAPlanGivesWhatIsFreeAndAsksForWhatIsNot(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a, b := f.pair(3)
		read := a.snapshot("l")
		first := a.apply(read, Move{"l", 0, a.session}, Move{"l", 1, b.session})
		expect(t, first, Applied{Applied: true, Given: 2}, "first plan")
		expect(t, f.state("l", a, b), "a>a:1 of a, b>b:1 of b, 0>0:0 of -", "given")
		expect(t, a.beat().Leases[0], LeaseBeat{"l", 2, -1000, 1}, "heartbeat, which leaves out the second join")
		second := a.apply(a.snapshot("l"), Move{"l", 0, b.session}, Move{"l", 2, b.session})
		expect(t, second, Applied{Applied: true, Asked: 1, Given: 1}, "second plan")
		expect(t, f.state("l", a, b), "a>b:1 of a asked, b>b:1 of b, b>b:1 of b", "asked")
		expect(t, a.owned("l"), "0:1>", "read")
		expect(t, a.apply(a.snapshot("l"), Move{"l", 0, a.session}).Asked, 1, "third plan")
		expect(t, f.state("l", a, b), "a>a:1 of a, b>b:1 of b, b>b:1 of b", "taken back")
		f.kill("a")
		expect(t, b.apply(b.snapshot("l"), Move{"l", 0, b.session}), Applied{Applied: true, Given: 1}, "after a death")
		expect(t, f.state("l", a, b), "b>b:2 of b prefers a, b>b:1 of b, b>b:1 of b", "taken from the expired")
	})
}

func TestCrashedOwnersPartitionGoesToFormerTarget(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a, b := f.pair(1)
		a.give("l", a.session)
		a.give("l", b.session)
		f.kill("a")
		expect(t, b.give("l", b.session).Given, 1, "given")
		expect(t, f.state("l", b), "b>b:2 of b prefers a", "state")
	})
}

// overtaken returns the leases that an Apply has found changed.
func overtaken(read []LeaseSnapshot) string {
	var names []string
	for _, r := range read {
		if r.Overtaken {
			names = append(names, r.Name)
		}
	}
	return strings.Join(names, " ")
}

// While many clients join many leases, one lease of a plan has always changed.
func TestPlanLeavesOutLeasesThatHaveChanged(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a, b := f.client("a"), f.client("b")
		for _, name := range []string{"one", "three", "two"} {
			a.join(name, 2)
		}
		moves := []Move{
			{"one", 0, a.session}, {"one", 1, a.session},
			{"three", 0, a.session}, {"two", 0, a.session}, {"two", 1, a.session},
		}
		read := a.snapshot("one", "two", "three")
		b.join("two", 2)
		before := f.tables().Leases["two"]
		expect(t, a.apply(read, moves...), Applied{Applied: true, Given: 3}, "after another's join")
		expect(t, overtaken(read), "two", "overtaken")
		expect(t, f.state("one", a)+"; "+f.state("two", a), "a>a:1 of a, a>a:1 of a; 0>0:0 of -, 0>0:0 of -", "state")
		expect(t, f.tables().Leases["two"], before, "row of the lease that has changed")
		if l := f.tables().Leases["one"]; l.NextCheckAt != l.PlannedAt+time.Second.Microseconds() {
			t.Errorf("another plan of what is balanced with it is due at %d, after one at %d",
				l.NextCheckAt, l.PlannedAt)
		}

		read = a.snapshot("two")[2:]
		f.client("c").join("two", 2)
		expect(t, a.apply(read, moves[3:]...), Applied{}, "after a change of all leases")
		expect(t, overtaken(read), "two", "overtaken")
		expect(t, a.apply(a.snapshot("one", "two"), moves[3:]...).Given, 2, "given by a fresh plan")
	})
}

// The generation changes while the plan waits for a lease's lock: the snapshot still shows the one
// that was read.
func TestPlanLeavesOutLeasesThatChangeMeanwhile(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a := f.client("a")
	a.join("one", 1)
	a.join("two", 1)
	read := a.snapshot("one", "two")
	release := f.lock("UPDATE leases SET generation = generation + 1 WHERE name = 'two'")
	applying := later(func() Applied {
		got, _ := a.Apply(f.ctx, read, []Move{{"one", 0, a.session}, {"two", 0, a.session}}, onlyLeftOver)
		return got
	})
	f.blocked(a.pg().Raw())
	release()
	expect(t, applying(), Applied{Applied: true, Given: 1}, "after a change that it waited for")
	expect(t, overtaken(read), "two", "overtaken")
	expect(t, f.state("two", a), "0>0:0 of -", "state")
}

// What is committed while a plan waits for a lease is not in the snapshot that its message began
// with.
func TestAPlanDecidesByWhatIsTrueOnceItHasTheLock(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	f := newFixture(t)
	a, b, c := f.trio(4)
	a.give("l", a.session, a.session, a.session, a.session)
	read := a.snapshot("l")
	moves := []Move{{"l", 0, c.session}, {"l", 1, c.session}, {"l", 2, b.session}, {"l", 3, c.session}}
	// Partition 1 loses its owner, partition 2 is released to another, partition 3 is fenced; b is
	// killed.
	release := f.lock(`SELECT FROM leases FOR UPDATE;
		UPDATE partitions SET owner = NULL, target = NULL WHERE partition = 1;
		UPDATE partitions SET owner = $1, target = $1, owner_id = 'c', epoch = 2 WHERE partition = 2;
		UPDATE partitions SET epoch = 2 WHERE partition = 3;
		DELETE FROM clients WHERE id = 'b'`, c.session)
	applying := later(func() Applied { got, _ := a.Apply(f.ctx, read, moves, onlyLeftOver); return got })
	f.blocked(a.pg().Raw())
	release()
	expect(t, applying(), Applied{Applied: true, Asked: 2, Given: 1}, "applied")
	expect(t, f.state("l", a, b, c), "a>c:1 of a asked, c>c:2 of c, c>c:2 of c, a>c:2 of a asked", "state")
}

// applyHalted applies moves until a statement of a kind begins, and returns a function that lets it
// go on and returns what was applied.
func (c *client) applyHalted(statement string, read []LeaseSnapshot, moves ...Move) (goOn func() Applied) {
	c.f.Helper()
	release := c.f.halt(statement)
	applying := later(func() Applied {
		got, _ := c.Apply(c.f.ctx, read, moves, onlyLeftOver)
		return got
	})
	c.f.blocked(c.pg().Raw())
	return func() Applied {
		release()
		return applying()
	}
}

// Only a fence changes a partition's row without the lease's lock.
func TestMoveOfFencedPartitionIsLeftOver(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	f := freshFixture(t)
	a, b := f.pair(2)
	a.give("l", a.session, a.session)
	f.kill("a")
	read := b.snapshot("l")
	goOn := b.applyHalted("UPDATE OF owner ON partitions", read, Move{"l", 0, b.session}, Move{"l", 1, b.session})
	// Without the trigger.
	f.exec(`
		SET session_replication_role = replica;
		UPDATE partitions SET epoch = 7 WHERE partition = 1;
		RESET session_replication_role`)
	expect(t, goOn(), Applied{Applied: true, Given: 1, LeftOver: 1}, "applied")
	expect(t, f.state("l", a, b), "b>b:2 of b prefers a, a>a:7 of a", "state")
	expect(t, b.give("l", b.session, b.session), Applied{Applied: true, Asked: 1, Given: 1}, "the next plan")
}

// The owner that is asked to hand over a partition is evicted before the others are given. What an
// open guard keeps is left over all the same, so another plan is due.
func TestEvictionDuringAPlanHidesNothingLeftOver(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	f := freshFixture(t)
	a, b, c := f.trio(2)
	a.give("l", a.session, c.session)
	end := f.guarding("l", 0, 1)
	f.kill("a")
	read := b.snapshot("l")
	goOn := b.applyHalted("UPDATE OF target ON partitions", read, Move{"l", 0, b.session}, Move{"l", 1, b.session})
	f.exec("DELETE FROM clients WHERE id = 'c'")
	expect(t, goOn(), Applied{Applied: true, Asked: 1, LeftOver: 1}, "applied")
	expect(t, f.state("l", a, b, c), "a>a:1 of a, c>b:1 of c asked", "state")
	expect(t, f.text("SELECT plan_due_at < 'infinity' FROM leases"), "true", "another plan is due")
	end()
	expect(t, b.give("l", b.session, b.session), Applied{Applied: true, Given: 2}, "the next plan")
}

// A plan of partitions whose rows were deleted by hand is not due again and again.
func TestMoveOfAPartitionWithoutARowIsNotLeftOver(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	f := newFixture(t)
	a := f.client("a")
	a.join("l", 2)
	read := a.snapshot("l")
	f.exec("DELETE FROM partitions WHERE partition = 1")
	got := a.apply(read, Move{"l", 0, a.session}, Move{"l", 1, a.session})
	expect(t, got, Applied{Applied: true, Given: 1}, "applied")
}

func TestNoPartitionMovesToANonMember(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a, b := f.client("a"), f.client("b")
		a.join("l", 2)
		b.join("other", 1)
		a.give("l", a.session)
		read := a.snapshot("l")
		got := a.apply(read, Move{"l", 0, b.session}, Move{"l", 1, b.session}, Move{"l", 1, 12345})
		expect(t, got, Applied{Applied: true}, "applied")
		expect(t, f.state("l", a), "a>a:1 of a, 0>0:0 of -", "state")
	})
}

func TestGuardFunctionPassesForTheOwnersEpoch(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a := f.client("a")
		a.join("l", 2)
		a.give("l", a.session)
		expect(t, f.passes("l", 0, 1), true, "under its epoch")
		expect(t, f.passes("l", 0, 0), false, "under the epoch before")
		expect(t, f.passes("l", 0, 2), false, "under the next epoch")
		expect(t, f.passes("l", 1, 0), false, "if it has no owner")
		expect(t, f.passes("l", 2, 1), false, "where there is no such partition")
		expect(t, f.passes("other", 0, 1), false, "where there is no such lease")
		f.kill("a")
		expect(t, f.passes("l", 0, 1), false, "once its owner was evicted")
	})
}

func TestAPlanWithMoreMovesStaysDue(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a := f.client("a")
		a.join("l", 2)
		first := testkit.Must(a.Apply(f.ctx, a.snapshot("l"), []Move{{"l", 0, a.session}}, NextPlan{}))(f)
		expect(t, first, Applied{Applied: true, Given: 1}, "first part")
		expect(t, a.beat().Leases[0].DueIn, 0, "the next plan is due in")
		expect(t, a.apply(a.snapshot("l"), Move{"l", 1, a.session}), Applied{Applied: true, Given: 1}, "the rest")
		expect(t, a.beat().Leases[0].DueIn, -time.Microsecond, "the next plan is due in")
	})
}

func TestAnOpenGuardDelaysItsPartitionOnly(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a, b := f.pair(3)
		a.give("l", a.session, a.session, a.session)
		end := f.guarding("l", 1, 1)

		// This does not conflict.
		expect(t, b.give("l", a.session, b.session, a.session), Applied{Applied: true, Asked: 3}, "asked")
		f.kill("a")
		// It does not wait: if it did, the lock's timeout would make it fail.
		got := b.give("l", b.session, b.session, b.session)
		expect(t, got, Applied{Applied: true, Given: 2, LeftOver: 1}, "while it is open")
		expect(t, f.state("l", a, b), "b>b:2 of b prefers a, a>b:1 of a asked, b>b:2 of b prefers a", "state")
		expect(t, b.beat().Leases[0].DueIn, 50*time.Millisecond, "the next plan is due in")
		f.client("c").join("l", 3)
		end()
		expect(t, b.give("l", b.session, b.session, b.session).Given, 1, "when it is closed")
		expect(t, f.state("l", b), "b>b:2 of b prefers a, b>b:2 of b prefers a, b>b:2 of b prefers a", "state")
	})
}

// takeOver is a takeover of partition 0 that has not committed yet; the result commits it.
func (f *fixture) takeOver(by *client) (commit func()) {
	f.Helper()
	read := by.snapshot("l")
	f.ok(by.pg().Exec(f.ctx, "BEGIN"))
	applied := by.apply(read, Move{"l", 0, by.session})
	expect(f.TB, applied, Applied{Applied: true, Given: 1}, "takeover")
	return func() { f.ok(by.pg().Exec(f.ctx, "COMMIT")) }
}

// One after the other, so that at any time one of them holds the partition's row.
func TestAStreamOfGuardsEndsWithTheOwnersEviction(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	f := newFixture(t)
	a, b := f.pair(1)
	a.give("l", a.session)
	var passed atomic.Int64
	refused := make([]func() error, 8)
	for i := range refused {
		conn := f.session()
		refused[i] = later(func() error {
			for ; ; passed.Add(1) {
				if err := guardOnce(f, conn, 1); err != nil {
					return err
				}
			}
		})
	}
	f.until("they are at it", func() bool { return passed.Load() > 100 })
	f.expire(a)
	b.evict()
	for _, stream := range refused {
		if err := stream(); Code(err) != CodeNotOwner {
			t.Errorf("it ended with %v", err)
		}
	}
	expect(t, b.give("l", b.session).Given, 1, "given")
}

func TestGuardDuringTakeoverWaitsAndIsRefused(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a, b := f.pair(1)
	a.give("l", a.session)
	f.exec("DELETE FROM members WHERE session = $1", a.session) // a's guards pass until it is taken over
	commit := f.takeOver(b)

	former := f.session()
	tx := testkit.Must(former.Begin(f.ctx))(f)
	guarding := later(func() error { return guard(f, tx, "l", 0, 1) })
	passed := false
	f.until("the guard waits", func() bool { // or passed, which the mutant without the lock does
		pid := int64(former.PgConn().PID())
		passed = value[bool](f, `
			SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1
				AND state = 'idle in transaction' AND query LIKE '%guarded%')`, pid)
		return passed || value[bool](f, "SELECT cardinality(pg_blocking_pids($1::int)) > 0", pid)
	})
	if passed {
		t.Fatal("the guard of a former owner passed")
	}
	commit()
	err := guarding()
	if Code(err) != CodeNotOwner {
		t.Fatalf("the guard of a former owner: %v", err)
	}
	f.ok(tx.Rollback(f.ctx))
	tx = testkit.Must(former.Begin(f.ctx))(f)
	f.ok(guard(f, tx, "l", 0, 2))
	f.ok(tx.Rollback(f.ctx))
}

func TestGuardDuringReleaseWaitsAndIsRefused(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	f := newFixture(t)
	a, b := f.pair(1)
	a.give("l", a.session)
	a.give("l", b.session)
	f.ok(a.pg().Exec(f.ctx, "BEGIN"))
	expect(t, len(a.release([]Release{{"l", 0, 1}}).Released), 1, "released")
	former := f.session()
	guarding := later(func() error { return failure(former.Exec(f.ctx, "SELECT guard('l', 0, 1)")) })
	f.blocked(former)
	f.ok(a.pg().Exec(f.ctx, "COMMIT"))
	if err := guarding(); Code(err) != CodeNotOwner {
		t.Fatal(err)
	}
}

// failure returns the error of a call whose answer is ignored.
func failure[T any](_ T, err error) error { return err }

func TestAGuardHoldsInWhateverTransactionItIs(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	f := newFixture(t)
	a, b := f.pair(1)
	a.give("l", a.session)
	conn := f.session()
	begin := func(options pgx.TxOptions) pgx.Tx {
		return testkit.Must(conn.BeginTx(f.ctx, options))(f)
	}
	tx := begin(pgx.TxOptions{AccessMode: pgx.ReadOnly})
	if err := guard(f, tx, "l", 0, 1); Code(err) != "25006" {
		t.Errorf("in a read-only transaction: %v", err)
	}
	f.ok(tx.Rollback(f.ctx))

	tx = begin(pgx.TxOptions{})
	for _, wrong := range []struct {
		lease string
		n     int
		epoch int64
	}{{"l", 0, 0}, {"l", 0, 2}, {"l", 1, 1}, {"other", 0, 1}} {
		inner := testkit.Must(tx.Begin(f.ctx))(f)
		if err := guard(f, inner, wrong.lease, wrong.n, wrong.epoch); Code(err) != CodeNotOwner {
			t.Errorf("%v: %v", wrong, err)
		}
		f.ok(inner.Rollback(f.ctx))
	}
	inner := testkit.Must(tx.Begin(f.ctx))(f)
	f.ok(guard(f, inner, "l", 0, 1))
	f.exec("DELETE FROM clients WHERE id = 'a'")
	expect(t, b.give("l", b.session).LeftOver, 1, "left over under a savepoint")
	f.ok(inner.Rollback(f.ctx))
	expect(t, b.give("l", b.session).Given, 1, "given after its roll-back")
	f.ok(tx.Rollback(f.ctx))

	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		epoch := value[int64](f, "SELECT epoch FROM partitions")
		tx = begin(pgx.TxOptions{IsoLevel: level})
		testkit.Must(tx.Exec(f.ctx, "SELECT count(*) FROM partitions"))(f) // its snapshot
		b.release([]Release{{"l", 0, epoch}})                              // to itself: a new epoch
		if err := guard(f, tx, "l", 0, epoch); Code(err) != "40001" {
			t.Errorf("%s, begun before the takeover: %v", level, err)
		}
		f.ok(tx.Rollback(f.ctx))
		tx = begin(pgx.TxOptions{IsoLevel: level})
		f.ok(guard(f, tx, "l", 0, epoch+1))
		f.ok(tx.Commit(f.ctx))
	}
	f.exec("DELETE FROM clients WHERE id = 'b'")
	c := f.client("c")
	c.joinWeight("l", 1, 0)
	c.give("l", 0)
	if err := guardOnce(f, conn, value[int64](f, "SELECT epoch FROM partitions")); Code(err) != CodeNotOwner {
		t.Errorf("if it has no owner: %v", err)
	}
}

func guardOnce(f *fixture, conn *pgx.Conn, epoch int64) error {
	return pgx.BeginFunc(f.ctx, conn, func(tx pgx.Tx) error { return guard(f, tx, "l", 0, epoch) })
}

func TestAGuardLowersTheIdleLimitOfItsTransactionOnly(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	f := newFixture(t)
	a := f.client("a")
	a.join("l", 1)
	a.give("l", a.session)
	conn := f.session()
	for _, c := range []struct{ setting, inside, shown string }{
		{"0", "1s", "0"}, {"500ms", "500ms", "500ms"}, {"1min", "1s", "1min"}, {"5s", "1s", "5s"}, {"1d", "1s", "1d"},
	} {
		testkit.Must(conn.Exec(f.ctx, "SET idle_in_transaction_session_timeout = '"+c.setting+"'"))(f)
		for _, mode := range []pgx.QueryExecMode{
			pgx.QueryExecModeSimpleProtocol, pgx.QueryExecModeExec, pgx.QueryExecModeCacheStatement,
		} {
			tx := testkit.Must(conn.Begin(f.ctx))(f)
			testkit.Must(tx.Exec(f.ctx, StatementsFor(f.schema).Guard, mode, "l", 0, 1, 1000))(f)
			expect(t, valueOn[string](f, conn, "SHOW idle_in_transaction_session_timeout"), c.inside, "limit inside")
			f.ok(tx.Commit(f.ctx))
			expect(t, valueOn[string](f, conn, "SHOW idle_in_transaction_session_timeout"), c.shown, "limit afterwards")
		}
		tx := testkit.Must(conn.Begin(f.ctx))(f) // the function alone knows no trust
		testkit.Must(tx.Exec(f.ctx, "SELECT pgleases.guard('l', 0, 1)"))(f)
		limit := valueOn[string](f, conn, "SHOW idle_in_transaction_session_timeout")
		expect(t, limit, c.shown, "limit after the SQL function")
		f.ok(tx.Rollback(f.ctx))
	}
}

// watchOwners records every change of an owner or an epoch, and each change that breaks a rule,
// with the name of the connection that made it.
func (f *fixture) watchOwners() {
	f.Helper()
	_, err := f.sql.PgConn().Exec(f.ctx, `
		CREATE TABLE public.history (lease text, partition int, owner bigint, epoch bigint, PRIMARY KEY (lease, partition, epoch));
		CREATE TABLE public.violations (what text);
		CREATE FUNCTION public.watch_owner() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
		BEGIN
			IF NEW.owner IS NOT DISTINCT FROM OLD.owner AND NEW.epoch = OLD.epoch THEN RETURN NULL; END IF;
			INSERT INTO public.history VALUES (NEW.lease, NEW.partition, NEW.owner, NEW.epoch);
			IF NEW.epoch <= OLD.epoch THEN
				INSERT INTO public.violations VALUES ('epoch ' || OLD::text || ' to ' || NEW::text);
			END IF;
			IF current_setting('application_name') <> coalesce(OLD.owner::text, '')
			   AND EXISTS (SELECT FROM pgleases.clients JOIN pgleases.members USING (session)
			               WHERE session = OLD.owner AND members.lease = OLD.lease) THEN
				INSERT INTO public.violations VALUES ('taken from the living: ' || OLD::text || ' to ' || NEW::text);
			END IF;
			RETURN NULL;
		END $$;
		CREATE TRIGGER watch_owner AFTER UPDATE ON pgleases.partitions FOR EACH ROW EXECUTE FUNCTION public.watch_owner()`).ReadAll()
	f.ok(err)
}

// named gives a client a connection that bears its session's number as its name.
func (c *client) named() *client {
	c.f.Helper()
	config := c.f.config()
	config.RuntimeParams["application_name"] = fmt.Sprint(c.session)
	c.Conn = c.f.connect(NewConnector(config, nil, c.f.schema, 40*time.Second))
	return c
}

func TestConcurrentChangesKeepOneOwner(t *testing.T) {
	t.Parallel()
	f := freshFixture(t)
	f.watchOwners()
	const clients = 6
	rounds := testkit.Rounds(200)
	leases := []string{"one", "two", "three"}
	f.client("keeper").run()
	var wg sync.WaitGroup
	counts := make([]map[string]int, clients)
	for i := range clients {
		c := f.client(fmt.Sprint("c", i)).named()
		counts[i] = map[string]int{}
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 2))
			for range rounds {
				what, err := c.anything(f.ctx, r, leases)
				counts[i][what]++
				if err != nil {
					t.Errorf("%s: %v", what, err)
					return
				}
			}
		})
	}
	wg.Wait()
	t.Log(counts[0], f.text("SELECT count(*) FROM public.history"), "changes of owner")
	expect(t, f.text("SELECT what FROM public.violations LIMIT 5"), "", "violations")

	last := f.client("last")
	for _, lease := range leases {
		last.join(lease, 8)
	}
	f.exec("UPDATE clients SET expires_at = '-infinity' WHERE session <> $1", last.session)
	f.checkNow()
	last.evict()
	var moves []Move
	for _, lease := range leases {
		for n := range 8 {
			moves = append(moves, Move{lease, n, last.session})
		}
	}
	expect(t, last.apply(last.snapshot(leases...), moves...).Given, len(moves), "given in the end")
	owned := f.text("SELECT count(*), count(*) FILTER (WHERE owner = $1) FROM partitions", last.session)
	expect(t, owned, "24|24", "partitions, owned")
}

// anything does one thing that a client may do.
func (c *client) anything(ctx context.Context, r *rand.Rand, leases []string) (string, error) {
	lease := leases[r.IntN(len(leases))]
	own := func(name string) (releases []Release, err error) {
		reads, err := c.Read(ctx, c.session, []string{name})
		if err != nil || len(reads) == 0 {
			return nil, err
		}
		for _, o := range reads[0].Owned {
			if o.Moving || r.IntN(4) == 0 {
				releases = append(releases, Release{name, o.Partition, o.Epoch})
			}
		}
		return releases, nil
	}
	switch n := r.IntN(20); {
	case n < 4:
		join, err := c.Join(ctx, c.session, lease, 8, Terms{Weight: 1 + r.IntN(2)}, 1)
		if err == nil && !join.Joined {
			err = c.renewed(ctx)
		}
		return "join", err
	case n < 6:
		releases, err := own(lease)
		if err == nil {
			_, err = c.Release(ctx, c.session, releases, []Leave{{Lease: lease, Now: true}}, 1)
		}
		return "leave", err
	case n < 10:
		a, err := own(leases[0])
		b, err2 := own(leases[1])
		if err = errors.Join(err, err2); err == nil {
			_, err = c.Release(ctx, c.session, slices.Concat(b, a), nil, 0)
		}
		return "release", err
	case n < 17:
		plans, err := c.Snapshot(ctx, []string{lease}, r.IntN(4) == 0)
		if err != nil {
			return "plan", err
		}
		var moves []Move
		for _, p := range plans {
			for n := range p.Owners {
				if len(p.Members) > 0 && r.IntN(2) == 0 {
					moves = append(moves, Move{p.Name, n, p.Members[r.IntN(len(p.Members))].Session})
				}
			}
		}
		applied, err := c.Apply(ctx, plans, moves, onlyLeftOver)
		return fmt.Sprint("apply ", applied.Applied), err
	case n < 18: // its heartbeats are lost
		return "expire", c.pg().Exec(ctx, `
			UPDATE pgleases.clients SET expires_at = '-infinity' WHERE session = $1`, c.session)
	case n < 19:
		beat, err := c.Heartbeat(ctx, c.session, 0, Renewal{})
		if err == nil {
			_, err = c.Evict(ctx, beat.Clock, time.Hour, usualTTL, beat.Server)
		}
		return "evict", err
	}
	return "heartbeat", c.renewed(ctx)
}

// renewed registers again if the session is gone, under a new number, as clients do.
func (c *client) renewed(ctx context.Context) error {
	beat, err := c.Heartbeat(ctx, c.session, 0, Renewal{})
	if err == nil && !beat.Alive {
		c.session = random()
		if err = c.pg().Exec(ctx, fmt.Sprintf("SET application_name = '%d'", c.session)); err == nil {
			_, _, err = c.Register(ctx, registration(c.session, c.id, 0, c.session, 6*time.Second))
		}
	}
	return err
}
