package consumer_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/consumer"
	"github.com/pgleases/pgleases/internal/testkit"
)

// What a poll reads to find blocked rows that are due does not grow with those that are not, nor much
// with those that are, although its plan was made while no row was blocked.
func TestPollReadsFewBlockedRows(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDirectDatabase(t) // see BlocksRead
	w := newWorker(db, consumer.Each(effect))
	db.exec("ALTER TABLE pgleases.consumer_blocked SET (autovacuum_enabled = false)") // which would make the plan anew
	tx := testkit.Must(db.Begin(t.Context()))(t)
	const due = "EXECUTE due ('orders', '{0,1,2,3,4,5,6,7}')"
	for _, statement := range []string{w.OursSQL(), "PREPARE due (text, int[]) AS " + w.DueSQL(), due} {
		testkit.Must(tx.Exec(t.Context(), statement))(t)
	}
	expectFew := func(what string, most int) {
		t.Helper()
		n := testkit.BlocksRead(t, tx, due)
		t.Logf("%s: %d blocks", what, n)
		if n > most {
			t.Errorf("%s: %d blocks are read, want at most %d", what, n, most)
		}
	}
	db.insert(20_000, 20_000)
	db.exec(`INSERT INTO pgleases.consumer_blocked (consumer, partition, id, key, version, attempts, next_at)
		SELECT 'orders', partition, id, customer, xmin::text, 1, 'infinity' FROM public.outbox`)
	expectFew("none is due", 20)
	db.exec("UPDATE pgleases.consumer_blocked SET next_at = '2020-01-01', asked = id = 70 WHERE id <= 80")
	expectFew("80 are due", 1500)
	db.exec("UPDATE pgleases.consumer_blocked SET next_at = '2020-01-01' WHERE id > 80")
	expectFew("all are due", 2000)
	db.exec("ANALYZE pgleases.consumer_blocked")
	expectFew("all are due, by a plan for them", 2000)
	testkit.OK(t, tx.Rollback(t.Context()))
}

// A key that is too long for an index is blocked as any other, and its next row waits.
func TestLongKeyIsBlocked(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	long := one[string](db, "SELECT string_agg(md5(i::text), '') FROM generate_series(1, 200) AS i") // 6,400 bytes
	db.put(long, "other", long)
	w := newWorker(db, consumer.Each(func(ctx context.Context, tx pgx.Tx, row consumer.Row[Order]) error {
		if row.Key == long {
			return errors.New("it fails")
		}
		return effect(ctx, tx, row)
	}), attempts(1))
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	contains(t, w.RunUntilEmpty(ctx), "only rows of blocked keys are left")
	expect(t, db.count("pgleases.consumer_blocked WHERE id = 1 AND attempts = 1"), 1, "rows that block it")
	expect(t, db.count("public.effects"), 1, "rows of the other key handled")
}

// What a poll reads to find rows whose keys are not blocked does not grow with those that are, nor
// with the rows behind them, and all rows are found: those that come, and those that committed
// late.
func TestPollReadsFewRowsBehindBlockedKeys(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDirectDatabase(t) // see BlocksRead
	w := newWorker(db, consumer.Each(effect))
	db.exec("ALTER TABLE pgleases.consumer_blocked SET (autovacuum_enabled = false)") // which would make the plan anew
	db.insert(20_000, 20_000)
	db.exec(`INSERT INTO pgleases.consumer_blocked (consumer, partition, id, key, version, attempts, next_at)
		SELECT 'orders', partition, id, customer, xmin::text, 1, 'infinity' FROM public.outbox`)
	db.exec("INSERT INTO public.outbox (customer, payload) SELECT customer, payload FROM public.outbox") // behind them
	s := db.searches(w, math.MaxInt32)
	expectFew := func(what string, most, found int) {
		t.Helper()
		blocks, n := s.poll()
		t.Logf("%s: %d blocks", what, blocks)
		if blocks > most {
			t.Errorf("%s: %d blocks are read, want at most %d", what, blocks, most)
		}
		expect(t, n, found, what+": partitions with rows")
	}
	first, _ := s.poll()
	t.Logf("the first poll: %d blocks", first)
	s.poll()
	expectFew("no new row", 100, 0)
	db.exec("INSERT INTO public.outbox (customer, payload) SELECT customer, payload FROM public.outbox WHERE id <= 80")
	expectFew("80 rows behind blocked keys", 1000, 0)
	late := db.late()
	db.exec("INSERT INTO public.outbox (customer, payload) SELECT customer, payload FROM public.outbox WHERE id <= 80")
	s.open = s.next
	for range 5 {
		expectFew("a transaction is open", 2000, 0)
	}
	s.polls.Sweep(3)
	expectFew("one partition is swept meanwhile", 2000, 0)
	expectFew("it was swept", first/partitions+first/10, 0)
	expectFew("that is over", 2000, 0)
	testkit.OK(t, late.Commit(t.Context()))
	s.open = 0
	expectFew("its row has a lower ID than rows before", 2000, 1)
	expectFew("it is not handled yet", 2000, 1)
	db.exec("DELETE FROM public.outbox WHERE customer = 'late'")
	s.poll()
	s.poll()
	expectFew("no new row again", 100, 0)
	s.polls.Sweep(3)
	expectFew("one partition is swept", 100, 0)
	expectFew("it was swept, and it was the only one", first/partitions+first/10, 0)
}

// A row that commits after rows with higher IDs, which are behind a blocked key, is found long
// before the next sweep, and so are the rows behind a key that is no longer blocked.
func TestLateRowBesideABlockedKeyIsFound(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	of := db.alike(2)
	w := newWorker(db, failing(1), attempts(1))
	w.SweepEvery(time.Hour)
	w.run()
	db.put(of[0])
	db.becomes("it blocks its key", 1, "pgleases.consumer_blocked")
	late := testkit.Must(db.Begin(t.Context()))(t)
	defer func() { _ = late.Rollback(context.Background()) }()
	testkit.Must(late.Exec(t.Context(), "INSERT INTO public.outbox (customer, payload) VALUES ($1, '1')", of[1]))(t)
	db.put(of[0], of[0])
	w.polled(5)
	testkit.OK(t, late.Commit(t.Context()))
	db.becomes("the late row is handled", 1, "public.effects")
	w.polled(5)
	db.skip(1)
	db.empty("the rows behind the blocked one are handled")
	testkit.OK(t, w.end())
	db.exact(3)
}

// Each key of the application has a range of IDs of its own, so rows of a key come before those of a
// blocked one. They are found as soon as others, long before the next sweep.
func TestLowerIDsBesideABlockedKeyAreFound(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	of := db.alike(2)
	w := newWorker(db, failing(1), attempts(1), consumer.WithAscendingIDs())
	w.SweepEvery(time.Hour)
	w.run()
	db.put(of[0])
	db.becomes("it blocks its key", 1, "pgleases.consumer_blocked")
	w.polled(5)
	for id := range 3 {
		db.exec(`
			INSERT INTO public.outbox (id, customer, payload) OVERRIDING SYSTEM VALUE
			VALUES ($1, $2, '1')`, id-10, of[1])
		db.becomes("the row is handled", int64(id+1), "public.effects")
		w.polled(5)
	}
}

// Whatever the number of rows behind blocked keys, a poll reads a limited number of them, also when
// a process begins, and a later poll goes on where it stopped. So a row behind all of them is
// found, and so is one that comes meanwhile, at once.
func TestPollReadsLimitedRowsOfABacklog(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	const limit = 400
	most := map[int]int{}
	for _, backlog := range []int{2 * limit, 10 * limit} {
		db := newDirectDatabase(t) // see BlocksRead
		db.exec("ALTER TABLE pgleases.consumer_blocked SET (autovacuum_enabled = false)")
		s := db.searches(newWorker(db, consumer.Each(effect)), limit)
		db.insert(backlog, backlog/4)
		db.exec(`INSERT INTO pgleases.consumer_blocked (consumer, partition, id, key, version, attempts, next_at)
			SELECT 'orders', partition, id, customer, xmin::text, 1, 'infinity' FROM public.outbox AS o
			WHERE id = (SELECT min(id) FROM public.outbox AS e WHERE e.customer = o.customer)`)
		polls := func(what string, within, found int) {
			t.Helper()
			for range within {
				blocks, n := s.poll()
				most[backlog] = max(most[backlog], blocks)
				if n == found {
					return
				}
			}
			t.Errorf("%d rows, %s: not within %d polls", backlog, what, within)
		}
		db.exec("INSERT INTO public.outbox (customer, payload) VALUES ('free', '1')")
		polls("a row behind all of them", 3*backlog/limit+4, 1)
		db.exec("DELETE FROM public.outbox WHERE customer = 'free'")
		s.poll()
		for range 3 {
			db.exec("INSERT INTO public.outbox (customer, payload) VALUES ('new', '1')")
			polls("one that comes meanwhile", 1, 1)
			db.exec("DELETE FROM public.outbox WHERE customer = 'new'")
		}
	}
	t.Logf("a poll reads %v blocks", most)
	if few, many := most[2*limit], most[10*limit]; many > 3*few/2 {
		t.Errorf("a poll of 10 times as many rows as the limit reads %d blocks, and one of twice as many %d", many, few)
	}
}

// Polls that look at few rows each find all that can be done, before RunUntilEmpty ends: rows
// behind many blocked keys, and keys that are no longer blocked because their rows are gone.
func TestRunUntilEmptyLooksAtAllRows(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db, consumer.Each(effect))
	w.LookAt(64)
	db.insert(400, 400)
	db.block("id <= 300")
	db.exec("UPDATE pgleases.consumer_blocked SET next_at = 'infinity'")
	db.exec(`
		INSERT INTO public.outbox (customer, payload)
		SELECT customer, payload FROM public.outbox WHERE id BETWEEN 281 AND 300`)
	db.exec("DELETE FROM public.outbox WHERE id BETWEEN 101 AND 300")
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	contains(t, w.RunUntilEmpty(ctx), "only rows of blocked keys are left")
	expect(t, db.count("public.effects"), 120, "rows handled")
	expect(t, db.count("public.outbox"), 100, "rows left")
	expect(t, db.count("pgleases.consumer_blocked"), 100, "rows that block their keys")
}

// searching are the polls of a process that owns all partitions, without the process.
type searching struct {
	db         *database
	of         *worker
	polls      *consumer.Searches
	next, open int64 // the next transaction; the oldest open one; 0: there is none
}

func (db *database) searches(w *worker, limit int) *searching {
	return &searching{db: db, of: w, polls: consumer.NewSearches(partitions, limit), next: 100}
}

// poll sends a poll. It returns how many blocks it reads, and how many partitions have rows.
func (s *searching) poll() (blocks, found int) {
	t := s.db.t
	t.Helper()
	tx := testkit.Must(s.db.Begin(t.Context()))(t)
	defer func() { testkit.OK(t, tx.Rollback(context.Background())) }()
	testkit.Must(tx.Exec(t.Context(), s.of.OursSQL()))(t)
	args := s.polls.Ask("orders")
	blocks = testkit.BlocksRead(t, tx, strings.TrimSpace(s.of.PollSQL()), args...)
	s.next++
	oldest := s.next
	if s.open > 0 {
		oldest = s.open
	}
	rows := testkit.Must(tx.Query(t.Context(), s.of.PollSQL(), args...))(t)
	return blocks, testkit.Must(s.polls.Answer(rows, oldest, s.next))(t)
}
