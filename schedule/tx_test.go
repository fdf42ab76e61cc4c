package schedule_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/schedule"
)

// A run takes two round trips, besides those of its handler.
func TestARunTakesTwoRoundTrips(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	k := schedule.InTx(w.Scheduler, "books", effect)
	l := w.runs(k.Put(t.Context(), "close", args{}, hourly))
	db.setClock(midnight.Add(time.Hour))
	l.settled(w.Scheduler) // the first run in a partition notes that, in a transaction of its own
	db.polled()
	w.wire.Record()
	db.setClock(midnight.Add(2 * time.Hour))
	l.settled(w.Scheduler).expectOutcomes(outcomes{schedule.OutcomeSucceeded: 2})
	w.close() // so all is sent that belongs to it
	of := w.wire.Recorded("schedule_open")
	if len(of) != 1 {
		t.Fatalf("runs on %d connections, not on one: %q", len(of), of)
	}
	opens := slices.IndexFunc(of[0], func(sent string) bool { return strings.Contains(sent, "schedule_open") })
	trips := of[0][opens:]
	for i, texts := range [][]string{
		{"begin isolation level read committed", "schedule_open"},
		{"INSERT INTO public.effects"},
		{"statement_timeout", "schedule_end_tick(", "commit\x00"},
	} {
		for _, text := range texts {
			if i >= len(trips) || !strings.Contains(trips[i], text) {
				t.Fatalf("trip %d of a run is without %q: %q", i, text, trips)
			}
		}
	}
	if len(trips) > 3 && !strings.Contains(trips[3], "begin") { // which begins another transaction
		for _, text := range []string{"commit", "rollback"} {
			if strings.Contains(trips[3], text) {
				t.Errorf("%q is sent after a run: %q", text, trips)
			}
		}
	}
}

// With each protocol of the pool: if the closing statement or the commit fails, the transaction is
// rolled back.
func TestFailedCloseIsRolledBackInEachMode(t *testing.T) {
	t.Parallel()
	for _, mode := range testkit.Some(
		pgx.QueryExecModeCacheStatement,
		pgx.QueryExecModeCacheDescribe,
		pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec,
		pgx.QueryExecModeSimpleProtocol,
	) {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			db := newFreshDatabase(t)
			db.exec(`CREATE TABLE public.parents (n int PRIMARY KEY);
				CREATE TABLE public.children (n int REFERENCES public.parents DEFERRABLE INITIALLY DEFERRED);
				GRANT ALL ON public.parents, public.children TO PUBLIC`)
			at := *db
			if mode != pgx.QueryExecModeExec && mode != pgx.QueryExecModeSimpleProtocol { // which poolers may not stand
				at.url, _ = pgtest.DirectURL(db.url)
			}
			w := newWorkerIn(&at, mode, 5*time.Second)
			bad := func(name, statement string) *ledger {
				k := schedule.InTx(w.Scheduler, name, func(ctx context.Context, tx pgx.Tx, r schedule.Run[args]) error {
					if err := effect(ctx, tx, r); err != nil || r.At.After(midnight.Add(time.Hour)) {
						return err
					}
					for _, one := range strings.Split(statement, "; ") {
						if _, err := tx.Exec(ctx, one); err != nil {
							return err
						}
					}
					return nil
				})
				l := newLedger(db, name)
				testkit.OK(t, k.Put(t.Context(), name, args{}, hourly))
				return l
			}
			ledgers := []*ledger{
				bad("ended", "ROLLBACK; BEGIN"),
				bad("deferred", "INSERT INTO public.children VALUES (1)"),
				bad("failed", "SELECT 1/0"),
			}
			w.run()
			db.setClock(midnight.Add(time.Hour))
			for _, l := range ledgers {
				l.settled(w.Scheduler).expectOutcomes(outcomes{schedule.OutcomeFailed: 1})
			}
			db.setClock(midnight.Add(2 * time.Hour))
			for _, l := range ledgers {
				l.settled(w.Scheduler).expectOutcomes(outcomes{schedule.OutcomeFailed: 1, schedule.OutcomeSucceeded: 1})
			}
		})
	}
}

// A handler cannot end its transaction. If it keeps the transaction or a savepoint after the end,
// they return ErrTxClosed.
func TestAHandlersTransactionEndsWithTheRun(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	kept := make(chan []pgx.Tx, 1)
	k := schedule.InTx(w.Scheduler, "books", func(ctx context.Context, tx pgx.Tx, r schedule.Run[args]) error {
		if tx.Commit(ctx) == nil || tx.Rollback(ctx) == nil {
			t.Error("the handler ended its transaction")
		}
		outer, err := tx.Begin(ctx)
		if err != nil {
			return err
		}
		inner, err := outer.Begin(ctx)
		if err != nil {
			return err
		}
		kept <- []pgx.Tx{tx, outer, inner}
		return effect(ctx, inner, r)
	})
	l := w.runs(k.Put(t.Context(), "close", args{}, hourly))
	db.setClock(midnight.Add(time.Hour))
	l.settled(w.Scheduler).expectOutcomes(outcomes{schedule.OutcomeSucceeded: 1})
	ctx := t.Context()
	txs := testkit.Receive(t, "it ran", kept)
	w.close() // so the run's end is known to its process too
	for i, tx := range txs {
		uses := map[string]error{}
		_, uses["Begin"] = tx.Begin(ctx)
		rows := pgx.CopyFromRows([][]any{{"late"}})
		_, uses["CopyFrom"] = tx.CopyFrom(ctx, pgx.Identifier{"public", "effects"}, []string{"name"}, rows)
		uses["SendBatch"] = tx.SendBatch(ctx, &pgx.Batch{QueuedQueries: []*pgx.QueuedQuery{{SQL: "SELECT 1"}}}).Close()
		large := tx.LargeObjects()
		_, uses["LargeObjects"] = large.Create(ctx, 0)
		_, uses["Prepare"] = tx.Prepare(ctx, "late", "SELECT 1")
		_, uses["Exec"] = tx.Exec(ctx, "SELECT 1")
		_, uses["Query"] = tx.Query(ctx, "SELECT 1")
		uses["QueryRow"] = tx.QueryRow(ctx, "SELECT 1").Scan(nil)
		if i > 0 {
			uses["Commit"], uses["Rollback"] = tx.Commit(ctx), tx.Rollback(ctx)
		}
		for use, err := range uses {
			if !errors.Is(err, pgx.ErrTxClosed) {
				t.Errorf("%s of transaction %d after the run: %v, not %q", use, i, err, pgx.ErrTxClosed)
			}
		}
	}
}

// The schedule was deleted before its run is opened, and the process freezes then: its transaction
// has a limit anyway, because it locks the partition.
func TestEmptyTransactionIdleTimeout(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	w.run()
	counts(db, "it owns a partition", 1, "pgleases.partitions WHERE partition = 0 AND owner IS NOT NULL")
	const open = `SELECT pgleases.schedule_open(p.lease, p.partition, p.epoch, 0, %s, 'run', 2000, 3000, 4000)
		FROM pgleases.partitions AS p WHERE p.partition = 0`
	for _, of := range []string{"false", "true"} {
		tx := db.begin()
		var none *string
		testkit.OK(t, tx.QueryRow(t.Context(), fmt.Sprintf(open, of)).Scan(&none))
		expect(t, none, nil, "what was opened")
		var idle string
		testkit.OK(t, tx.QueryRow(t.Context(), "SHOW idle_in_transaction_session_timeout").Scan(&idle))
		expect(t, idle, "3s", "idle limit of a job: "+of)
		testkit.OK(t, tx.Rollback(t.Context()))
	}
}
