package schedule_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/timeguard"
	"github.com/pgleases/pgleases/schedule"
)

// sent is an effect outside of the scheduler's transactions and connections.
func (db *database) sent(r schedule.Run[args]) error {
	ctx := context.Background()
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error { return leave(ctx, tx, r.Name, r) })
}

// send is a handler outside of transactions that leaves such an effect.
func (db *database) send(_ context.Context, r schedule.Run[args]) error { return db.sent(r) }

// Each statement in turn is lost, or its answer is, with the connection. Handlers with effects
// outside are called neither too often nor too seldom.
func TestCallsOutsideWhateverStatementIsLost(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	for _, calls := range []string{"at least once", "at most once"} {
		t.Run(calls, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			w := newWorker(db)
			send := func(_ context.Context, r schedule.Run[args]) error { return db.sent(r) }
			k := schedule.AtLeastOnce(w.Scheduler, "at least once", send)
			if calls == "at most once" {
				k = schedule.AtMostOnce(w.Scheduler, "at most once", send)
			}
			l := newLedger(db, "send")
			l.calls = calls
			testkit.OK(t, k.Add("send", args{}, hourly, missedAll))
			w.run().has("send")
			now := midnight
			texts := []string{"begin", "schedule_open", "schedule_close", "synchronous_commit", "commit\x00"}
			for _, text := range texts {
				for _, after := range []bool{false, true} {
					if text == "synchronous_commit" && calls == "at least once" {
						continue // it is not sent
					}
					w.wire.Lose(1, text, after)
					now = now.Add(3 * time.Hour)
					db.setClock(now)
					l.settled(w.Scheduler)
					testkit.Until(t, "the message was lost: "+text, func() bool { return w.wire.Left() == 0 })
				}
			}
			ran := int64(now.Sub(midnight) / time.Hour) // a run finds that it has begun itself
			l.expectOutcomes(outcomes{schedule.OutcomeSucceeded: ran})
		})
	}
}

// The owner is cut off during the call. AtLeastOnce: the next owner calls it again, with the same
// key and a higher epoch. AtMostOnce: the next owner does not, and the outcome is unknown. Later
// writes of the first owner are refused.
func TestAnOwnerThatIsCutOffInACallOutside(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	timeguard.Run(t, anOwnerThatIsCutOffInACallOutside)
}

func anOwnerThatIsCutOffInACallOutside(t *timeguard.Try) {
	t.Brief(2 * time.Second)
	db := newFreshDatabase(t)
	name := one[string](db, "SELECT quote_ident(current_database())")
	db.exec("ALTER ROLE CURRENT_USER IN DATABASE " + name + " SET synchronous_commit = off")
	db.exec(`CREATE TABLE public.commits (begun boolean, setting text);
		CREATE FUNCTION public.note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			INSERT INTO public.commits VALUES (NEW.call IS NOT NULL, current_setting('synchronous_commit')); RETURN NEW; END $$;
		CREATE TRIGGER note AFTER UPDATE ON pgleases.schedules FOR EACH ROW WHEN (NEW.kind = 'pay' AND (NEW.began, NEW.call) IS DISTINCT FROM (OLD.began, OLD.call)) EXECUTE FUNCTION public.note();
		GRANT ALL ON public.commits TO PUBLIC`)
	type call struct {
		key     string
		epoch   int64
		refused error
	}
	calls := map[string]chan call{"mail": make(chan call, 10), "pay": make(chan call, 10)}
	cut := make(chan struct{})
	start := func(first bool) *worker {
		w := newBriefWorker(db)
		send := func(ctx context.Context, r schedule.Run[args]) error {
			if err := db.sent(r); err != nil {
				return err
			}
			calls[r.Name] <- call{r.IdempotencyKey(), r.Epoch, nil}
			if first {
				<-ctx.Done()
				<-cut // until another owns it
				err := r.Guarded(context.WithoutCancel(ctx), func(tx pgx.Tx) error { return nil })
				calls[r.Name] <- call{r.IdempotencyKey(), r.Epoch, err}
			} else if err := r.Guarded(ctx, func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, "SELECT 1")
				return errors.Join(err, ctx.Err())
			}); err != nil {
				t.Errorf("Guarded of an owner: %v", err)
			}
			return nil
		}
		testkit.OK(t, schedule.AtLeastOnce(w.Scheduler, "mail", send).Add("mail", args{}, hourly))
		testkit.OK(t, schedule.AtMostOnce(w.Scheduler, "pay", send).Add("pay", args{}, hourly))
		return w.run().has("pay")
	}
	least, most := newLedger(db, "mail"), newLedger(db, "pay")
	least.calls, most.calls = "at least once", "at most once"
	w := start(true)
	wakeUp := sync.OnceFunc(func() { close(cut) })
	t.Cleanup(wakeUp) // a test that fails before waits for no handler
	db.setClock(midnight.Add(time.Hour))
	mail, pay := testkit.Receive(t, "a call", calls["mail"]), testkit.Receive(t, "a call", calls["pay"])
	w.wire.Cut()
	other := start(false)
	again := testkit.Receive(t, "it is called again", calls["mail"])
	if again.key != mail.key || again.epoch <= mail.epoch || mail.key == "" || mail.key == pay.key {
		t.Errorf("called with %+v, then with %+v", mail, again)
	}
	least.settled(other.Scheduler).expectOutcomes(outcomes{schedule.OutcomeSucceeded: 1})
	most.settled(other.Scheduler).expectOutcomes(outcomes{schedule.OutcomeUnknown: 1})
	expect(t, most.entries[0].Epoch, pay.epoch, "epoch of what is lost")
	w.wire.Mend()
	wakeUp()
	for _, name := range []string{"mail", "pay"} {
		refused := testkit.Receive(t, "it woke up", calls[name]).refused
		wraps(t, "Guarded of one that was cut off", refused, pgleases.ErrNotOwner)
	}
	w.close()
	db.setClock(midnight.Add(2 * time.Hour))
	if next := testkit.Receive(t, "the next tick", calls["mail"]); next.key == mail.key {
		t.Errorf("two ticks have the key %s", next.key)
	}
	least.settled(other.Scheduler).expectOutcomes(outcomes{schedule.OutcomeSucceeded: 2})
	most.settled(other.Scheduler).expectOutcomes(outcomes{schedule.OutcomeUnknown: 1, schedule.OutcomeSucceeded: 1})
	settings := one[string](db, "SELECT string_agg(DISTINCT setting, ' ') FROM public.commits WHERE begun")
	expect(t, settings, "on", "synchronous_commit before a call")
	expect(t, db.count("public.commits WHERE NOT begun") > 0, true, "whether others were noted")
}

// A partition is wanted elsewhere after the record of a call of AtMostOnce, and before the call:
// the next owner makes the call.
func TestRecordedCallIsMadeByNextOwner(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newFreshDatabase(t)
	db.exec(`CREATE OR REPLACE FUNCTION pgleases.check_interval() RETURNS text LANGUAGE plpgsql AS $$ BEGIN
			IF EXISTS (SELECT FROM pgleases.schedules AS s WHERE s.call = current_setting('schedule.run')) THEN
				PERFORM pg_advisory_xact_lock(1);
			END IF;
			RETURN '500';
		END $$`)
	start := func() *worker {
		w := newWorker(db, schedule.WithDrainTimeout(0))
		pay := schedule.AtMostOnce(w.Scheduler, "pay", db.send)
		testkit.OK(t, pay.Add("pay", args{}, hourly, missedAll))
		return w.run().has("pay")
	}
	l := newLedger(db, "pay")
	l.calls = "at most once"
	begun := db.begin("SELECT pg_advisory_xact_lock(1)")
	w := start()
	db.setClock(midnight.Add(3 * time.Hour))
	db.blocked("it has begun", "schedule_open")
	w.end()
	testkit.OK(t, begun.Rollback(t.Context()))
	l.settled(start().Scheduler).expectOutcomes(outcomes{schedule.OutcomeSucceeded: 3})
}

// Handlers fail, and their contexts end. AtLeastOnce retries. For AtMostOnce an error means not done,
// unless the handler panicked, or its context had ended: then the outcome is unknown.
func TestCallsOutsideThatFail(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db, schedule.WithDrainTimeout(0))
	began := make(chan string, 100)
	send := func(ctx context.Context, r schedule.Run[args]) error {
		began <- fmt.Sprint(r.Name, " ", r.Attempt)
		switch {
		case r.At.Hour() == 2:
			<-ctx.Done()
			if r.Name == "panic" {
				return schedule.Discard(context.Cause(ctx)) // it did nothing
			}
			return context.Cause(ctx)
		case strings.HasPrefix(r.Name, "panic"):
			panic("on fire")
		case r.Attempt == 1:
			return errors.New("no paper")
		}
		return db.sent(r)
	}
	mail := schedule.AtLeastOnce(w.Scheduler, "mail", send, tries(2, time.Minute))
	pay := schedule.AtMostOnce(w.Scheduler, "pay", send)
	least, most, panics := newLedger(db, "mail"), newLedger(db, "pay"), newLedger(db, "panic")
	for _, l := range []*ledger{least, most, panics} {
		l.calls = "at most once"
	}
	testkit.OK(t, mail.Put(t.Context(), "mail", args{}, hourly))
	testkit.OK(t, pay.Put(t.Context(), "pay", args{}, hourly))
	testkit.OK(t, pay.Put(t.Context(), "panic", args{}, hourly))
	w.run()
	db.setClock(midnight.Add(time.Hour))
	most.settled(w.Scheduler).expectOutcomes(outcomes{schedule.OutcomeFailed: 1})
	panics.settled(w.Scheduler).expectOutcomes(outcomes{schedule.OutcomeUnknown: 1})
	waitsForRetry(w, "mail", 1)
	db.setClock(midnight.Add(62 * time.Minute))
	least.settled(w.Scheduler).expectOutcomes(outcomes{schedule.OutcomeSucceeded: 1})
	for len(began) > 0 {
		<-began
	}
	db.setClock(midnight.Add(2 * time.Hour))
	for range 3 {
		testkit.Receive(t, "a call", began)
	}
	crashes := one[int64](db, "SELECT sum(crashes)::bigint FROM pgleases.schedules")
	expect(t, crashes, 0, "crashes, if no previous owner crashed")
	w.close() // ends them at once
	ended := one[string](db, `SELECT string_agg(name || ' ' || outcome, ', ' ORDER BY name)
		FROM pgleases.history WHERE until = '2026-03-02 02:00 UTC'`)
	expect(t, ended, "panic failed, pay unknown", "outcomes of what was asked to end")
	next := newWorker(db)
	schedule.AtLeastOnce(next.Scheduler, "mail", db.send)
	next.run()
	least.settled(next.Scheduler).expectOutcomes(outcomes{schedule.OutcomeSucceeded: 2})
}

// Jobs of these kinds, one of which reaches its timeout; and Guarded for InTx, which returns an error.
func TestJobsOutside(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	keys := make(chan string, 10)
	mail := schedule.AtMostOnce(w.Scheduler, "mail", func(_ context.Context, r schedule.Run[string]) error {
		keys <- r.IdempotencyKey()
		return nil
	})
	slow := schedule.AtMostOnce(w.Scheduler, "slow", func(ctx context.Context, _ schedule.Run[string]) error {
		<-ctx.Done()
		return ctx.Err()
	}, schedule.WithTimeout(time.Millisecond))
	books := schedule.InTx(w.Scheduler, "books", func(ctx context.Context, tx pgx.Tx, r schedule.Run[string]) error {
		return errors.Join(r.Guarded(ctx, func(pgx.Tx) error { return nil }), errors.New("key: "+r.IdempotencyKey()))
	})
	w.run()
	a := testkit.Must(mail.Enqueue(t.Context(), "a"))(t)
	b := testkit.Must(mail.Enqueue(t.Context(), "b"))(t)
	expect(t, fmt.Sprint(w.outcome(a).Outcome, w.outcome(b).Outcome), "succeededsucceeded", "outcomes")
	if a, b := <-keys, <-keys; a == b {
		t.Errorf("two jobs have the key %s", a)
	}
	j := w.outcome(testkit.Must(slow.Enqueue(t.Context(), ""))(t))
	expect(t, j.Outcome, schedule.OutcomeUnknown, "outcome after the timeout")
	expect(t, j.Error, "schedule: the run took longer than its timeout: context deadline exceeded", "its error")
	c := testkit.Must(books.Enqueue(t.Context(), "c"))(t)
	if j := w.outcome(c); !strings.Contains(j.Error, "Guarded is for") {
		t.Errorf("Guarded in a transaction: %s", j.Error)
	}
}

// An edit during a call shows when it was due, and not that it never is.
func TestAnEditInTheMiddleOfACallOutside(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	began, end := make(chan struct{}, 10), make(chan struct{})
	k := schedule.AtLeastOnce(w.Scheduler, "mail", func(ctx context.Context, r schedule.Run[args]) error {
		began <- struct{}{}
		released(ctx, end)
		return db.sent(r)
	})
	l := newLedger(db, "mail")
	testkit.OK(t, k.Put(t.Context(), "mail", args{}, hourly))
	w.run()
	db.setClock(midnight.Add(time.Hour))
	testkit.Receive(t, "it is called", began)
	testkit.OK(t, k.Put(t.Context(), "mail", args{2}, hourly))
	s := testkit.Must(w.Get(t.Context(), "mail"))(t)
	expect(t, s.Due.UTC(), midnight.Add(time.Hour), "when it is due")
	close(end)
	l.settled(w.Scheduler).expectOutcomes(outcomes{schedule.OutcomeSucceeded: 1})
	expect(t, len(began), 0, "further calls")
}

// A failover loses jobs that were called. Others, which must be called too, get their IDs, or replace
// what is left.
func TestIdempotencyKeyOfReusedID(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	keys := make(chan string, 10)
	mail := schedule.AtLeastOnce(w.Scheduler, "mail", func(_ context.Context, r schedule.Run[string]) error {
		keys <- r.IdempotencyKey()
		return nil
	})
	w.run()
	send := func() (int64, string) {
		id := testkit.Must(mail.Enqueue(t.Context(), ""))(t)
		key := testkit.Receive(t, "it is called", keys)
		w.outcome(id)
		return id, key
	}
	id, key := send()
	db.exec(fmt.Sprintf(`DELETE FROM pgleases.history;
		SELECT setval(pg_get_serial_sequence('pgleases.jobs', 'id'), %d, false)`, id))
	again, other := send()
	expect(t, again, id, "id after the failover")
	if other == key {
		t.Errorf("two jobs have the key %s", key)
	}
	testkit.Must(mail.Enqueue(t.Context(), "", rejecting("u"), schedule.WithDelay(time.Hour)))(t)
	db.exec("CREATE TABLE pgleases.saved AS SELECT * FROM pgleases.jobs")
	replace := func() string {
		w.outcome(testkit.Must(mail.Enqueue(t.Context(), "", replacing("u")))(t))
		return testkit.Receive(t, "what replaces it is called", keys)
	}
	key = replace()
	db.exec(`DELETE FROM pgleases.history;
		INSERT INTO pgleases.jobs OVERRIDING SYSTEM VALUE SELECT * FROM pgleases.saved`)
	if other := replace(); other == key {
		t.Errorf("after a failover, two replacements have the key %s", key)
	}
}

// refuses makes the database refuse outcomes, with each of the codes once.
func (db *database) refuses(codes ...string) {
	db.exec(`CREATE SEQUENCE IF NOT EXISTS public.tries; GRANT ALL ON SEQUENCE public.tries TO PUBLIC;
		ALTER SEQUENCE public.tries RESTART;
		CREATE OR REPLACE FUNCTION public.fail() RETURNS trigger LANGUAGE plpgsql AS $$
		DECLARE
			code text := ('{` + strings.Join(codes, ",") + `}'::text[])[nextval('public.tries')];
		BEGIN
			IF code <> '' THEN
				RAISE 'not now' USING ERRCODE = code;
			END IF;
			RETURN NEW;
		END $$;
		CREATE OR REPLACE TRIGGER fail BEFORE INSERT ON pgleases.history FOR EACH ROW EXECUTE FUNCTION public.fail()`)
}

// The outcome of a call is recorded as soon as the database is back, while the process owns the
// partition: it is called once, whatever the server lacks.
func TestOutcomeRecordedAfterOutage(t *testing.T) {
	t.Parallel()
	db := newFreshDatabase(t)
	w := newWorker(db)
	var called atomic.Int64
	pay := func(context.Context, schedule.Run[args]) error { called.Add(1); return nil }
	most, least := schedule.AtMostOnce(w.Scheduler, "pay", pay), schedule.AtLeastOnce(w.Scheduler, "mail", pay)
	w.run()
	for k, codes := range map[*schedule.Kind[args]][]string{
		most: {"53100", "25006", "58030", "40001", "57P01"}, least: {"57014", "53100", "XX000", "55P03", "08006"},
	} {
		called.Store(0)
		db.refuses(codes...)
		id := testkit.Must(k.Enqueue(t.Context(), args{}))(t)
		expect(t, w.outcome(id).Outcome, schedule.OutcomeSucceeded, "outcome")
		expect(t, called.Load(), 1, "calls")
	}
	w.close()
}

// A server that lacks something for longer than a run is repeated makes no attempt fail.
func TestServerThatLacksSpaceFailsNoAttempt(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newFreshDatabase(t)
	w := newWorker(db)
	books := schedule.InTx(w.Scheduler, "books", effect)
	w.run()
	db.refuses(slices.Repeat([]string{"53100"}, 8)...)
	id := testkit.Must(books.Enqueue(t.Context(), args{}))(t)
	expect(t, w.outcome(id).Outcome, schedule.OutcomeSucceeded, "outcome")
	w.close()
}

// A schedule or job is deleted or canceled during its call, and that decides its outcome: the call
// is not an error, and is not repeated.
func TestDeletedDuringCallIsNoError(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w, log := newLogged(db)
	began, let := make(chan struct{}, 2), make(chan struct{})
	pay := schedule.AtMostOnce(w.Scheduler, "pay", func(ctx context.Context, r schedule.Run[args]) error {
		began <- struct{}{}
		released(ctx, let)
		if r.Job != 0 {
			return errors.New("no money")
		}
		return nil
	})
	cancel := func(ctx context.Context, r schedule.Run[args]) error { return w.Cancel(ctx, r.Job) }
	itself := schedule.InTx(w.Scheduler, "itself", inside(cancel))
	testkit.OK(t, pay.Put(t.Context(), "close", args{}, hourly))
	id := testkit.Must(pay.Enqueue(t.Context(), args{}))(t)
	w.run()
	db.setClock(midnight.Add(time.Hour))
	testkit.Receive(t, "one is called", began)
	testkit.Receive(t, "the other is called", began)
	testkit.OK(t, w.Delete(t.Context(), "close"))
	testkit.OK(t, w.Cancel(t.Context(), id))
	close(let)
	w.outcome(testkit.Must(itself.Enqueue(t.Context(), args{}))(t))
	w.end()
	expect(t, log.count("outcome not recorded"), 0, "lines of outcomes that are not written down")
	expect(t, log.count("run failed"), 0, "lines of failures that are no outcome")
	// a poll may tell of the cancellation before the end of the run does
	lines := log.count("not committed, it was changed meanwhile") + log.count("run canceled")
	expect(t, lines >= 1, true, "a line of a run that canceled itself")
	became := one[string](db, "SELECT string_agg(outcome, ' ') FROM pgleases.history")
	expect(t, became, "canceled canceled canceled", "outcomes")
}

func TestGuardedRefusesANilFunction(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	refused := make(chan error, 1)
	pay := schedule.AtMostOnce(w.Scheduler, "pay", func(ctx context.Context, r schedule.Run[args]) error {
		refused <- r.Guarded(ctx, nil)
		return nil
	})
	testkit.Must(pay.Enqueue(t.Context(), args{}))(t)
	w.run()
	const want = "schedule: guarded: the function is nil; pass the one that works in the transaction"
	if err := testkit.Receive(t, "the call returns", refused); err == nil || err.Error() != want {
		t.Errorf("it returned %v", err)
	}
	w.end()
}

// The outcome is in the history. The log would have no trace of a run that failed.
func TestLostAnswerToAnOutcomeIsLogged(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w, log := newLogged(db)
	pay := schedule.AtMostOnce(w.Scheduler, "pay", func(context.Context, schedule.Run[args]) error {
		w.wire.Lose(1, "schedule_end_job(", true)
		return errors.New("no money")
	})
	id := testkit.Must(pay.Enqueue(t.Context(), args{}))(t)
	w.run()
	expect(t, w.outcome(id).Outcome, schedule.OutcomeFailed, "outcome")
	const line = "outcome perhaps recorded, its answer was lost"
	testkit.Until(t, "it is logged", func() bool { return log.count(line) == 1 })
	expect(t, log.count(`failure="no money"`), 1, "lines with the error of the handler")
	w.end()
}

// A process ends whose handlers have returned, and cannot record their outcomes: the next owner
// waits for 4 s.
func TestAProcessThatEndsWritesJobsForAWhileOnly(t *testing.T) {
	testkit.OnlyInCI(t)
	endsThoughItCannotWrite(t, "jobs", "outcome not recorded")
}

func TestAProcessThatEndsFreesSlotsForAWhileOnly(t *testing.T) {
	testkit.OnlyInCI(t)
	endsThoughItCannotWrite(t, "schedule_slots", "slot not freed")
}

func TestAProcessThatEndsWaitsForItsPoolForAWhileOnly(t *testing.T) {
	testkit.OnlyInCI(t)
	endsThoughItCannotWrite(t, "the pool", "outcome not recorded")
}

// endsThoughItCannotWrite is no table of subtests, because parallel subtests run last, and it waits
// for seconds.
func endsThoughItCannotWrite(t *testing.T, what, says string) {
	t.Parallel()
	timeguard.Run(t, func(t *timeguard.Try) {
		db := newFreshDatabase(t)
		w, log := newLogged(db, schedule.WithDrainTimeout(0))
		began := make(chan struct{}, 2)
		handler := func(ctx context.Context, r schedule.Run[args]) error {
			began <- struct{}{}
			<-ctx.Done()
			return nil
		}
		least := schedule.AtLeastOnce(w.Scheduler, "mail", handler, schedule.WithMaxConcurrent(1))
		most := schedule.AtMostOnce(w.Scheduler, "pay", handler)
		w.run()
		testkit.Must(least.Enqueue(t.Context(), args{}))(t)
		testkit.Must(most.Enqueue(t.Context(), args{}))(t)
		testkit.Receive(t, "one runs", began)
		testkit.Receive(t, "the other runs", began)
		if what != "the pool" {
			db.begin("SELECT FROM pgleases." + what + " FOR UPDATE")
		} else {
			for range w.pool.Config().MaxConns {
				t.Cleanup(testkit.Must(w.pool.Acquire(t.Context()))(t).Release)
			}
		}
		stopped := time.Now()
		w.end()
		const limit = 7 * time.Second
		if took := time.Since(stopped); took > limit {
			t.Missed(stopped, limit, "Run ended after %v", took)
		}
		if log.count(says) == 0 {
			t.Errorf("%q is not logged", says)
		}
	})
}

// A process is cut off in a call of AtMostOnce. Meanwhile a deploy has made the kind one that may be
// called again: the tick is not called again all the same, because its call was one of AtMostOnce.
func TestDeployRepeatsNoCallOfAtMostOnce(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	for _, now := range []string{"InTx", "AtLeastOnce"} {
		t.Run(now, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			began := make(chan struct{}, 1)
			first := newWorker(db)
			pay := schedule.AtMostOnce(first.Scheduler, "pay", func(ctx context.Context, _ schedule.Run[args]) error {
				began <- struct{}{}
				<-ctx.Done()
				return ctx.Err()
			})
			testkit.OK(t, pay.Add("pay", args{}, hourly))
			first.run().has("pay")
			db.setClock(midnight.Add(time.Hour))
			testkit.Receive(t, "a call", began)
			first.crash()
			next := newWorker(db)
			called := func(context.Context, schedule.Run[args]) error {
				t.Error("it was called again")
				return nil
			}
			testkit.OK(t, register(next, now, "pay", called).Add("pay", args{}, hourly))
			next.run()
			counts(db, "its outcome is unknown", 1, "pgleases.history WHERE name = 'pay' AND outcome = 'unknown'")
			expect(t, db.count("pgleases.history"), 1, "outcomes")
			first.wire.Mend()
		})
	}
}
