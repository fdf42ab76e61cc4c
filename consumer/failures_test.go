package consumer_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/consumer"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/schedule"
)

// poisoned is effect, except for one row.
func poisoned(
	id int64, poison func(ctx context.Context, tx pgx.Tx, row consumer.Row[Order]) error,
) consumer.Handler[Order] {
	return consumer.Each(func(ctx context.Context, tx pgx.Tx, row consumer.Row[Order]) error {
		if err := effect(ctx, tx, row); err != nil || row.ID != id {
			return err
		}
		return poison(ctx, tx, row)
	})
}

// noSuchOrder fails a row after its effect.
func noSuchOrder(context.Context, pgx.Tx, consumer.Row[Order]) error {
	return errors.New("no such order")
}

// isSeen is whether a sweep has seen the version of the blocked row.
const isSeen = `SELECT b.version = o.xmin::text
	FROM pgleases.consumer_blocked AS b JOIN public.outbox AS o USING (id)`

// After its last attempt a row moves to the dead letters, and its key goes on.
func TestDeadLetter(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.insert(200, 10)
	w := newWorker(db, poisoned(50, noSuchOrder),
		consumer.WithMaxAttempts(3, consumer.Backoff(time.Millisecond, time.Millisecond)),
		consumer.WithOnFailure(consumer.OnFailureDeadLetter)).run()
	db.empty("all is handled or dead")
	testkit.OK(t, w.end())
	db.exact(199)
	letter := one[string](db, `
		SELECT format('%s %s %s %s %s', id, key, content->>'payload', attempts, error) FROM pgleases.consumer_dead_letters`)
	expect(t, letter, "50 c0 50 3 no such order", "the dead letter")
	expect(t, db.count("pgleases.consumer_blocked"), 0, "blocked rows")
	expect(t, w.Stats().DeadLetters, 1, "dead letters in Stats")
	expect(t, w.Stats().Failures, 3, "failures in Stats")
}

// A row that has failed for good is handled again when the application has changed it, and no
// longer blocks its key when the application has deleted it.
func TestChangeOfABlockedRowFreesItsKey(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.insert(100, 5)
	w := newWorker(db, consumer.Each(func(ctx context.Context, tx pgx.Tx, row consumer.Row[Order]) error {
		if string(row.Value.Payload) == "20" || string(row.Value.Payload) == "21" {
			return errors.New("no such order")
		}
		return effect(ctx, tx, row)
	}), attempts(1))
	w.SweepEvery(50 * time.Millisecond)
	w.run()
	db.becomes("two rows block their keys", 2, "pgleases.consumer_blocked WHERE next_at = 'infinity'")
	testkit.Becomes(t, db.Pool, "the other keys are empty", 2, "SELECT count(DISTINCT customer) FROM public.outbox")
	db.exec("UPDATE public.outbox SET payload = '0' WHERE id = 20; DELETE FROM public.outbox WHERE id = 21")
	db.empty("all is handled")
	testkit.OK(t, w.end())
	db.exact(99)
	expect(t, db.count("pgleases.consumer_blocked"), 0, "blocked rows")
}

// A newer version may have written what it knows of a failed row in another way. The row keeps
// blocking its key, and others are handled.
func TestContentOfAnotherVersionStopsNoOtherRow(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.insert(100, 5)
	w := newWorker(db, poisoned(20, noSuchOrder),
		consumer.WithMaxAttempts(1, consumer.Backoff(time.Millisecond, time.Millisecond)))
	w.SweepEvery(50 * time.Millisecond)
	contains(t, w.RunUntilEmpty(t.Context()), "only rows of blocked keys are left")
	db.exec("UPDATE pgleases.consumer_blocked SET content = 'v2:abc', version = '1'")
	w.run()
	testkit.Becomes(t, db.Pool, "a sweep has seen it", true, isSeen)
	db.put(db.customers(0, 1)...)
	db.becomes("another row is handled", 0, "public.outbox WHERE customer LIKE 'a%'")
	expect(t, one[int](db, "SELECT attempts FROM pgleases.consumer_blocked"), 1, "attempts of the blocked row")
	testkit.OK(t, w.end())
}

// A restore, or a rewrite of the table, changes the xmin of each row and not what is in it. Rows
// that have failed for good are not handled again because of that.
func TestRewriteOfTheTableRetriesNoBlockedRow(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	for name, rewrite := range map[string]string{
		"restore": `CREATE TABLE public.copy AS TABLE public.outbox; DELETE FROM public.outbox;
			INSERT INTO public.outbox (id, uid, customer, created_at, payload) OVERRIDING SYSTEM VALUE SELECT id, uid, customer, created_at, payload FROM public.copy`,
		"new column": "ALTER TABLE public.outbox ADD COLUMN further uuid NOT NULL DEFAULT gen_random_uuid()",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			db.insert(100, 5)
			var calls atomic.Int64
			w := newWorker(db, poisoned(20, func(context.Context, pgx.Tx, consumer.Row[Order]) error {
				calls.Add(1)
				return errors.New("no such order")
			}), consumer.WithMaxAttempts(2, consumer.Backoff(time.Millisecond, time.Millisecond)))
			w.SweepEvery(50 * time.Millisecond)
			contains(t, w.RunUntilEmpty(t.Context()), "only rows of blocked keys are left")
			before := calls.Load()
			db.exec(rewrite)
			w.run()
			testkit.Becomes(t, db.Pool, "the rewrite is seen", true, isSeen)
			db.put(db.customers(0, 1)...)
			db.becomes("another row is handled", 0, "public.outbox WHERE customer LIKE 'a%'")
			expect(t, calls.Load(), before, "calls for the blocked row")
			attempts := one[int](db, "SELECT attempts FROM pgleases.consumer_blocked WHERE next_at = 'infinity'")
			expect(t, attempts, 2, "its attempts")
			db.exec("UPDATE public.outbox SET payload = '0' WHERE id = 20")
			testkit.Until(t, "a change lets it be handled again", func() bool { return calls.Load() > before })
			testkit.OK(t, w.end())
		})
	}
}

// After the number of partitions was made smaller, lines of partitions that are gone block nothing.
func TestBlockedRowsOfPartitionsThatAreGone(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.insert(20, 5)
	db.exec(`
		INSERT INTO pgleases.consumer_blocked (consumer, partition, id, key, version, attempts, next_at)
		SELECT 'orders', 100 + id, id, customer, xmin::text, 15, 'infinity' FROM public.outbox`)
	w := newWorker(db, consumer.Each(effect))
	testkit.OK(t, w.RunUntilEmpty(t.Context()))
	expect(t, db.count("pgleases.consumer_blocked"), 0, "lines that are left")
	db.exact(20)
}

// Whatever a handler does for one row is a failure of that row, with an error that says what it
// was.
func TestFailuresOfHandlers(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	type order = consumer.Row[Order]
	type poison = func(ctx context.Context, tx pgx.Tx, row order) error
	runs := func(statements string) poison {
		return func(ctx context.Context, tx pgx.Tx, _ order) error { return second(tx.Exec(ctx, statements)) }
	}
	for name, test := range map[string]struct {
		poison poison
		says   string
	}{
		"nil pointer":     {func(context.Context, pgx.Tx, order) error { return (*broken)(nil) }, "panic"},
		"statement":       {runs("SELECT 1/0"), "division by zero"},
		"timeout in SQL":  {runs("SELECT pg_sleep(600)"), "longer than its timeout"},
		"statement limit": {runs("SET LOCAL statement_timeout = 1; SELECT pg_sleep(600)"), "statement timeout"},
		"panic": {func(context.Context, pgx.Tx, order) error {
			panic("at the disco")
		}, "panic: at the disco"},
		"Goexit": {func(context.Context, pgx.Tx, order) error {
			runtime.Goexit()
			return nil
		}, "runtime.Goexit"},
		"ignored error": {func(ctx context.Context, tx pgx.Tx, _ order) error {
			_, _ = tx.Exec(ctx, "SELECT 1/0")
			return nil
		}, "after a failed statement"},
		"rows left open": {func(ctx context.Context, tx pgx.Tx, _ order) error {
			_, _ = tx.Query(ctx, "SELECT 1")
			return nil
		}, "were open"},
		"commit": {func(ctx context.Context, tx pgx.Tx, _ order) error {
			return tx.Commit(ctx)
		}, "must not end its transaction"},
		"timeout": {func(ctx context.Context, _ pgx.Tx, _ order) error {
			<-ctx.Done()
			return context.Cause(ctx)
		}, "longer than its timeout"},
		"own context": {func(ctx context.Context, tx pgx.Tx, _ order) error {
			ctx, cancel := context.WithTimeout(ctx, time.Millisecond)
			defer cancel()
			return second(tx.Exec(ctx, "SELECT pg_sleep(600)"))
		}, "deadline"},
		"deletes its row": {func(ctx context.Context, tx pgx.Tx, r order) error {
			return second(tx.Exec(ctx, "DELETE FROM public.outbox WHERE id = $1", r.ID))
		}, "of 1 handled rows 0 were deleted"},
		"deferred foreign": {runs("INSERT INTO public.child VALUES (7)"), "foreign key"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			db.exec(`
				CREATE TABLE public.parent (id int PRIMARY KEY);
				CREATE TABLE public.child (parent int REFERENCES public.parent DEFERRABLE INITIALLY DEFERRED);
				GRANT ALL ON public.parent, public.child TO PUBLIC`)
			db.insert(60, 20)
			opts := []consumer.Option{attempts(1)}
			if name == "timeout" || name == "timeout in SQL" {
				opts = append(opts, consumer.WithTimeout(3*time.Second))
			}
			w := newWorker(db, poisoned(30, test.poison), opts...).run()
			testkit.Becomes(t, db.Pool, "one row is left, and those of its key", "30,50", leftSQL)
			testkit.Becomes(t, db.Pool, "it blocks its key", "30 1", `
				SELECT coalesce(min(format('%s %s', id, attempts)), '')
				FROM pgleases.consumer_blocked WHERE next_at = 'infinity'`)
			contains(t, db.failure("true"), test.says)
			testkit.OK(t, w.end())
			db.exact(58)
		})
	}
}

type broken struct{ text string }

func (b *broken) Error() string { return b.text }

// If a handler commits with a statement, what it wrote may be committed, for the rows before as
// well. None of these rows is handled again.
func TestCommitInAHandlerBlocksWhatMayBeCommitted(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		statements string
		then       error
	}{
		"commit":              {"COMMIT", nil},
		"commit and begin":    {"COMMIT; BEGIN", nil},
		"commit and an error": {"COMMIT", errors.New("no paper")},
		"commit and a snooze": {"COMMIT", consumer.Snooze(time.Millisecond)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			db.insert(60, 20)
			w := newWorker(db, poisoned(30, func(ctx context.Context, tx pgx.Tx, _ consumer.Row[Order]) error {
				_, err := tx.Exec(ctx, test.statements, pgx.QueryExecModeSimpleProtocol)
				return cmp.Or(err, test.then)
			})).run()
			testkit.Becomes(t, db.Pool, "the row is blocked for good, or gone", true, `
				SELECT NOT EXISTS (SELECT FROM public.outbox WHERE id = 30)
				OR EXISTS (SELECT FROM pgleases.consumer_blocked WHERE id = 30 AND next_at = 'infinity')`)
			db.becomes("the rest is handled", 0, `
				public.outbox WHERE customer NOT IN (SELECT key FROM pgleases.consumer_blocked)`)
			testkit.OK(t, w.end())
			twice := one[int64](db, "SELECT count(*) - count(DISTINCT id) FROM public.effects")
			expect(t, twice, 0, "effects that exist twice")
			db.ordered()
			why := one[string](db, "SELECT coalesce(min(error), '') FROM pgleases.consumer_blocked WHERE id = 30")
			contains(t, errors.New(why), "what it wrote may be committed")
		})
	}
}

// A transaction that is idle for longer than WithIdleTimeout is the handler's fault; a shorter
// wait, longer than the trust that is left, is not.
func TestIdleHandlers(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	db.insert(40, 10)
	var calls atomic.Int64
	poison := func(ctx context.Context, tx pgx.Tx, _ consumer.Row[Order]) error {
		if calls.Add(1) > 2 { // it is called in a batch, and alone, because rows of its key come before it
			return nil
		}
		var pid int // the next row finds the connection lost
		if err := tx.QueryRow(ctx, "SELECT pg_backend_pid()").Scan(&pid); err != nil {
			return err
		}
		testkit.Until(t, "the server has ended the transaction", func() bool {
			return db.count("pg_stat_activity WHERE pid = $1", pid) == 0
		})
		return nil
	}
	w := newWorker(db, poisoned(15, poison), consumer.WithIdleTimeout(2*time.Second),
		backoff(time.Millisecond, time.Millisecond), consumer.WithMaxRunning(1)).run()
	db.empty("all is handled")
	testkit.OK(t, w.end())
	db.exact(40)
	expect(t, w.Stats().Failures, 1, "failures")
	expect(t, w.Stats().BrokenOff, 0, "batches that were broken off")
	expect(t, one[int](db, "SELECT attempt FROM public.effects WHERE id = 15"), 2, "attempts at the row")
}

// A connection that is lost is not the fault of a row whose call took longer than WithIdleTimeout,
// if its transaction was not idle for so long: neither during the call nor in the commit after it.
// The reason of the loss is named.
func TestLostConnectionAfterLongCall(t *testing.T) {
	t.Parallel()
	for lost, reason := range map[string]string{
		"in the call": "57P01", "in the call, ignored": "ignored the error", "in the commit": "57P01",
	} {
		t.Run(lost, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			db.exec(`
				CREATE FUNCTION public.lose() RETURNS trigger LANGUAGE plpgsql
					AS 'BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END';
				CREATE TABLE public.losing (id bigint);
				GRANT ALL ON public.losing TO PUBLIC;
				CREATE CONSTRAINT TRIGGER losing AFTER INSERT ON public.losing DEFERRABLE INITIALLY DEFERRED
					FOR EACH ROW EXECUTE FUNCTION public.lose()`)
			db.insert(4, 4)
			var calls atomic.Int64
			log := make(lines, 1000)
			poison := func(ctx context.Context, tx pgx.Tx, _ consumer.Row[Order]) error {
				if calls.Add(1) > 1 {
					return nil
				}
				// The transaction is not idle in this statement.
				_, err := tx.Exec(ctx, "SELECT pg_sleep(4.1)")
				if err != nil {
					return err
				}
				if lost == "in the commit" {
					_, err = tx.Exec(ctx, "INSERT INTO public.losing VALUES (1)")
					return err
				}
				_, err = tx.Exec(ctx, "SELECT pg_terminate_backend(pg_backend_pid())")
				if lost == "in the call, ignored" {
					return nil
				}
				return err
			}
			w := newWorker(db, poisoned(2, poison), consumer.WithIdleTimeout(4*time.Second),
				consumer.WithMaxRunning(1), consumer.WithLogger(slog.New(slog.NewTextHandler(log, nil)))).run()
			db.empty("all is handled")
			testkit.OK(t, w.end())
			db.exact(4)
			expect(t, w.Stats().Failures, 0, "failures")
			expect(t, w.Stats().BrokenOff, 1, "batches that were broken off")
			expect(t, one[int](db, "SELECT attempt FROM public.effects WHERE id = 2"), 1, "attempts at the row")
			line := ""
			for !strings.Contains(line, "broken off") {
				line = testkit.Receive(t, "it is logged", log)
			}
			contains(t, errors.New(line), reason)
		})
	}
}

// If the answer to the commit of a batch is lost, the log says that it may be committed, and not that it
// is repeated. If a statement before the commit is lost, it says that it is repeated.
func TestLostAnswerOfCommitIsLogged(t *testing.T) {
	t.Parallel()
	handlers := map[string]func(*database) consumer.Handler[Order]{
		"Each":        func(*database) consumer.Handler[Order] { return consumer.Each(effect) },
		"AtLeastOnce": func(db *database) consumer.Handler[Order] { return consumer.AtLeastOnce(db.published) },
	}
	lines := map[string]string{"DELETE FROM public.outbox": "perhaps committed", "guard_many": "broken off, repeated"}
	for name, handler := range handlers {
		for text, line := range lines {
			t.Run(name+" "+line, func(t *testing.T) {
				t.Parallel()
				db := newDatabase(t)
				var log bytes.Buffer
				w := newWorker(db, handler(db), consumer.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
				w.run()
				db.allBegun()
				w.wire.Lose(1, text, true)
				db.insert(8, 8)
				db.empty("all is handled")
				testkit.OK(t, w.end())
				expect(t, w.wire.Left(), 0, "messages to be lost")
				if !strings.Contains(log.String(), line) || strings.Count(log.String(), "batch broken off") != 1 {
					t.Errorf("want one line with %q in\n%s", line, &log)
				}
				db.exact(8)
			})
		}
	}
}

// Errors in letters that the encoding of the database lacks are stored in ASCII.
func TestErrorsInLettersThatTheDatabaseDoesNotHave(t *testing.T) {
	t.Parallel()
	db := databaseAt(t, testkit.EncodedDatabase(t, "LATIN1"))
	testkit.OK(t, consumer.Migrate(t.Context(), db.Pool))
	db.exec(consumer.TableSQL("orders", "", outbox) + ";" + testTables)
	db.insert(2, 2)
	w := newWorker(db, consumer.Each(func(_ context.Context, _ pgx.Tx, row consumer.Row[Order]) error {
		failure := errors.New("нет бумаги")
		if row.ID == 2 {
			return consumer.Discard(failure)
		}
		return failure
	}), consumer.WithOnFailure(consumer.OnFailureDeadLetter)).run()
	const quoted = `"\u043d\u0435\u0442 \u0431\u0443\u043c\u0430\u0433\u0438"`
	db.becomes("one row blocks its key", 1, "pgleases.consumer_blocked WHERE error = $1", quoted)
	db.becomes("one is a dead letter", 1, "pgleases.consumer_dead_letters WHERE error = $1", quoted)
	testkit.OK(t, w.end())
}

// While something that handlers need is away, rows fail without end, and no key uses up its
// attempts.
func TestOutageUsesUpNoAttempts(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	refused := errors.New("connection refused")
	for name, failure := range map[string]error{"errors": refused, "Unavailable": consumer.Unavailable(refused)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			db.insert(2000, 500)
			var away atomic.Bool
			var calls atomic.Int64
			away.Store(true)
			w := newWorker(db, consumer.Each(func(ctx context.Context, tx pgx.Tx, row consumer.Row[Order]) error {
				if calls.Add(1); away.Load() {
					return failure
				}
				return effect(ctx, tx, row)
			}), consumer.WithMaxAttempts(4, consumer.Backoff(time.Millisecond, time.Millisecond)))
			w.PauseAtMost(200 * time.Millisecond)
			w.run()
			testkit.Until(t, "each partition has failed some times", func() bool { return calls.Load() > 5*partitions })
			if name == "Unavailable" {
				expect(t, db.count("pgleases.consumer_blocked"), 0, "blocked rows")
			}
			if n := db.count("pgleases.consumer_blocked"); n > 2*partitions {
				t.Errorf("%d keys are blocked, at most two of each partition", n)
			}
			if n := one[int](db, "SELECT coalesce(max(attempts), 0) FROM pgleases.consumer_blocked"); n > 2 {
				t.Errorf("a row is charged with %d attempts", n)
			}
			away.Store(false)
			db.empty("all is handled")
			testkit.OK(t, w.end())
			db.exact(2000)
		})
	}
}

// Rows that fail only together are handled one by one.
func TestRowsThatFailTogether(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.exec("INSERT INTO public.outbox (customer, payload) SELECT 'c', to_jsonb(i) FROM generate_series(1, 50) AS i")
	var met atomic.Bool
	w := newWorker(db, consumer.InTx(func(ctx context.Context, tx pgx.Tx, rows []consumer.Row[Order]) error {
		together := 0
		for _, row := range rows {
			if row.ID == 4 || row.ID == 5 {
				together++
			}
		}
		if together == 2 {
			met.Store(true)
			return errors.New("they do not like each other")
		}
		return effects(ctx, tx, rows)
	})).run()
	db.empty("all is handled")
	testkit.OK(t, w.end())
	db.exact(50)
	expect(t, met.Load(), true, "they were in one batch")
	expect(t, w.Stats().Failures, 0, "failures")
}

// With Failed the rows before are committed, without further attempts to find the row.
func TestFailed(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"InTx", "AtLeastOnce"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			db.insert(50, 50)
			var calls atomic.Int64
			do := func(rows []consumer.Row[Order], effects func([]consumer.Row[Order]) error) error {
				calls.Add(1)
				for i, row := range rows {
					if row.ID == 25 && row.Attempt == 1 {
						failed := fmt.Errorf("publish: %w", consumer.RowError(i, errors.New("refused")))
						return errors.Join(effects(rows[:i]), failed)
					}
				}
				return effects(rows)
			}
			h := consumer.InTx(func(ctx context.Context, tx pgx.Tx, rows []consumer.Row[Order]) error {
				return do(rows, func(rows []consumer.Row[Order]) error { return effects(ctx, tx, rows) })
			})
			if kind == "AtLeastOnce" {
				h = consumer.AtLeastOnce(func(ctx context.Context, rows []consumer.Row[Order]) error {
					return do(rows, func(rows []consumer.Row[Order]) error { return db.published(ctx, rows) })
				})
			}
			w := newWorker(db, h, backoff(time.Millisecond, time.Millisecond), consumer.WithMaxRunning(1)).run()
			db.empty("all is handled")
			testkit.OK(t, w.end())
			db.exact(50)
			expect(t, w.Stats().Failures, 1, "failures")
		})
	}
}

// A row that cannot be read into the handler's struct is a failing row like another.
func TestUnreadableRow(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.exec("ALTER TABLE public.outbox ALTER payload DROP NOT NULL, ADD amount int")
	db.insert(60, 20)
	db.exec("UPDATE public.outbox SET amount = id WHERE id <> 30")
	type amount struct{ Amount int }
	w := newWorkerOf(db, outbox, consumer.InTx(func(ctx context.Context, tx pgx.Tx, rows []consumer.Row[amount]) error {
		for _, row := range rows {
			const insert = "INSERT INTO public.effects (id, customer) VALUES ($1, $2)"
			if _, err := tx.Exec(ctx, insert, row.Value.Amount, row.Key); err != nil {
				return err
			}
		}
		return nil
	}), attempts(1)).run()
	testkit.Becomes(t, db.Pool, "one row is left, and those of its key", "30,50", leftSQL)
	testkit.Becomes(t, db.Pool, "it blocks its key", 30, "SELECT coalesce(min(id), 0) FROM pgleases.consumer_blocked")
	contains(t, db.failure("true"), "NULL")
	testkit.OK(t, w.end())
	db.exact(58)
}

// Whatever the function of WithAround does, the handler is called once at most, what it returned
// counts, and nothing of it runs beside what follows.
func TestAroundCallsTheHandlerOnce(t *testing.T) {
	t.Parallel()
	type next = func(context.Context) error
	for name, c := range map[string]struct {
		around func(context.Context, next) error
		calls  int64
		says   string // empty: the row is handled
	}{
		"passes on":     {func(ctx context.Context, n next) error { return n(ctx) }, 1, ""},
		"ignores it":    {func(ctx context.Context, n next) error { _ = n(ctx); return nil }, 1, ""},
		"panics":        {func(ctx context.Context, n next) error { _ = n(ctx); panic("on fire") }, 1, "on fire"},
		"does not call": {func(context.Context, next) error { return nil }, 0, "before it had called the handler"},
		"calls twice": {func(ctx context.Context, n next) error {
			return errors.Join(n(ctx), n(ctx))
		}, 1, "call next once"},
		"fails after": {func(ctx context.Context, n next) error {
			_ = n(ctx)
			return errors.New("no trace")
		}, 1, "no trace"},
		"ends": {func(ctx context.Context, n next) error {
			runtime.Goexit()
			return n(ctx)
		}, 0, "runtime.Goexit"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			db.insert(1, 1)
			var calls atomic.Int64
			around := func(ctx context.Context, _ consumer.Info, n next) error { return c.around(ctx, n) }
			w := newWorker(db, consumer.Each(func(ctx context.Context, tx pgx.Tx, row consumer.Row[Order]) error {
				calls.Add(1)
				return effect(ctx, tx, row)
			}), attempts(1), consumer.WithAround(around))
			err := w.RunUntilEmpty(t.Context())
			if c.says == "" {
				testkit.OK(t, err)
			} else {
				contains(t, err, "only rows of blocked keys are left: 1 row", c.says)
			}
			expect(t, calls.Load(), c.calls, "calls of the handler")
		})
	}
}

// The function around a handler is told which rows it surrounds, in the same words as that of
// package schedule.
func TestAroundIsToldWhatItSurrounds(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.insert(3, 1)
	var first consumer.Row[Order]
	var infos []consumer.Info
	w := newWorker(db, consumer.InTx(func(_ context.Context, _ pgx.Tx, rows []consumer.Row[Order]) error {
		first = rows[0]
		return nil
	}), consumer.WithAround(func(ctx context.Context, info consumer.Info, next func(context.Context) error) error {
		infos = append(infos, info)
		return next(ctx)
	}))
	testkit.OK(t, w.RunUntilEmpty(t.Context()))
	want := schedule.Info{
		Lease: "consumer/orders", Kind: "orders", Trigger: "row", ID: first.ID, Key: first.Key, Rows: 3,
		Partition: first.Partition, Epoch: first.Epoch, Attempt: 1,
	}
	if len(infos) != 1 || schedule.Info(infos[0]) != want || first.ID == 0 || first.Key == "" || first.Epoch == 0 {
		t.Errorf("the calls are about %+v, not %+v", infos, want)
	}
}

// An error of the handler counts even if the function around it returns nil.
func TestAroundCannotHideAFailure(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.insert(2, 2)
	hides := func(ctx context.Context, _ consumer.Info, next func(context.Context) error) error {
		_ = next(ctx)
		return nil
	}
	w := newWorker(db, failing(1, 2), attempts(1), consumer.WithAround(hides))
	contains(t, w.RunUntilEmpty(t.Context()), "only rows of blocked keys are left: 2 rows", "no such order")
}

// The function around a handler may call it in a goroutine, and not wait for it. Its transaction
// lives until it has returned, and it keeps its timeout.
func TestAroundWaitsForTheHandler(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.insert(1, 1)
	entered, ended := make(chan struct{}), make(chan error, 1)
	w := newWorker(db, consumer.Each(func(ctx context.Context, _ pgx.Tx, _ consumer.Row[Order]) error {
		close(entered)
		<-ctx.Done()
		ended <- context.Cause(ctx)
		return nil
	}), attempts(1), consumer.WithTimeout(200*time.Millisecond),
		consumer.WithAround(func(ctx context.Context, _ consumer.Info, next func(context.Context) error) error {
			go func() { _ = next(ctx) }()
			<-entered
			return nil
		}))
	err := w.RunUntilEmpty(t.Context())
	contains(t, err, "only rows of blocked keys are left: 1 row", "longer than its timeout", "wait for it")
	if why := testkit.Receive(t, "the handler has returned", ended); why != consumer.ErrTimeout {
		t.Errorf("its context has ended with %v", why)
	}
}

// block makes rows seem to have failed once, long ago.
func (db *database) block(where string) {
	db.t.Helper()
	db.exec(`
		INSERT INTO pgleases.consumer_blocked (consumer, partition, id, key, version, attempts, next_at)
		SELECT 'orders', partition, id, customer, xmin::text, 1, '2020-01-01'::timestamptz + id * interval '1 s'
		FROM public.outbox WHERE ` + where)
}

// Blocked rows of a partition that is paused do not keep those of others from their next attempt,
// nor does a row that pauses its partition keep the rows after it.
func TestPausedRowsDelayNoOthers(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.put(db.alike(200)...)
	db.put(db.customers(4, 1)...)
	db.block("true")
	last := one[int64](db, "SELECT max(id) FROM public.outbox WHERE partition = 3")
	w := newWorker(db, consumer.Each(func(ctx context.Context, tx pgx.Tx, row consumer.Row[Order]) error {
		if row.Partition == 3 && row.ID < last {
			return consumer.Unavailable(errors.New("closed"))
		}
		return effect(ctx, tx, row)
	}), consumer.WithPoll(10*time.Millisecond))
	w.PauseAtMost(200 * time.Millisecond)
	w.run()
	db.becomes("the row of another partition is handled", 1, "public.effects WHERE id > $1", last)
	db.exec("DELETE FROM public.outbox WHERE partition = 3 AND id NOT BETWEEN $1 - 2 AND $1", last)
	db.exec("DELETE FROM pgleases.consumer_blocked WHERE id NOT BETWEEN $1 - 2 AND $1", last)
	db.becomes("the row behind others is handled", 1, "public.effects WHERE id = $1", last)
	testkit.OK(t, w.end())
}
