package consumer_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/consumer"
	"github.com/pgleases/pgleases/internal/testkit"
)

// singly handles one row in a transaction, one transaction after the other.
var singly = []consumer.Option{consumer.WithBatch(1, 1), consumer.WithMaxRunning(1)}

// rowByRow is a worker that handles rows singly, and reads the next row with each commit.
func (db *database) rowByRow(h consumer.Handler[Order], opts ...consumer.Option) *worker {
	db.t.Helper()
	w := newWorker(db, h, slices.Concat(singly, opts)...)
	w.GoOnFor(time.Hour)
	return w
}

// rowByRowOver is rowByRow over a pool that is configured like that.
func (db *database) rowByRowOver(h consumer.Handler[Order], configure func(*pgxpool.Config)) *worker {
	db.t.Helper()
	w := newWorker(db, h).over(configure, h, singly...)
	w.GoOnFor(time.Hour)
	return w
}

// putAlike puts n rows of one key.
func (db *database) putAlike(n int) {
	db.t.Helper()
	db.put(slices.Repeat(db.alike(1), n)...)
}

// atCommit makes each commit with an effect do something, of which NEW is the effect.
func (db *database) atCommit(do string) {
	db.t.Helper()
	db.exec(`
		CREATE FUNCTION public.at_commit() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN ` + do + `; RETURN NULL; END$$;
		CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON public.effects DEFERRABLE INITIALLY DEFERRED
			FOR EACH ROW EXECUTE FUNCTION public.at_commit()`)
}

// inOrder reports whether a message has the texts one after the other.
func inOrder(texts ...string) func(message string) bool {
	return func(message string) bool {
		for _, text := range texts {
			_, after, found := strings.Cut(message, text)
			if !found {
				return false
			}
			message = after
		}
		return true
	}
}

// readsAhead is a message that commits, and reads the next rows.
var readsAhead = inOrder("DELETE FROM public.outbox", "commit", "begin", "guard_many", "pgleases version")

// The next rows of a partition are read in the message of a commit, in a transaction of their own
// with a guard of its own.
func TestCommitReadsTheNextRows(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := db.rowByRow(consumer.Each(effect))
	w.wire.Record()
	db.putAlike(20)
	testkit.OK(t, w.RunUntilEmpty(t.Context()))
	db.exact(20)
	deletes, reads := 0, 0
	for _, sent := range w.wire.Recorded("DELETE FROM public.outbox") {
		for _, message := range sent {
			deletes += strings.Count(message, "DELETE FROM public.outbox")
			if readsAhead(message) {
				reads++
			}
		}
	}
	expect(t, deletes, 20, "rows deleted")
	expect(t, reads, 20, "messages that delete a row and read the next one")
}

// A job goes on with its partition only for a while, if others have rows too.
func TestPartitionsTakeTurnsRowByRow(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	of := append(db.customers(1, 1), db.customers(2, 1)...)
	for range 2 {
		db.put(slices.Repeat(of[:1], 40)...)
		db.put(slices.Repeat(of[1:], 40)...)
	}
	w := db.rowByRow(consumer.Each(effect))
	w.GoOnFor(time.Nanosecond)
	testkit.OK(t, w.RunUntilEmpty(t.Context()))
	db.exact(160)
	turns := db.count(`
		(SELECT customer <> lag(customer) OVER (ORDER BY n) AS turn FROM public.effects) AS e WHERE turn`)
	if turns < 10 {
		t.Errorf("two partitions took %d turns, want several", turns)
	}
}

// A job does not go on if its handler takes longer than it may go on, because others wait for the
// slot.
func TestSlowHandlerReadsNoRowsAhead(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db, consumer.Each(func(ctx context.Context, tx pgx.Tx, row consumer.Row[Order]) error {
		return errors.Join(effect(ctx, tx, row), second(tx.Exec(ctx, "SELECT pg_catalog.pg_sleep(0.01)")))
	}), consumer.WithBatch(1, 1))
	w.wire.Record()
	db.putAlike(10)
	testkit.OK(t, w.RunUntilEmpty(t.Context()))
	db.exact(10)
	for _, sent := range w.wire.Recorded("DELETE FROM public.outbox") {
		if slices.ContainsFunc(sent, readsAhead) {
			t.Error("a commit has read the next row")
		}
	}
}

// A handler that keeps its transaction cannot write to the next one, which has begun in the message
// of its commit.
func TestHandlerCannotUseTheNextTransaction(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	var kept []pgx.Tx
	var others []error
	w := db.rowByRow(consumer.Each(func(ctx context.Context, tx pgx.Tx, row consumer.Row[Order]) error {
		for _, before := range kept {
			_, err := before.Exec(ctx, "INSERT INTO public.effects (id) VALUES (-1)")
			others = append(others, err)
		}
		savepoint, err := tx.Begin(ctx)
		if err != nil {
			return err
		}
		kept = append(kept, tx, savepoint)
		return effect(ctx, tx, row)
	}))
	db.putAlike(10)
	testkit.OK(t, w.RunUntilEmpty(t.Context()))
	db.exact(10)
	for _, err := range others {
		if !errors.Is(err, pgx.ErrTxClosed) {
			t.Errorf("a transaction that was committed returned %v", err)
		}
	}
	expect(t, len(others), 90, "tries to use one")
}

// The next transaction begins with the settings of the session, whatever was set in the one before,
// even by a trigger at its end.
func TestNextTransactionHasNoSettingsOfTheLast(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.exec(`
		CREATE FUNCTION public.sets() RETURNS trigger LANGUAGE plpgsql
			AS 'BEGIN PERFORM pg_catalog.set_config(''transaction_read_only'', ''on'', true); RETURN NULL; END';
		CREATE TRIGGER sets AFTER DELETE ON public.outbox FOR EACH STATEMENT EXECUTE FUNCTION public.sets()`)
	settings := make(map[string]int)
	w := db.rowByRow(consumer.Each(func(ctx context.Context, tx pgx.Tx, row consumer.Row[Order]) error {
		var found string
		err := tx.QueryRow(ctx, `
			SELECT concat_ws(' ', current_setting('transaction_read_only'), current_setting('transaction_isolation'),
				current_setting('work_mem'), current_setting('enable_sort'))`).Scan(&found)
		settings[found]++
		set := func() error {
			return second(tx.Exec(ctx, "SET LOCAL work_mem = '1234kB'; SET LOCAL enable_sort = off"))
		}
		return errors.Join(err, set(), effect(ctx, tx, row))
	}), attempts(1))
	db.putAlike(5)
	testkit.OK(t, w.RunUntilEmpty(t.Context()))
	db.exact(5)
	session := one[string](db, "SHOW work_mem")
	expect(t, settings["off read committed "+session+" on"], 5, "calls with the session's settings")
	expect(t, w.Stats().BrokenOff, 0, "batches broken off")
}

// If the pool has a hook that restores what a handler has changed in the session, the hook runs
// before the next transaction.
func TestHooksOfThePoolSeeEachTransaction(t *testing.T) {
	t.Parallel()
	for name, hook := range map[string]func(*pgxpool.Config, func(*pgx.Conn) bool){
		"AfterRelease": func(c *pgxpool.Config, reset func(*pgx.Conn) bool) { c.AfterRelease = reset },
		"BeforeAcquire": func(c *pgxpool.Config, reset func(*pgx.Conn) bool) {
			//lint:ignore SA1019 an application may still use it
			c.BeforeAcquire = func(_ context.Context, conn *pgx.Conn) bool { return reset(conn) }
		},
		"PrepareConn": func(c *pgxpool.Config, reset func(*pgx.Conn) bool) {
			c.PrepareConn = func(_ context.Context, conn *pgx.Conn) (bool, error) { return reset(conn), nil }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDirectDatabase(t) // a pooler would give each transaction another session
			var found []string
			h := consumer.Each(func(ctx context.Context, tx pgx.Tx, row consumer.Row[Order]) error {
				var tenant string
				err := tx.QueryRow(ctx, "SELECT coalesce(current_setting('app.tenant', true), '')").Scan(&tenant)
				found = append(found, tenant)
				return errors.Join(err, second(tx.Exec(ctx, "SET app.tenant = 'acme'")), effect(ctx, tx, row))
			})
			w := db.rowByRowOver(h, func(c *pgxpool.Config) {
				hook(c, func(conn *pgx.Conn) bool { return second(conn.Exec(t.Context(), "RESET app.tenant")) == nil })
			})
			db.putAlike(5)
			testkit.OK(t, w.RunUntilEmpty(t.Context()))
			db.exact(5)
			expect(t, strings.Join(found, ""), "", "what handlers found of those before")
		})
	}
}

// If the next row cannot be read, the row before it stays committed, although one message asked for
// both. The modes of pgx send such a message in different ways.
func TestCommitStaysIfTheNextRowIsLocked(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	for _, mode := range testkit.Modes(db.url) {
		db.exec("TRUNCATE public.outbox, public.effects RESTART IDENTITY")
		db.putAlike(3)
		other := testkit.Must(db.Begin(t.Context()))(t)
		testkit.Must(other.Exec(t.Context(), "SELECT FROM public.outbox WHERE id = 2 FOR UPDATE"))(t)
		w := db.rowByRowOver(consumer.Each(effect), func(c *pgxpool.Config) {
			c.ConnConfig.DefaultQueryExecMode = mode
		}).run()
		testkit.Becomes(t, db.Pool, "the row before is handled", "1",
			"SELECT coalesce(string_agg(id::text, ' '), '') FROM public.effects")
		testkit.Until(t, "the partition waits for a lock", func() bool { return w.Stats().SlowByLock == 1 })
		testkit.OK(t, other.Commit(t.Context()))
		db.empty("all is handled")
		testkit.OK(t, w.end())
		expect(t, w.Stats().Rows, 3, mode.String()+": counted rows")
		db.exact(3)
	}
}

// If the commit fails, the next rows are not read in its message, and a row that is at fault counts
// as failed once.
func TestFailedCommitIsTheLastOfItsMessage(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.atCommit("IF NEW.id IN (3, 4) THEN RAISE 'no such order' USING ERRCODE = 'P0001'; END IF")
	w := db.rowByRow(consumer.Each(effect), attempts(1))
	of := db.alike(6)
	db.put(of...)
	contains(t, w.RunUntilEmpty(t.Context()), "only rows of blocked keys are left", "2 rows", "no such order")
	const attempts = "SELECT string_agg(id || ' ' || attempts, ', ' ORDER BY id) FROM pgleases.consumer_blocked"
	expect(t, one[string](db, attempts), "3 1, 4 1", "failed attempts")
	expect(t, w.Stats().Failures, 2, "failures")
	expect(t, w.Stats().Rows, 4, "counted rows")
	db.exact(4)
}

// If the answer to a commit is lost, with the next rows that it has read, each row has one effect.
func TestLostAnswerToACommitThatReads(t *testing.T) {
	t.Parallel()
	for _, after := range []bool{false, true} {
		db := newDatabase(t)
		w := db.rowByRow(consumer.Each(effect))
		db.putAlike(10)
		w.wire.Lose(1, "DELETE FROM public.outbox", after)
		testkit.OK(t, w.RunUntilEmpty(t.Context()))
		expect(t, w.Stats().BrokenOff, 1, "batches broken off")
		expect(t, w.Stats().Failures, 0, "failures")
		db.exact(10)
	}
}

// Rows that were read with a commit are not handled if the process has to end meanwhile.
func TestEndDropsRowsThatWereReadAhead(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := db.rowByRow(consumer.Each(effect))
	deliver := w.wire.Delay("DELETE FROM public.outbox")
	t.Cleanup(deliver)
	db.putAlike(10)
	w.run()
	testkit.Until(t, "the answer to the first commit has arrived", w.wire.Delayed)
	w.stop()
	deliver()
	testkit.OK(t, w.end())
	expect(t, db.left(), "2,3,4,5,6,7,8,9,10", "rows that are left")
	expect(t, w.Stats().Rows, 1, "counted rows")
	db.exact(1)
}

// A job does not go on with the next rows if the process has to end.
func TestEndWaitsForOneTransaction(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	in, out := make(chan struct{}), make(chan struct{})
	w := db.rowByRow(consumer.Each(func(ctx context.Context, tx pgx.Tx, row consumer.Row[Order]) error {
		if row.ID == 3 {
			close(in)
			<-out
		}
		return effect(ctx, tx, row)
	}))
	let := closer(t, out)
	db.putAlike(10)
	w.run()
	testkit.Receive(t, "the third row is in hand", in)
	w.stop()
	let()
	testkit.OK(t, w.end())
	expect(t, db.left(), "4,5,6,7,8,9,10", "rows that are left")
	db.exact(3)
}

// A process that loses its partition in the last call commits that, because its guard kept others
// away. It gets no further row.
func TestNextTransactionHasItsOwnGuard(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	var w *worker
	w = db.rowByRow(consumer.Each(func(ctx context.Context, tx pgx.Tx, row consumer.Row[Order]) error {
		err := effect(ctx, tx, row)
		if row.ID == 3 {
			w.evict()
		}
		return err
	}))
	db.putAlike(10)
	w.run()
	db.becomes("the third row is handled", 3, "public.effects")
	testkit.Until(t, "it is counted", func() bool { return w.Stats().Rows == 3 })
	w.stop()
	_ = w.end()
	expect(t, db.left(), "4,5,6,7,8,9,10", "rows that are left")
	expect(t, w.Stats().BrokenOff+w.Stats().Failures, 0, "what else has happened")
	testkit.OK(t, newWorker(db, consumer.Each(effect)).RunUntilEmpty(t.Context()))
	db.exact(10)
}

// The time of a handler begins when its rows are there, and not with the commit before, which may
// take longer.
func TestTimeoutBeginsAfterTheCommitBefore(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	db.atCommit("IF NEW.id IN (1, 3) THEN PERFORM pg_catalog.pg_sleep(1.5); END IF")
	w := db.rowByRow(consumer.Each(func(ctx context.Context, tx pgx.Tx, row consumer.Row[Order]) error {
		return errors.Join(context.Cause(ctx), effect(ctx, tx, row))
	}), consumer.WithTimeout(time.Second))
	db.putAlike(4)
	testkit.OK(t, w.RunUntilEmpty(t.Context()))
	expect(t, w.Stats().Failures, 0, "failures")
	db.exact(4)
}

// A hangingValue's decoder hangs until the channel is closed.
type hangingValue struct{ text string }

var hungAhead chan struct{}

func (v *hangingValue) UnmarshalJSON(text []byte) error {
	v.text = string(text)
	if v.text == `"hang"` {
		<-hungAhead
	}
	return nil
}

// A decoder that hangs while the next rows are read holds up neither other partitions nor the row
// before.
func TestDecoderThatHangsAfterACommit(t *testing.T) {
	t.Parallel()
	type order struct{ Payload hangingValue }
	db := newDatabase(t)
	log := make(lines, 1000)
	w := newWorkerOf(db, outbox, consumer.Each(func(ctx context.Context, tx pgx.Tx, row consumer.Row[order]) error {
		_, err := tx.Exec(ctx, "INSERT INTO public.effects (id, customer) VALUES ($1, $2)", row.ID, row.Key)
		return err
	}), append(slices.Clone(singly), consumer.WithTimeout(500*time.Millisecond),
		consumer.WithLogger(slog.New(slog.NewTextHandler(log, nil))))...)
	w.GoOnFor(time.Hour)
	w.LogOverrunAfter(10 * time.Millisecond)
	hungAhead = make(chan struct{})
	let := closer(t, hungAhead)
	db.putAlike(3)
	db.exec("UPDATE public.outbox SET payload = to_jsonb('hang'::text) WHERE id = 2")
	w.run()
	log.until(t, "decoder still running after its context ended")
	db.becomes("the row before is handled", 1, "public.effects WHERE id = 1")
	db.put(db.customers(5, 1)...)
	db.becomes("a row of another partition is handled", 1, "public.effects WHERE id = 4")
	let()
	log.until(t, `level=INFO msg="consumer: decoder returned after its context ended"`)
	db.empty("all is handled in the end")
	testkit.OK(t, w.end())
	db.exact(4)
}
