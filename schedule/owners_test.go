package schedule_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgleases/pgleases/schedule"
)

// Owners of a dozen schedules die in a handler, at the commit, and between runs; close; and hand over while handlers run.
func TestEveryTickHasItsFateAndItsEffectOnceWhoeverOwnsIt(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	const schedules = 12
	inHandler := make(chan *worker, 1000) // who is in a handler now
	start := func() *worker {
		w := newWorker(db, schedule.WithDrain(time.Minute))
		books := schedule.InTx(w.Scheduler, "books", func(ctx context.Context, tx pgx.Tx, r schedule.Run[args]) error {
			inHandler <- w
			return effect(ctx, tx, r)
		}, schedule.Idle(time.Second))
		for i := range schedules {
			ok(t, books.Add(fmt.Sprint("close ", i), args{i}, hourly, schedule.MissedAll, schedule.OverlapBuffer))
		}
		return w.run()
	}
	var ledgers []*ledger
	for i := range schedules {
		ledgers = append(ledgers, newLedger(db, fmt.Sprint("close ", i)))
	}
	now := midnight
	pass := func(hours int) {
		for len(inHandler) > 0 {
			<-inHandler
		}
		now = now.Add(time.Duration(hours) * time.Hour)
		db.setClock(now)
	}
	w := start().has("close 11")
	for _, end := range []func(*worker){
		(*worker).die,
		func(w *worker) { w.wire.lose("commit", false); w.die() },
		(*worker).close,
		func(w *worker) { w.stop(); receive(t, "Run ends", w.ended); w.stop = nil },
	} {
		pass(3)
		receive(t, "a handler runs", inHandler)
		next := start() // takes half of it over meanwhile
		pass(2)
		end(receive(t, "a handler runs", inHandler)) // either of them
		w, next = next, start()
		pass(2)
		for _, l := range ledgers {
			l.settled(w.Scheduler)
		}
		next.close()
		w.close()
		w = start()
	}
	for _, l := range ledgers {
		l.settled(w.Scheduler)
		l.expectFates(map[schedule.Fate]int64{schedule.FateDone: int64(now.Sub(midnight) / time.Hour)})
	}
}

// The lock of Guard, while the handler runs: a take-over waits for it.
func TestNobodyOwnsThePartitionOfARunThatIsUnderWay(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	took := make(chan error, 1)
	books := schedule.InTx(w.Scheduler, "books", func(ctx context.Context, tx pgx.Tx, r schedule.Run[args]) error {
		_, err := db.Exec(ctx, "SELECT FROM pgleases.partitions WHERE partition = $1 FOR UPDATE NOWAIT", r.Partition) // as a take-over does
		took <- err
		return effect(ctx, tx, r)
	})
	l := newLedger(db, "close")
	ok(t, books.Add("close", args{}, hourly))
	w.run().has("close")
	db.setClock(midnight.Add(time.Hour))
	var refused *pgconn.PgError
	if err := receive(t, "the handler ran", took); !errors.As(err, &refused) || refused.Code != "55P03" {
		t.Fatalf("to take the partition over in the middle of a run: %v, not a lock timeout", err)
	}
	l.settled(w.Scheduler)
}

// Its process was frozen in the handler, so that the server ended its transaction; meanwhile another has run the tick. What it did after it woke up is
// not committed.
func TestAFrozenHandlerDoesNotCommit(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	frozen, thaw := make(chan struct{}), make(chan struct{})
	first := true
	w := newWorker(db)
	woke := make(chan error, 1)
	books := schedule.InTx(w.Scheduler, "books", func(ctx context.Context, tx pgx.Tx, r schedule.Run[args]) error {
		err := effect(ctx, tx, r)
		if first {
			first = false
			close(frozen)
			<-thaw
			err = effect(ctx, tx, r)
			woke <- err
			return nil
		}
		return err
	}, schedule.Idle(200*time.Millisecond))
	l := newLedger(db, "close")
	ok(t, books.Add("close", args{}, hourly, schedule.MissedAll))
	w.run().has("close")
	db.setClock(midnight.Add(time.Hour))
	receive(t, "the handler runs", frozen)
	w.wire.setCut(true) // it hears nothing more
	other := newWorker(db)
	ok(t, schedule.InTx(other.Scheduler, "books", effect).Add("close", args{}, hourly, schedule.MissedAll))
	other.run()
	l.settled(other.Scheduler)
	w.wire.setCut(false)
	close(thaw)
	if err := receive(t, "it woke up", woke); err == nil {
		t.Fatal("the transaction of a handler that was frozen for longer than its idle limit goes on")
	}
	w.close()
	db.setClock(midnight.Add(3 * time.Hour))
	l.settled(other.Scheduler).expectFates(map[schedule.Fate]int64{schedule.FateDone: 3})
}

// An owner without its guard: its ownership ends between the start of the run and its first statement.
func TestARunOfAnEndedOwnershipDoesNotBegin(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	ran := make(chan int64, 10)
	books := schedule.InTx(w.Scheduler, "books", func(ctx context.Context, tx pgx.Tx, r schedule.Run[args]) error {
		ran <- r.Epoch
		return effect(ctx, tx, r)
	})
	l := newLedger(db, "close")
	ok(t, books.Add("close", args{}, hourly))
	w.run().has("close")
	until(t, "all is owned", func() bool {
		return one[int64](db, "SELECT count(*) FROM pgleases.partitions WHERE owner IS NOT NULL") == 4
	})
	db.looked()
	before, rollbacks := one[int64](db, "SELECT max(epoch) FROM pgleases.partitions"), one[int64](db, "SELECT xact_rollback FROM pg_stat_database WHERE datname = current_database()")
	db.exec("UPDATE pgleases.partitions SET epoch = epoch + 100") // somebody else's, of which the process has not heard
	db.setClock(midnight.Add(time.Hour))
	until(t, "it was refused", func() bool {
		return one[int64](db, "SELECT xact_rollback FROM pg_stat_database WHERE datname = current_database()") > rollbacks
	})
	db.exec("UPDATE pgleases.leases SET generation = generation + 1") // now it hears
	l.settled(w.Scheduler)
	if epoch := receive(t, "it ran", ran); epoch <= before {
		t.Fatalf("it ran under epoch %d, which had ended", epoch)
	}
}

// Its process died in the middle of a statement that takes a minute: the server finds that out, and the next owner does not wait for its end.
func TestAStatementOfADeadProcessHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db, schedule.WithDrain(0))
	began := make(chan struct{}, 1)
	k := schedule.InTx(w.Scheduler, "books", func(ctx context.Context, tx pgx.Tx, r schedule.Run[args]) error {
		began <- struct{}{}
		_, err := tx.Exec(ctx, "SELECT pg_sleep(60)")
		return err
	})
	l := newLedger(db, "close")
	ok(t, k.Add("close", args{}, hourly))
	w.run().has("close")
	db.setClock(midnight.Add(time.Hour))
	receive(t, "the handler runs", began)
	until(t, "its statement runs", func() bool {
		return one[bool](db, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND state = 'active' AND query = 'SELECT pg_sleep(60)')")
	})
	w.die()
	other := newWorker(db)
	ok(t, schedule.InTx(other.Scheduler, "books", effect).Add("close", args{}, hourly))
	other.run()
	l.settled(other.Scheduler).expectFates(fates{schedule.FateDone: 1})
}
