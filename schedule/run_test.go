package schedule_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/schedule"
)

// An error of a handler fails its tick, which is rolled back, and the next tick runs.
func TestFailedRunLeavesNothing(t *testing.T) {
	t.Parallel()
	db := newFreshDatabase(t)
	db.exec(`CREATE TABLE public.locked (); GRANT ALL ON public.locked TO PUBLIC;
		CREATE TABLE public.checked (n int); GRANT ALL ON public.checked TO PUBLIC;
		CREATE FUNCTION public.check_later() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'locked' USING ERRCODE = '55P03'; END $$;
		CREATE CONSTRAINT TRIGGER later AFTER INSERT ON public.checked DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.check_later()`)
	type handler = func(context.Context, pgx.Tx, schedule.Run[args]) error
	send := func(statement string) handler {
		return func(ctx context.Context, tx pgx.Tx, _ schedule.Run[args]) error {
			_, err := tx.Exec(ctx, statement)
			return err
		}
	}
	briefly := func(h handler) handler {
		return func(ctx context.Context, tx pgx.Tx, r schedule.Run[args]) error {
			ctx, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
			defer cancel()
			return h(ctx, tx, r)
		}
	}
	ignoring := func(h handler) handler {
		return func(ctx context.Context, tx pgx.Tx, r schedule.Run[args]) error {
			_ = h(ctx, tx, r)
			return nil
		}
	}
	returning := func(err error) handler {
		return func(context.Context, pgx.Tx, schedule.Run[args]) error { return err }
	}
	waiting := func(ctx context.Context, _ pgx.Tx, _ schedule.Run[args]) error {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	pausing := func(setting string) handler {
		const limit = "SELECT pg_backend_pid() FROM set_config($1, '100ms', true)"
		return func(ctx context.Context, tx pgx.Tx, _ schedule.Run[args]) error {
			var pid int // not the connection's, which a pooler gives
			if err := tx.QueryRow(ctx, limit, setting).Scan(&pid); err != nil {
				return err
			}
			counts(db, "the server has ended the connection", 0, "pg_stat_activity WHERE pid = $1", pid)
			_, err := tx.Exec(ctx, "SELECT 1")
			return err
		}
	}
	locks := testkit.Must(testkit.Pool(t, db.url).Begin(t.Context()))(t)
	defer func() { testkit.OK(t, locks.Rollback(context.Background())) }()
	testkit.Must(locks.Exec(t.Context(), "LOCK TABLE public.locked"))(t)
	type fail struct {
		handler handler
		says    string
		opts    []schedule.KindOption
	}
	notOwner := fmt.Errorf("shipping: %w", pgleases.ErrNotOwner)
	otherCursor := &pgconn.PgError{Code: "PS002", Message: "shipped"}
	ownError := (*nilPointer)(nil)
	driverError := (*pgconn.PgError)(nil)
	dnsError := (*net.DNSError)(nil)
	const tooLong = "took longer than its timeout"
	aSecond := []schedule.KindOption{schedule.WithTimeout(time.Second)}
	fails := map[string]fail{
		"an error":              {returning(errors.New("no paper")), "no paper", nil},
		"a text with a NUL":     {returning(errors.New("no\x00paper")), "no\uFFFDpaper", nil},
		"a text of other bytes": {returning(errors.New("no\xffpaper")), "no\uFFFDpaper", nil},
		"a text of many bytes": {
			returning(errors.New(strings.Repeat("no paper ", 10_000))), "no paper no paper", nil,
		},
		"an end of its goroutine": {func(context.Context, pgx.Tx, schedule.Run[args]) error {
			runtime.Goexit()
			return nil
		}, "runtime.Goexit", nil},
		"another lease's error":             {returning(notOwner), "shipping", nil},
		"another cursor's error":            {returning(otherCursor), "shipped", nil},
		"a nil pointer":                     {returning(ownError), "nil pointer", nil},
		"a nil pointer of the driver's":     {returning(fmt.Errorf("shipping: %w", driverError)), "shipping", nil},
		"a nil pointer whose Unwrap panics": {returning(dnsError), "nil", nil},
		"an error that wraps itself":        {returning(hostile("itself")), "hostile: itself", nil},
		"an error that wraps itself twice":  {returning(hostiles{}), "hostiles", nil},
		"an error whose methods panic":      {returning(hostile("all")), "all panics", nil},
		"an error to discard, of one to snooze": {
			returning(schedule.Discard(fmt.Errorf("no paper: %w", schedule.Snooze(time.Hour)))),
			"no paper: snoozed for 1h", nil,
		},
		"a panic": {func(context.Context, pgx.Tx, schedule.Run[args]) error {
			panic("on fire")
		}, "panic: on fire\ngithub.com/pgleases/pgleases/schedule_test.", nil},
		"an error of the database, ignored": {ignoring(send("SELECT 1/0")), "after a failed statement", nil},
		"rows that stay open": {func(ctx context.Context, tx pgx.Tx, _ schedule.Run[args]) error {
			_, err := tx.Query(ctx, "SELECT 1")
			return err
		}, "rows or a batch", nil},
		"a lock that the commit waits for": {send("INSERT INTO public.checked VALUES (1)"), "55P03", nil},
		"a lock that it waits for": {
			send("SET LOCAL lock_timeout = '50ms'; LOCK TABLE public.locked"), "55P03", nil,
		},
		"a change of its own schedule": {func(ctx context.Context, tx pgx.Tx, r schedule.Run[args]) error {
			const change = "UPDATE pgleases.schedules SET cursor = cursor + interval '1 s' WHERE name = $1"
			_, err := tx.Exec(ctx, change, r.Name)
			return err
		}, "changed the schedule", nil},
		"a short context of its own": {briefly(send("SELECT pg_sleep(60)")), "context deadline exceeded", nil},
		"a short context of its own, ignored": {
			ignoring(briefly(send("SELECT pg_sleep(60)"))), "ignored the error", nil,
		},
		"a transaction rolled back":                      {send("ROLLBACK"), "the handler ended its transaction", nil},
		"a statement that takes too long":                {send("SELECT pg_sleep(60)"), tooLong, aSecond},
		"a statement that takes too long, ignored":       {ignoring(send("SELECT pg_sleep(60)")), tooLong, aSecond},
		"work that takes too long":                       {waiting, tooLong, aSecond},
		"work that takes too long, and heeds no context": {ignoring(waiting), tooLong, aSecond},
		"a pause that is too long": {
			pausing("x.y"), "25P03", []schedule.KindOption{schedule.WithIdleTimeout(100 * time.Millisecond)},
		},
	}
	if one[bool](db, "SELECT EXISTS (SELECT FROM pg_settings WHERE name = 'transaction_timeout')") {
		fails["a transaction that is too long"] = fail{pausing("transaction_timeout"), "25P04", nil}
	}
	w := newWorker(db)
	var ledgers []*ledger
	var mu sync.Mutex // guards calls
	calls := make(map[string]int)
	for name, f := range fails {
		k := schedule.InTx(w.Scheduler, name, func(ctx context.Context, tx pgx.Tx, r schedule.Run[args]) error {
			if err := effect(ctx, tx, r); err != nil {
				return err
			}
			if r.At.Equal(midnight.Add(time.Hour)) {
				mu.Lock()
				calls[name]++
				mu.Unlock()
				return f.handler(ctx, tx, r)
			}
			if !r.From.IsZero() {
				t.Errorf("%s: the tick after a failed one gets From %v", name, r.From)
			}
			return nil
		}, f.opts...)
		testkit.OK(t, k.Add(name, args{}, hourly))
		ledgers = append(ledgers, newLedger(db, name))
	}
	w.run()
	for name := range fails {
		w.has(name) // they are put page by page
	}
	for hour := range 2 {
		db.setClock(midnight.Add(time.Duration(hour+1) * time.Hour))
		for _, l := range ledgers {
			l.settled(w.Scheduler)
		}
	}
	for _, l := range ledgers {
		l.expectOutcomes(outcomes{schedule.OutcomeFailed: 1, schedule.OutcomeSucceeded: 1})
		e, says := l.entries[1], fails[l.name].says
		if e.Outcome != schedule.OutcomeFailed || e.Error == "" || !strings.Contains(e.Error, says) {
			t.Errorf("%s: %s with error %q, which does not say %q", l.name, e.Outcome, e.Error, says)
		} else if len(e.Error) > 64<<10 {
			t.Errorf("%s: %d bytes of its error are kept", l.name, len(e.Error))
		}
		if n := calls[l.name]; n != 1 {
			t.Errorf("%s: called %d times, not once: it is no fault of the database's", l.name, n)
		}
	}
}

func TestACommitMayTakeAsLongAsTheRun(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newFreshDatabase(t)
	db.exec(`CREATE TABLE public.slow (seconds float); GRANT ALL ON public.slow TO PUBLIC;
		CREATE FUNCTION public.wait_later() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(new.seconds); RETURN NULL; END $$;
		CREATE CONSTRAINT TRIGGER later AFTER INSERT ON public.slow DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.wait_later()`)
	w := newWorker(db)
	w.Times().Answer = 200 * time.Millisecond
	var calls atomic.Int32
	for name, seconds := range map[string]float64{"slow": 0.5, "too slow": 60} {
		k := schedule.InTx(w.Scheduler, name, func(ctx context.Context, tx pgx.Tx, r schedule.Run[args]) error {
			if seconds > 1 {
				calls.Add(1)
			}
			_, err := tx.Exec(ctx, "INSERT INTO public.slow VALUES ($1)", seconds)
			return errors.Join(err, effect(ctx, tx, r))
		}, schedule.WithTimeout(2*time.Second))
		testkit.Must(k.Enqueue(t.Context(), args{}))(t)
	}
	w.run()
	for name, outcome := range map[string]string{"slow": "succeeded", "too slow": "failed"} {
		what := name + " is " + outcome
		counts(db, what, 1, "pgleases.history WHERE kind = $1 AND outcome = $2", name, outcome)
	}
	says := one[string](db, "SELECT error FROM pgleases.history WHERE kind = 'too slow'")
	expect(t, strings.HasPrefix(says, schedule.ErrTimeout.Error()), true, "whether the error is one of time: "+says)
	expect(t, db.count("public.slow"), 1, "effects")
	expect(t, calls.Load(), 2, "calls of what is too slow: the first might have been its connection's fault")
}

// A nilPointer is an error whose Error method panics for nil, as of a function that returns the
// wrong type.
type nilPointer struct{ text string }

func (e *nilPointer) Error() string { return e.text }

// A hostile error wraps itself, or its methods panic.
type hostile string

func (e hostile) Error() string { return "hostile: " + string(e) }
func (e hostile) Is(error) bool { panic("all panics") }
func (e hostile) As(any) bool   { panic("all panics") }
func (e hostile) Unwrap() error {
	if e == "all" {
		panic("all panics")
	}
	return e
}

type hostiles struct{}

func (e hostiles) Error() string   { return "hostiles" }
func (e hostiles) Unwrap() []error { return []error{e, e} }

// A wild error wraps others, itself among them at times, and some of its methods panic.
type wild struct {
	panics byte
	of     []error
}

func (e *wild) may(bit byte) {
	if e.panics&bit != 0 {
		panic(e)
	}
}
func (e *wild) Error() string   { e.may(1); return "wild" }
func (e *wild) Unwrap() []error { e.may(2); return e.of }
func (e *wild) Is(error) bool   { e.may(4); return false }
func (e *wild) As(any) bool     { e.may(4); return false }

// Each byte makes an error that may wrap those made before. What leaves the handler's goroutine calls no method of
// them any more, and of tame ones it says what they say.
func FuzzErrorsOfHandlersAreHarmless(f *testing.F) {
	f.Add([]byte{0, 3, 4, 5}, false)
	f.Add([]byte{12}, false) // whose text panics with an error whose text panics
	f.Add([]byte{5, 0xf9, 1, 0x2c, 2, 0x40}, true)
	f.Fuzz(func(t *testing.T, made []byte, circles bool) {
		var nothing *net.DNSError
		of, tame := []error{nil}, !circles && len(made) < 10 // else errors.Is would take for ever
		for _, b := range made[:min(len(made), 50)] {
			switch b % 8 {
			case 0:
				of = append(of, schedule.Discard(of[len(of)-1]))
			case 1:
				of = append(of, schedule.Snooze(time.Second))
			case 2:
				of, tame = append(of, nothing), false
			case 3:
				of = append(of, context.Canceled)
			default:
				e := &wild{b >> 3 & 7, of[int(b>>6)%len(of):]}
				of, tame = append(of, e), tame && e.panics == 0
				if circles {
					e.of = append(slices.Clone(e.of), e)
				}
			}
		}
		err := of[len(of)-1]
		safe := schedule.Flattened(err)
		if (safe == nil) != (err == nil) {
			t.Fatalf("of %T comes %v", err, safe)
		}
		if safe != nil && len(safe.Error()) > 1<<20 {
			t.Errorf("its text has %d bytes", len(safe.Error()))
		}
		if is := errors.Is(safe, context.Canceled); tame && is != errors.Is(err, context.Canceled) {
			t.Errorf("it is canceled: %v", is)
		}
		errors.As(safe, new(*net.DNSError))
	})
}

// A handler committed its transaction itself: the tick has failed with that error, and does not run
// again.
func TestARunThatCommitsItselfIsFoundOut(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	for statement, says := range map[string]string{
		"COMMIT":        "the handler ended its transaction",
		"COMMIT; BEGIN": "PS003",
	} {
		w := newWorker(db)
		k := schedule.InTx(w.Scheduler, "books", func(ctx context.Context, tx pgx.Tx, r schedule.Run[args]) error {
			if err := effect(ctx, tx, r); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, statement)
			return err
		})
		testkit.OK(t, k.Add(statement, args{}, hourly))
		w.run().has(statement)
		db.setClock(one[time.Time](db, "SELECT now FROM public.test_clock").Add(time.Hour))
		counts(db, "it has an outcome", 1, "pgleases.history WHERE name = $1", statement)
		const right = "pgleases.history WHERE name = $1 AND outcome = 'failed' AND error LIKE '%' || $2 || '%'"
		expect(t, db.count(right, statement, says), 1, "it has its outcome")
		expect(t, db.count("public.effects WHERE name = $1", statement), 1, "effects with "+statement)
		w.close()
	}
}

// It does not run again either if the handler fails after its commit, whatever it returns.
func TestRunThatCommitsAndFailsIsNotRepeated(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	endings := map[string]func() error{
		"an error": func() error { return errors.New("no paper") },
		"a panic":  func() error { panic("no paper") },
		"a snooze": func() error { return schedule.Snooze(time.Millisecond) },
	}
	for name, end := range endings {
		k := schedule.InTx(w.Scheduler, name, func(ctx context.Context, tx pgx.Tx, r schedule.Run[args]) error {
			err := effect(ctx, tx, r)
			if err != nil {
				return err
			}
			_, err = tx.Exec(ctx, "COMMIT")
			return cmp.Or(err, end())
		}, tries(3, time.Millisecond))
		testkit.OK(t, k.Add(name, args{}, hourly))
	}
	w.run()
	for name := range endings {
		w.has(name)
	}
	db.setClock(one[time.Time](db, "SELECT now FROM public.test_clock").Add(time.Hour))
	for name := range endings {
		becomes(db, name+" has an outcome", "failed", `SELECT coalesce(min(outcome), '')
			FROM pgleases.history WHERE name = $1`, name)
		expect(t, db.count("public.effects WHERE name = $1", name), 1, "effects with "+name)
		says := one[string](db, "SELECT error FROM pgleases.history WHERE name = $1", name)
		contains(t, errors.New(says), "the handler ended its transaction")
	}
	w.close()
}

// A transaction that the database broke off in favor of another is repeated, three times in all.
func TestASerializationFailureIsNoFailureOfTheRun(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	attempts := make(chan int, 100)
	calls := make(map[string]int) // they share a key
	k := schedule.InTx(w.Scheduler, "books", func(ctx context.Context, tx pgx.Tx, r schedule.Run[args]) error {
		if err := effect(ctx, tx, r); err != nil {
			return err
		}
		attempts <- r.Attempt
		if calls[r.Name]++; calls[r.Name] <= r.Args.N {
			_, err := tx.Exec(ctx, "DO $$ BEGIN RAISE SQLSTATE '40001'; END $$")
			return err
		}
		return nil
	})
	twice, always := newLedger(db, "twice"), newLedger(db, "always")
	testkit.OK(t, k.Add("twice", args{2}, hourly, schedule.WithKey("one")))
	testkit.OK(t, k.Add("always", args{100}, hourly, schedule.WithKey("one")))
	w.run().has("twice").has("always")
	db.setClock(midnight.Add(time.Hour))
	twice.settled(w.Scheduler).expectOutcomes(map[schedule.Outcome]int64{schedule.OutcomeSucceeded: 1})
	always.settled(w.Scheduler).expectOutcomes(map[schedule.Outcome]int64{schedule.OutcomeFailed: 1})
	for range 2 * 3 {
		expect(t, testkit.Receive(t, "an attempt", attempts), 1, "attempt") // it does not count
	}
	expect(t, len(attempts), 0, "further attempts")
}

// Another step of the schedule is made during a run.
func TestRunOfTickWithOutcomeIsNotCommitted(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	k := schedule.InTx(w.Scheduler, "books", func(ctx context.Context, tx pgx.Tx, r schedule.Run[args]) error {
		if r.At.Equal(midnight.Add(time.Hour)) {
			db.exec(`UPDATE pgleases.schedules SET cursor = '2026-03-02 01:00 UTC', cursor_local = '2026-03-02 01:00';
				INSERT INTO pgleases.history (schedule, group_name, name, since, until, ticks, outcome, ended_at)
				SELECT id, group_name, name, '2026-03-02 00:00 UTC', '2026-03-02 01:00 UTC', 1, 'missed', now() FROM pgleases.schedules`)
		}
		return effect(ctx, tx, r)
	})
	l := w.runs(k.Add("close", args{}, hourly))
	db.setClock(midnight.Add(time.Hour))
	l.settled(w.Scheduler)
	db.setClock(midnight.Add(2 * time.Hour))
	l.settled(w.Scheduler).expectOutcomes(outcomes{schedule.OutcomeMissed: 1, schedule.OutcomeSucceeded: 1})
}

// Schedules under one key run one after the other, others side by side.
func TestRunsUnderOneKeyDoNotOverlap(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db, schedule.WithMaxRunning(4))
	began, end, handler := halting(nil, effect)
	k := schedule.InTx(w.Scheduler, "books", handler)
	var ledgers []*ledger
	for _, of := range []struct{ name, key string }{{"a", "first"}, {"b", "first"}, {"c", "second"}, {"d", "second"}} {
		testkit.OK(t, k.Add(of.name, args{}, hourly, schedule.WithKey(of.key)))
		ledgers = append(ledgers, newLedger(db, of.name))
	}
	probe := newLedger(db, "probe")
	testkit.OK(t, schedule.InTx(w.Scheduler, "probe", effect).Add("probe", args{}, hourly))
	w.run().has("d")
	db.setClock(midnight.Add(time.Hour))
	first, second := testkit.Receive(t, "a run", began).Key, testkit.Receive(t, "another run", began).Key
	if first == second {
		t.Fatalf("two runs under the key %q at once", first)
	}
	db.setClock(midnight.Add(2 * time.Hour))
	probe.settled(w.Scheduler) // so it has polled, and there was room
	expect(t, len(began), 0, "runs besides")
	close(end)
	for _, l := range ledgers {
		l.settled(w.Scheduler)
	}
}

// When Run ends, a handler that continues gets ErrDrained after the drain and not before. It is
// rolled back, and the next process runs the tick.
func TestARunThatDoesNotEndInTimeIsRunAgain(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	cause := make(chan error, 1)
	began := make(chan struct{}, 1)
	w := newWorker(db, schedule.WithDrainTimeout(50*time.Millisecond))
	k := schedule.InTx(w.Scheduler, "books", func(ctx context.Context, tx pgx.Tx, r schedule.Run[args]) error {
		if err := effect(ctx, tx, r); err != nil {
			return err
		}
		began <- struct{}{}
		<-ctx.Done()
		cause <- context.Cause(ctx)
		return nil
	})
	l := w.runs(k.Add("close", args{}, hourly))
	db.setClock(midnight.Add(time.Hour))
	testkit.Receive(t, "it runs", began)
	stopped := time.Now()
	w.close()
	wraps(t, "the cause", testkit.Receive(t, "its context ended", cause), schedule.ErrDrained)
	if passed := time.Since(stopped); passed < 50*time.Millisecond {
		t.Fatalf("its context ended after %v, before the drain was over", passed)
	}
	expect(t, db.count("pgleases.history"), 0, "outcomes")
	next := newWorker(db)
	testkit.OK(t, schedule.InTx(next.Scheduler, "books", effect).Add("close", args{}, hourly))
	next.run()
	l.settled(next.Scheduler).expectOutcomes(outcomes{schedule.OutcomeSucceeded: 1})
}

// An edit has locked the row of the schedule. The end of the run waits for about as long as the
// handler took, whatever lock_timeout the handler has set.
func TestAnEditThatTakesLongMakesNoRunFail(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	k := schedule.InTx(w.Scheduler, "books", func(ctx context.Context, tx pgx.Tx, r schedule.Run[args]) error {
		if _, err := tx.Exec(ctx, "SET LOCAL lock_timeout = 1"); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "SELECT pg_catalog.pg_sleep(1)"); err != nil {
			return err
		}
		return effect(ctx, tx, r)
	})
	l := w.runs(k.Put(t.Context(), "close", args{}, hourly))
	db.polled()
	edit := db.begin()
	testkit.OK(t, k.PutTx(t.Context(), edit, "close", args{2}, hourly))
	db.setClock(midnight.Add(time.Hour))
	db.blocked("the end of the run waits for the edit", "schedule_end_tick")
	testkit.OK(t, edit.Rollback(t.Context()))
	l.settled(w.Scheduler).expectOutcomes(outcomes{schedule.OutcomeSucceeded: 1})
}

// A connection falls silent at a statement of the scheduler: the run is repeated on another one.
func TestAConnectionThatFallsSilentHoldsUpNoRun(t *testing.T) {
	t.Parallel()
	for _, text := range testkit.Some("begin", "schedule_open", "schedule_end_tick", "commit") {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			w := newWorker(db)
			w.Times().Answer = time.Second
			k := schedule.InTx(w.Scheduler, "books", effect, schedule.WithTimeout(2*time.Second))
			l := w.runs(k.Put(t.Context(), "close", args{}, hourly))
			db.polled()
			w.wire.Mute(text)
			db.setClock(midnight.Add(time.Hour))
			testkit.Until(t, "it fell silent", func() bool { return w.wire.Left() == 0 })
			l.settled(w.Scheduler).expectOutcomes(outcomes{schedule.OutcomeSucceeded: 1})
		})
	}
}

// More schedules than one poll finds wait for a run of their key. Schedules after them in the
// partition run.
func TestABusyKeyHoldsUpNoOther(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db, schedule.WithPartitions(1))
	began, end := make(chan struct{}, 1), make(chan struct{})
	bulk := schedule.InTx(w.Scheduler, "bulk", func(ctx context.Context, tx pgx.Tx, r schedule.Run[args]) error {
		select {
		case began <- struct{}{}:
			released(ctx, end)
		default:
		}
		return effect(ctx, tx, r)
	})
	ledgers, key := make([]*ledger, 120), schedule.WithKey("bulk")
	testkit.OK(t, pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
		for i := range ledgers {
			ledgers[i] = newLedger(db, fmt.Sprintf("bulk %03d", i))
			if err := bulk.PutTx(t.Context(), tx, ledgers[i].name, args{}, hourly, key); err != nil {
				return err
			}
		}
		return nil
	}))
	k := schedule.InTx(w.Scheduler, "books", effect)
	testkit.OK(t, k.Put(t.Context(), "last", args{}, schedule.Cron("1 1 * * *", "UTC")))
	w.run()
	db.polled()
	db.setClock(midnight.Add(62 * time.Minute))
	testkit.Receive(t, "one runs", began)
	counts(db, "the last has run", 1, "public.effects WHERE name = 'last'")
	close(end)
	for _, l := range ledgers {
		l.settled(w.Scheduler)
	}
}
