package schedule_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/testkit/clients"
	"github.com/pgleases/pgleases/internal/timeguard"
	"github.com/pgleases/pgleases/schedule"
)

const (
	victimOf     = "PGLEASES_SCHEDULE_VICTIM" // the database of a process that the poison job kills
	victimOfArgs = "PGLEASES_SCHEDULE_TOXIC"  // set: it is killed by arguments
	killed       = 3                          // how it exits
	bystanders   = 3
)

// toxic has arguments that crash the process that parses them.
type toxic struct{}

func (toxic) MarshalJSON() ([]byte, error) { return []byte("{}"), nil }
func (*toxic) UnmarshalJSON([]byte) error {
	if os.Getenv(victimOf) != "" {
		os.Exit(killed)
	}
	return nil
}

func toxicHandler(context.Context, pgx.Tx, schedule.Run[toxic]) error { return nil }

// names are those of the poison job and of the jobs that run beside it.
func jobs() (names []string) {
	for i := range bystanders {
		names = append(names, fmt.Sprint("bystander ", i))
	}
	return append(names, "poison")
}

const victimID = "victim"

// victim is a process with a poison job, which crashes it while all handlers run side by side.
func victim(url string) error {
	ctx := context.Background()
	pool, err := openPool(ctx, url, 12)
	if err != nil {
		return err
	}
	client, err := pgleases.NewClient(ctx, pool, pgleases.WithoutMigration(), pgleases.WithClientID(victimID),
		pgleases.WithTTL(clients.TTL), pgleases.WithHeartbeat(100*time.Millisecond))
	if err != nil {
		return err
	}
	log := slog.New(slog.DiscardHandler)
	s, err := schedule.New(ctx, client, pool, group,
		schedule.WithPartitions(4), schedule.WithoutMigration(), schedule.WithLogger(log))
	if err != nil {
		return err
	}
	s.Hasten()
	schedule.InTx(s, "toxic", toxicHandler)
	schedule.AtMostOnce(s, "toxic outside", noCall[toxic])
	beside := make(chan struct{}, bystanders)
	var running atomic.Int32
	books := schedule.InTx(s, "books", func(ctx context.Context, tx pgx.Tx, r schedule.Run[args]) error {
		if err := effect(ctx, tx, r); err != nil {
			return err
		}
		defer running.Add(-1)
		n := running.Add(1)
		if r.Crashes > 0 {
			time.Sleep(200 * time.Millisecond) // nothing begins beside it, which leaves no trace
		}
		switch {
		case r.Crashes > 0 && n > 1:
			os.Exit(4) // something runs beside what is suspected
		case r.Name == "poison":
			for i := 0; i < bystanders && r.Crashes == 0; i++ {
				<-beside
			}
			os.Exit(killed)
		case r.Crashes == 0:
			beside <- struct{}{}
			<-ctx.Done()
		}
		return nil
	}, schedule.WithIdleTimeout(time.Second))
	if os.Getenv(victimOfArgs) == "" {
		for _, name := range jobs() {
			if err := books.Add(name, args{}, hourly); err != nil {
				return err
			}
		}
	}
	return s.Run(ctx)
}

// killVictims starts n processes one after the other, each of which a job crashes.
func killVictims(t *testing.T, db *database, n int, after func(), environment ...string) {
	t.Helper()
	for life := range n {
		process := exec.Command(os.Args[0])
		process.Env = append(append(os.Environ(), victimOf+"="+db.url), environment...)
		ended := make(chan error, 1)
		testkit.OK(t, process.Start())
		go func() { ended <- process.Wait() }()
		t.Cleanup(func() { _ = process.Process.Kill() })
		var exit *exec.ExitError
		err := testkit.Receive(t, fmt.Sprintf("process %d is killed by its job", life+1), ended)
		if !errors.As(err, &exit) || exit.ExitCode() != killed {
			t.Fatalf("process %d: %v, not killed by its job", life+1, err)
		}
		db.expire(victimID)
		after()
	}
}

// Parsing arguments may crash the process as a handler may, in a transaction or not. The run fails
// after the same number of crashes.
func TestArgumentsThatKillTheirProcessFail(t *testing.T) { killedByArguments(t, "toxic") }

func TestCallsArgumentsThatKillTheirProcessFail(t *testing.T) { killedByArguments(t, "toxic outside") }

// killedByArguments is a test, and not a subtest, because parallel subtests run last, and it waits
// for seconds.
func killedByArguments(t *testing.T, kind string) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	maker := newWorker(db)
	k := schedule.InTx(maker.Scheduler, kind, toxicHandler)
	testkit.OK(t, k.Put(t.Context(), "close", toxic{}, hourly))
	l := newLedger(db, "close")
	db.setClock(midnight.Add(time.Hour))
	noOutcome := func() { expect(t, db.count("pgleases.history"), 0, "outcomes") }
	killVictims(t, db, 4, noOutcome, victimOfArgs+"=true")
	w := newWorker(db)
	schedule.InTx(w.Scheduler, kind, toxicHandler)
	l.settled(w.run().Scheduler).expectOutcomes(outcomes{schedule.OutcomeFailed: 1})
}

// A job crashes its process each time that it runs. The first crash has no known cause. After 3
// more the job has failed, and runs beside it have not.
func TestJobThatKillsItsProcessFailsAlone(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	maker := newWorker(db)
	k := schedule.InTx(maker.Scheduler, "books", effect)
	ledgers := make(map[string]*ledger)
	for _, name := range jobs() {
		testkit.OK(t, k.Put(t.Context(), name, args{}, hourly))
		ledgers[name] = newLedger(db, name)
	}
	db.setClock(midnight.Add(time.Hour))
	killVictims(t, db, 4, func() {
		expect(t, db.count("pgleases.history WHERE name = 'poison'"), 0, "outcomes of the poison job")
	})
	w := newWorker(db)
	books := schedule.InTx(w.Scheduler, "books", effect)
	for _, name := range jobs() {
		testkit.OK(t, books.Add(name, args{}, hourly))
	}
	w.run()
	for name, l := range ledgers {
		want := outcomes{schedule.OutcomeSucceeded: 1}
		if name == "poison" {
			want = outcomes{schedule.OutcomeFailed: 1}
		}
		l.settled(w.Scheduler).expectOutcomes(want)
	}
	db.setClock(midnight.Add(2 * time.Hour)) // the next tick begins anew
	ledgers["poison"].settled(w.Scheduler)
	ledgers["poison"].expectOutcomes(outcomes{schedule.OutcomeFailed: 1, schedule.OutcomeSucceeded: 1})
}

// A crash is counted when the run begins, and taken back when the process ends the run, or drains.
func TestACrashIsNotCountedWhereTheProcessLives(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	timeguard.Run(t, aCrashIsNotCountedWhereTheProcessLives)
}

func aCrashIsNotCountedWhereTheProcessLives(t *timeguard.Try) {
	t.Brief(3 * time.Second)
	db := newDatabase(t)
	began := make(chan string, 10)
	kinds := func(w *worker) *worker {
		k := schedule.InTx(w.Scheduler, "books", func(ctx context.Context, tx pgx.Tx, r schedule.Run[args]) error {
			began <- r.Name
			<-ctx.Done()
			return context.Cause(ctx)
		}, schedule.WithIdleTimeout(time.Second))
		testkit.OK(t, k.Add("close", args{}, hourly))
		return w.run().has("close")
	}
	crashes := func() int64 {
		return one[int64](db, "SELECT crashes::bigint FROM pgleases.schedules")
	}
	w := kinds(newWorkerFor(db, 3*time.Second, schedule.WithDrainTimeout(0)))
	db.setClock(midnight.Add(time.Hour))
	testkit.Receive(t, "it runs", began)
	expect(t, crashes(), 0, "crashes, if no previous owner crashed")
	w.crash()
	w = kinds(newWorkerFor(db, 3*time.Second, schedule.WithDrainTimeout(0)))
	testkit.Receive(t, "it runs", began)
	expect(t, crashes(), 1, "crashes, while it runs after a crashed owner")
	w.close()
	expect(t, crashes(), 0, "crashes, after it was drained")
	w = kinds(newWorkerFor(db, 3*time.Second, schedule.WithDrainTimeout(0)))
	testkit.Receive(t, "it runs", began)
	expect(t, crashes(), 0, "crashes, where the owner before ended in good order")
	w.close()
	next := newWorker(db)
	l := &ledger{db: db, name: "close", should: hours, begins: midnight}
	testkit.OK(t, schedule.InTx(next.Scheduler, "books", effect).Add("close", args{}, hourly))
	next.run()
	l.settled(next.Scheduler).expectOutcomes(outcomes{schedule.OutcomeSucceeded: 1})
}

// A crash suspect waits for other runs, and they wait for it, each for a limited time.
func TestASuspectHoldsUpItsProcessForAWhileOnly(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w, log := newLogged(db)
	w.Times().SuspectHold = 300 * time.Millisecond
	began, ends := make(chan int, 10), []chan struct{}{make(chan struct{}), make(chan struct{})}
	k := schedule.InTx(w.Scheduler, "books", func(ctx context.Context, _ pgx.Tx, r schedule.Run[args]) error {
		began <- r.Args.N
		released(ctx, ends[r.Args.N/3])
		return ctx.Err()
	})
	put := func(n int, crashes int) {
		t.Helper()
		tx := db.begin()
		id := testkit.Must(k.EnqueueTx(t.Context(), tx, args{n}, schedule.WithJobKey(fmt.Sprint(n))))(t)
		if crashes > 0 {
			const crashed = "UPDATE pgleases.jobs SET began = at, crashes = $2 WHERE id = $1"
			testkit.Must(tx.Exec(t.Context(), crashed, id, crashes))(t)
		}
		testkit.OK(t, tx.Commit(t.Context()))
	}
	put(1, 1)
	w.run()
	expect(t, testkit.Receive(t, "a suspect runs", began), 1, "what runs")
	put(2, 0)
	expect(t, testkit.Receive(t, "another runs beside it", began), 2, "what runs")
	close(ends[0])
	counts(db, "both are done", 2, "pgleases.history")
	expect(t, log.count("started beside other runs"), 0, "warnings")
	put(3, 0)
	expect(t, testkit.Receive(t, "one runs", began), 3, "what runs")
	put(4, 1)
	expect(t, testkit.Receive(t, "a suspect runs beside it", began), 4, "what runs")
	put(5, 0)
	expect(t, testkit.Receive(t, "another runs beside both", began), 5, "what runs")
	expect(t, log.count("started beside other runs"), 1, "warnings")
	close(ends[1])
}

// A process ends while the answer to its record that something runs in a partition is missing. The
// record is committed all the same, and is removed, so the next owner assumes no crash.
func TestUnansweredBeginIsNoCrash(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	tracer := &hangingBegin{hangs: make(chan struct{}), end: make(chan struct{})}
	db.tracer = tracer
	w := newWorker(db, schedule.WithDrainTimeout(0))
	w.Times().Overrun = 50 * time.Millisecond
	free := sync.OnceFunc(func() { close(tracer.end) })
	t.Cleanup(free)
	k := schedule.InTx(w.Scheduler, "k", effect)
	w.run()
	testkit.Must(k.Enqueue(t.Context(), args{}))(t)
	testkit.Receive(t, "the commit of the record is not answered", tracer.hangs)
	w.end()
	free()
	expect(t, db.count("pgleases.schedule_owners"), 1, "partitions in which something ran")
	expect(t, db.count("pgleases.schedule_owners WHERE begun > ended"), 0, "partitions with an assumed crash")
}

// hangingBegin is a tracer that hangs when the first transaction with schedule_begin is committed.
type hangingBegin struct {
	begun      atomic.Pointer[pgx.Conn]
	hung       atomic.Bool
	hangs, end chan struct{}
}

func (h *hangingBegin) TraceBatchStart(
	ctx context.Context, conn *pgx.Conn, data pgx.TraceBatchStartData,
) context.Context {
	for _, q := range data.Batch.QueuedQueries {
		if strings.Contains(q.SQL, "schedule_begin") {
			h.begun.Store(conn)
		}
	}
	return ctx
}

func (h *hangingBegin) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (h *hangingBegin) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}
func (h *hangingBegin) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

func (h *hangingBegin) TraceQueryEnd(_ context.Context, conn *pgx.Conn, data pgx.TraceQueryEndData) {
	if data.CommandTag.String() == "COMMIT" && h.begun.Load() == conn && h.hung.CompareAndSwap(false, true) {
		close(h.hangs)
		<-h.end
	}
}
